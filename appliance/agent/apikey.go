package agent

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

const (
	maxKeyDays = 3650 // agent protocol H.7
	// keyPrefixLen is how much of a key is kept for people to recognise it: the common start and 6 of 43 characters.
	keyPrefixLen = len(secret.APIKeyPrefix) + 6
)

// NewAPIKey asks for an API key.
type NewAPIKey struct {
	Name          string
	Role          Role
	Scopes        []string   // empty: DefaultScopes of the role
	ProjectID     *uuid.UUID // nil: every project
	ExpiresInDays *int       // nil: never
}

func (n *NewAPIKey) validate() error {
	if err := checkLabel("name", n.Name); err != nil {
		return err
	}
	if n.Role.rank() == 0 {
		return fault.Field("role", "must be viewer, operator, admin or auditor")
	}
	if n.ExpiresInDays != nil && (*n.ExpiresInDays < 1 || *n.ExpiresInDays > maxKeyDays) {
		return fault.Field("expires_in_days", "must be 1..%d", maxKeyDays)
	}
	return checkScopes(n.Scopes)
}

// CreateAPIKey makes a key and returns it with its text, which exists only here. Invalid for a bad field or an unknown
// project, Forbidden when the key would have more than its maker.
func (d *Directory) CreateAPIKey(ctx context.Context, who Principal, n NewAPIKey) (APIKey, secret.Text, error) {
	if err := n.validate(); err != nil {
		return APIKey{}, secret.Text{}, err
	}
	scopes := slices.Clone(n.Scopes)
	if len(scopes) == 0 {
		scopes = DefaultScopes(n.Role)
	}
	slices.Sort(scopes)
	n.Scopes = slices.Compact(scopes)
	if err := mayGrant(who, n.Role, n.Scopes, n.ProjectID); err != nil {
		return APIKey{}, secret.Text{}, err
	}
	k, text, hash, err := d.mintKey(n, who.ID)
	if err != nil {
		return APIKey{}, secret.Text{}, err
	}
	err = d.st.Update(ctx, "create api key", func(tx DirectoryTx) error { return d.storeKey(tx, who, &k, n, hash) })
	if err != nil {
		return APIKey{}, secret.Text{}, err
	}
	return k, text, nil
}

// mintKey makes the key's text and the record of it.
func (d *Directory) mintKey(n NewAPIKey, by string) (APIKey, secret.Text, string, error) {
	id, err := newID()
	if err != nil {
		return APIKey{}, secret.Text{}, "", err
	}
	text := secret.NewAPIKey()
	k := APIKey{ID: id, Name: n.Name, Prefix: text.Reveal()[:keyPrefixLen], Role: n.Role, Scopes: n.Scopes,
		ProjectID: n.ProjectID, CreatedBy: by}
	return k, text, secret.APIKeyHash(d.secrets.Current.Reveal(), text.Reveal()), nil
}

func (d *Directory) storeKey(tx DirectoryTx, who Principal, k *APIKey, n NewAPIKey, hash string) error {
	k.CreatedAt, k.ExpiresAt = tx.Now(), nil
	if n.ExpiresInDays != nil {
		at := k.CreatedAt.Add(time.Duration(*n.ExpiresInDays) * 24 * time.Hour)
		k.ExpiresAt = &at
	}
	var project int64
	meta := map[string]any{"name": k.Name, "prefix": k.Prefix, "role": k.Role, "scopes": k.Scopes}
	if k.ProjectID != nil {
		p, err := tx.ProjectByID(*k.ProjectID)
		if fault.Is(err, fault.NotFound) || err == nil && !p.IsActive {
			return fault.Field("project_id", "must be the id of an active project")
		}
		if err != nil {
			return err
		}
		project = p.No
		meta["project_id"] = p.ID.String()
	}
	if err := tx.InsertAPIKey(*k, hash); err != nil {
		return err
	}
	return d.record(tx, who, "api_key.created", project, "api_key", k.ID.String(), meta)
}

// ListAPIKeys returns the keys that are not revoked, by name: all of them, or those of the project that the principal is
// bound to.
func (d *Directory) ListAPIKeys(ctx context.Context, who Principal) ([]APIKey, error) {
	var out []APIKey
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		out, err = tx.APIKeys(who.ProjectID)
		return err
	})
	return out, err
}

// RevokeAPIKey ends a key for good. Revoking it again changes nothing. NotFound for a key that does not exist or, to a
// principal bound to a project, belongs elsewhere.
func (d *Directory) RevokeAPIKey(ctx context.Context, who Principal, id uuid.UUID) error {
	return d.st.Update(ctx, "revoke api key", func(tx DirectoryTx) error {
		k, err := tx.APIKeyByID(id)
		if err != nil {
			return named(err, "API key")
		}
		if who.ProjectID != nil && (k.ProjectID == nil || *k.ProjectID != *who.ProjectID) {
			return fault.New(fault.NotFound, "API key not found")
		}
		live, err := tx.RevokeAPIKey(id)
		if err != nil || !live {
			return err
		}
		var project int64
		if k.ProjectID != nil {
			p, err := tx.ProjectByID(*k.ProjectID)
			if err != nil {
				return err
			}
			project = p.No
		}
		meta := map[string]any{"name": k.Name, "prefix": k.Prefix}
		return d.record(tx, who, "api_key.revoked", project, "api_key", id.String(), meta)
	})
}

// EnsureAdminKey makes the first API key, an admin's without an end, in a database that never had a key. created tells
// whether it did; the key's text exists only in this answer.
func (d *Directory) EnsureAdminKey(ctx context.Context) (created bool, text secret.Text, err error) {
	var any bool
	look := func(tx DirectoryReadTx) (err error) {
		any, err = tx.AnyAPIKey()
		return err
	}
	if err := d.st.View(ctx, look); err != nil || any {
		return false, secret.Text{}, err
	}
	n := NewAPIKey{Name: "admin", Role: Admin, Scopes: DefaultScopes(Admin)}
	k, text, hash, err := d.mintKey(n, "first start")
	if err != nil {
		return false, secret.Text{}, err
	}
	err = d.st.Update(ctx, "create first api key", func(tx DirectoryTx) error {
		created = false
		if err := look(tx); err != nil || any {
			return err
		}
		created = true
		return d.storeKey(tx, Principal{}, &k, n, hash)
	})
	if err != nil || !created {
		return false, secret.Text{}, err
	}
	return true, text, nil
}
