package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

const selectAPIKeys = `SELECT k.id, k.name, k.prefix, k.role, k.scopes, p.id, k.created_by, k.created_at, k.expires_at,
	k.last_used_at, k.revoked_at, k.key_hash FROM api_keys k LEFT JOIN projects p ON p.project_no = k.project_no`

// apiKeyRow is where a key's columns are scanned to.
type apiKeyRow struct {
	k                      agent.APIKey
	scopes, hash           string
	project                uuid.NullUUID
	expires, used, revoked time.Time
}

func (r *apiKeyRow) dest() []any {
	k := &r.k
	return []any{&k.ID, &k.Name, &k.Prefix, &k.Role, &r.scopes, &r.project, &k.CreatedBy, &k.CreatedAt, &r.expires,
		&r.used, &r.revoked, &r.hash}
}

func (r *apiKeyRow) key() (agent.APIKey, error) {
	r.k.ExpiresAt, r.k.LastUsedAt, r.k.RevokedAt = nonZero(r.expires), nonZero(r.used), nonZero(r.revoked)
	if r.project.Valid {
		r.k.ProjectID = &r.project.UUID
	}
	return r.k, fromJSON(r.scopes, &r.k.Scopes)
}

// APIKeyByHash finds a key, whatever its state, with the hash as it is stored.
func (r *reader) APIKeyByHash(hash string) (agent.APIKey, string, error) {
	var row apiKeyRow
	if err := r.QueryRow(selectAPIKeys+` WHERE k.key_hash = ?`, hash).Scan(row.dest()...); err != nil {
		return agent.APIKey{}, "", err
	}
	k, err := row.key()
	return k, row.hash, err
}

// APIKeyByID finds a key, whatever its state.
func (r *reader) APIKeyByID(id uuid.UUID) (agent.APIKey, error) {
	var row apiKeyRow
	if err := r.QueryRow(selectAPIKeys+` WHERE k.id = ?`, id).Scan(row.dest()...); err != nil {
		return agent.APIKey{}, err
	}
	return row.key()
}

// APIKeys returns the keys that are not revoked, by name; all of them, or those bound to the project.
func (r *reader) APIKeys(project *uuid.UUID) ([]agent.APIKey, error) {
	only := uuid.NullUUID{}
	if project != nil {
		only = uuid.NullUUID{UUID: *project, Valid: true}
	}
	rows, err := r.Query(selectAPIKeys+` WHERE k.revoked_at IS NULL AND (?1 IS NULL OR p.id = ?1)
		ORDER BY k.name, k.api_key_no`, only)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.APIKey{}
	for rows.Next() {
		var row apiKeyRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		k, err := row.key()
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, rows.Err()
}

// APIKeyIDsBetween returns ids of live keys in [from, to], at most limit; of all keys, or those bound to the project.
func (r *reader) APIKeyIDsBetween(from, to uuid.UUID, project *uuid.UUID, limit int) ([]uuid.UUID, error) {
	only := uuid.NullUUID{}
	if project != nil {
		only = uuid.NullUUID{UUID: *project, Valid: true}
	}
	return r.scanIDs(`SELECT k.id FROM api_keys k LEFT JOIN projects p ON p.project_no = k.project_no
		WHERE k.id BETWEEN ?2 AND ?3 AND k.revoked_at IS NULL AND (?1 IS NULL OR p.id = ?1) ORDER BY k.id LIMIT ?4`,
		only, from, to, limit)
}

// AnyAPIKey tells whether a key was ever made.
func (r *reader) AnyAPIKey() (any bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM api_keys)`).Scan(&any)
	return any, err
}

// InsertAPIKey stores a key under the hash of its text.
func (tx *Tx) InsertAPIKey(k agent.APIKey, hash string) error {
	scopes, err := jsonList(k.Scopes)
	if err != nil {
		return err
	}
	var project uuid.NullUUID
	if k.ProjectID != nil {
		project = uuid.NullUUID{UUID: *k.ProjectID, Valid: true}
	}
	_, err = tx.Exec(`INSERT INTO api_keys (id, name, prefix, key_hash, role, scopes, project_no, created_by, created_at,
		expires_at) VALUES (?,?,?,?,?,?,(SELECT project_no FROM projects WHERE id = ?),?,?,?)`,
		k.ID, k.Name, k.Prefix, hash, string(k.Role), scopes, project, k.CreatedBy, k.CreatedAt, orNull(k.ExpiresAt))
	return err
}

// TouchAPIKey moves the key's last use to now unless it is after notBefore already.
func (tx *Tx) TouchAPIKey(id uuid.UUID, notBefore time.Time) error {
	_, err := tx.Exec(`UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at <= ?)`,
		tx.Now(), id, notBefore)
	return err
}

// RevokeAPIKey revokes a live key and reports whether it was live.
func (tx *Tx) RevokeAPIKey(id uuid.UUID) (bool, error) {
	res, err := tx.Exec(`UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`, tx.Now(), id)
	return res.RowsAffected() > 0, err
}
