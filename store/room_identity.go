package store

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
)

var (
	_ identity.Tx     = (*Tx)(nil)
	_ identity.ReadTx = (*ReadTx)(nil)
)

const roomPersonColumns = `p.person_no, p.id, p.kind, p.name, p.email, p.role, p.password_hash IS NOT NULL, p.disabled_at,
	p.created_at, p.updated_at`

// roomPersonRow is where a person's columns are scanned to.
type roomPersonRow struct {
	p        room.Person
	disabled time.Time
}

func (r *roomPersonRow) dest() []any {
	p := &r.p
	return []any{&p.No, &p.ID, &p.Kind, &p.Name, &p.Email, &p.Role, &p.HasPassword, &r.disabled, &p.CreatedAt, &p.UpdatedAt}
}

func (r *roomPersonRow) person() room.Person {
	r.p.DisabledAt = nonZero(r.disabled)
	return r.p
}

// roomPerson finds one person; where names the row.
func (r *reader) roomPerson(where string, args ...any) (room.Person, error) {
	var row roomPersonRow
	if err := r.QueryRow(`SELECT `+roomPersonColumns+` FROM people p WHERE `+where, args...).Scan(row.dest()...); err != nil {
		return room.Person{}, err
	}
	return row.person(), nil
}

func (r *reader) roomPersons(query string, args ...any) ([]room.Person, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.Person{}
	for rows.Next() {
		var row roomPersonRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		out = append(out, row.person())
	}
	return out, rows.Err()
}

// RoomPersonByID finds a person.
func (r *reader) RoomPersonByID(id uuid.UUID) (room.Person, error) {
	return r.roomPerson(`p.id = ?`, id)
}

// RoomPersonByNo finds a person.
func (r *reader) RoomPersonByNo(no int64) (room.Person, error) {
	return r.roomPerson(`p.person_no = ?`, no)
}

// RoomPersonOfKind finds the operator or the bootstrap person.
func (r *reader) RoomPersonOfKind(kind room.PersonKind) (room.Person, error) {
	return r.roomPerson(`p.kind = ? AND p.kind <> 'person'`, string(kind))
}

// RoomPersonSecrets finds what a sign-in is checked against.
func (r *reader) RoomPersonSecrets(email string) (room.Person, identity.Secrets, error) {
	var row roomPersonRow
	var s identity.Secrets
	err := r.QueryRow(`SELECT `+roomPersonColumns+`, coalesce(p.password_hash, ''), p.sessions_after FROM people p
		WHERE p.email = ?`, email).Scan(append(row.dest(), &s.PasswordHash, &s.SessionsAfter)...)
	if err != nil {
		return room.Person{}, identity.Secrets{}, err
	}
	return row.person(), s, nil
}

// RoomPersonSessions returns a person and the time before which its cookies are void.
func (r *reader) RoomPersonSessions(id uuid.UUID) (room.Person, time.Time, error) {
	var row roomPersonRow
	var after time.Time
	err := r.QueryRow(`SELECT `+roomPersonColumns+`, p.sessions_after FROM people p WHERE p.id = ?`, id).
		Scan(append(row.dest(), &after)...)
	if err != nil {
		return room.Person{}, time.Time{}, err
	}
	return row.person(), after, nil
}

// RoomPeople returns at most limit people above number after.
func (r *reader) RoomPeople(after int64, limit int) ([]room.Person, error) {
	return r.roomPersons(`SELECT `+roomPersonColumns+` FROM people p WHERE p.person_no > ? ORDER BY p.person_no LIMIT ?`,
		after, limit)
}

// RoomPeopleNamed returns at most limit people of exactly this name.
func (r *reader) RoomPeopleNamed(name string, limit int) ([]room.Person, error) {
	return r.roomPersons(`SELECT `+roomPersonColumns+` FROM people p WHERE p.name = ? ORDER BY p.person_no LIMIT ?`,
		name, limit)
}

// InsertRoomPerson stores a person and returns its number.
func (tx *Tx) InsertRoomPerson(p room.Person, s identity.Secrets) (int64, error) {
	res, err := tx.Exec(`INSERT INTO people (id, kind, name, email, password_hash, role, sessions_after, disabled_at,
		created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?)`,
		p.ID, string(p.Kind), p.Name, p.Email, roomTextOrNull(s.PasswordHash), string(p.Role), s.SessionsAfter,
		orNull(p.DisabledAt), p.CreatedAt, p.UpdatedAt)
	return res.LastInsertID(), err
}

// UpdateRoomPerson stores name, role and whether the person is disabled.
func (tx *Tx) UpdateRoomPerson(p room.Person) error {
	_, err := tx.Exec(`UPDATE people SET name = ?, role = ?, disabled_at = ?, updated_at = ? WHERE person_no = ?`,
		p.Name, string(p.Role), orNull(p.DisabledAt), p.UpdatedAt, p.No)
	return err
}

// SetRoomPersonPassword stores a password hash.
func (tx *Tx) SetRoomPersonPassword(personNo int64, hash string) error {
	_, err := tx.Exec(`UPDATE people SET password_hash = ?, updated_at = ? WHERE person_no = ?`, hash, tx.Now(), personNo)
	return err
}

// SetRoomPersonSessions voids the cookies that were issued before the time.
func (tx *Tx) SetRoomPersonSessions(personNo int64, after time.Time) error {
	_, err := tx.Exec(`UPDATE people SET sessions_after = ? WHERE person_no = ?`, after, personNo)
	return err
}

const roomKeyColumns = `k.id, k.kind, k.label, k.person_no, p.id, p.name, k.created_at, k.revoked_at`

const fromRoomKeys = ` FROM registration_keys k JOIN people p ON p.person_no = k.person_no`

func scanRoomKey(scan func(...any) error, more ...any) (identity.Key, error) {
	var k identity.Key
	var revoked time.Time
	dest := append([]any{&k.ID, &k.Kind, &k.Label, &k.PersonNo, &k.PersonID, &k.PersonName, &k.CreatedAt, &revoked}, more...)
	if err := scan(dest...); err != nil {
		return identity.Key{}, err
	}
	k.RevokedAt = nonZero(revoked)
	return k, nil
}

// RoomKeyByHash finds a registration key that is not revoked, with the hash it is stored under.
func (r *reader) RoomKeyByHash(hash string) (k identity.Key, stored string, err error) {
	row := r.QueryRow(`SELECT `+roomKeyColumns+`, k.key_hash`+fromRoomKeys+` WHERE k.key_hash = ? AND k.revoked_at IS NULL`, hash)
	k, err = scanRoomKey(row.Scan, &stored)
	return k, stored, err
}

// RoomKeyByID finds a registration key, revoked or not.
func (r *reader) RoomKeyByID(id uuid.UUID) (identity.Key, error) {
	return scanRoomKey(r.QueryRow(`SELECT `+roomKeyColumns+fromRoomKeys+` WHERE k.id = ?`, id).Scan)
}

// RoomKeys returns the keys in the order they were made: of one person, or all when personNo is 0.
func (r *reader) RoomKeys(personNo int64, includeRevoked bool) ([]identity.Key, error) {
	rows, err := r.Query(`SELECT `+roomKeyColumns+fromRoomKeys+` WHERE (? = 0 OR k.person_no = ?)
		AND (? OR k.revoked_at IS NULL) ORDER BY k.registration_key_no`, personNo, personNo, includeRevoked)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []identity.Key{}
	for rows.Next() {
		k, err := scanRoomKey(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, rows.Err()
}

// InsertRoomKey stores a registration key.
func (tx *Tx) InsertRoomKey(k identity.Key, hash string) error {
	_, err := tx.Exec(`INSERT INTO registration_keys (id, kind, label, key_hash, person_no, created_at, revoked_at)
		VALUES (?,?,?,?,?,?,NULL)`, k.ID, string(k.Kind), k.Label, hash, k.PersonNo, k.CreatedAt)
	return err
}

// RevokeRoomKey revokes a live key and reports whether it was live.
func (tx *Tx) RevokeRoomKey(id uuid.UUID) (bool, error) {
	res, err := tx.Exec(`UPDATE registration_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`, tx.Now(), id)
	return res.RowsAffected() == 1, err
}

// roomAgentColumns and fromRoomAgents give what roomAgentRow takes. An owner who is disabled is no admin.
const roomAgentColumns = `a.room_agent_no, a.id, a.name, coalesce(a.owner_no, 0), o.id, coalesce(o.name, ''),
	coalesce(o.role = 'admin' AND o.disabled_at IS NULL, 0), coalesce(a.parent_no, 0), coalesce(a.agent_type, ''),
	a.description, coalesce(a.display_name, ''), coalesce(a.icon_url, ''), a.connector_type, a.profile, a.tools, a.models,
	a.metadata, a.policy, a.key_set_at, a.created_at, a.updated_at`

const fromRoomAgents = ` FROM room_agents a LEFT JOIN people o ON o.person_no = a.owner_no`

// roomAgentRow is where an agent's columns are scanned to.
type roomAgentRow struct {
	a                                room.Agent
	owner                            uuid.NullUUID
	profile, tools, models, metadata string
	policy                           *string
}

func (r *roomAgentRow) dest() []any {
	a := &r.a
	return []any{&a.No, &a.ID, &a.Name, &a.OwnerNo, &r.owner, &a.OwnerName, &a.OwnerAdmin, &a.ParentNo, &a.Type,
		&a.Description, &a.DisplayName, &a.IconURL, &a.ConnectorType, &r.profile, &r.tools, &r.models, &r.metadata, &r.policy,
		&a.KeySetAt, &a.CreatedAt, &a.UpdatedAt}
}

func (r *roomAgentRow) agent() (room.Agent, error) {
	a := &r.a
	a.OwnerID = r.owner.UUID
	a.Profile.Commands = identity.NoCommands()
	if err := fromJSON(r.profile, &a.Profile); err != nil {
		return room.Agent{}, err
	}
	a.RawProfile, a.Tools = json.RawMessage(r.profile), json.RawMessage(r.tools)
	a.Models, a.Metadata = json.RawMessage(r.models), json.RawMessage(r.metadata)
	if r.policy != nil {
		p, err := room.ParsePolicy([]byte(*r.policy))
		if err != nil {
			return room.Agent{}, fault.Wrap(fault.Internal, err, "decode the policy of an agent")
		}
		a.Policy = p
	}
	return *a, nil
}

// roomAgent finds one agent; where names the row.
func (r *reader) roomAgent(where string, args ...any) (room.Agent, error) {
	var row roomAgentRow
	err := r.QueryRow(`SELECT `+roomAgentColumns+fromRoomAgents+` WHERE `+where, args...).Scan(row.dest()...)
	if err != nil {
		return room.Agent{}, err
	}
	return row.agent()
}

// RoomAgentByHash finds an agent by the hash of its key, with the hash it is stored under.
func (r *reader) RoomAgentByHash(hash string) (room.Agent, string, error) {
	var row roomAgentRow
	var stored string
	err := r.QueryRow(`SELECT `+roomAgentColumns+`, a.key_hash`+fromRoomAgents+` WHERE a.key_hash = ?`, hash).
		Scan(append(row.dest(), &stored)...)
	if err != nil {
		return room.Agent{}, "", err
	}
	a, err := row.agent()
	return a, stored, err
}

// RoomAgentByID finds an agent.
func (r *reader) RoomAgentByID(id uuid.UUID) (room.Agent, error) { return r.roomAgent(`a.id = ?`, id) }

// RoomAgentByNo finds an agent.
func (r *reader) RoomAgentByNo(no int64) (room.Agent, error) {
	return r.roomAgent(`a.room_agent_no = ?`, no)
}

// RoomAgentByName finds an agent.
func (r *reader) RoomAgentByName(name string) (room.Agent, error) {
	return r.roomAgent(`a.name = ?`, name)
}

// RoomAgents returns at most limit agents by name that match the filter.
func (r *reader) RoomAgents(f identity.AgentFilter, limit int) ([]room.Agent, error) {
	where, args := []string{`a.name > ?`}, []any{f.After}
	if f.Prefix != "" {
		where, args = append(where, `a.name >= ? AND substr(a.name, 1, length(?)) = ?`), append(args, f.Prefix, f.Prefix, f.Prefix)
	}
	if f.OwnerNo != 0 {
		where, args = append(where, `a.owner_no = ?`), append(args, f.OwnerNo)
	}
	return r.roomAgents(strings.Join(where, ` AND `)+` ORDER BY a.name LIMIT ?`, append(args, limit)...)
}

// roomAgents lists the agents of a condition.
func (r *reader) roomAgents(where string, args ...any) ([]room.Agent, error) {
	rows, err := r.Query(`SELECT `+roomAgentColumns+fromRoomAgents+` WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.Agent{}
	for rows.Next() {
		var row roomAgentRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		a, err := row.agent()
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, rows.Err()
}

// RoomsOfAgent returns the rooms that the agent is a member of, by number.
func (r *reader) RoomsOfAgent(agentNo int64) ([]room.Ref, error) {
	rows, err := r.Query(`SELECT r.room_no, r.id, r.name FROM room_members m JOIN rooms r ON r.room_no = m.room_no
		WHERE m.room_agent_no = ? AND r.deleted_at IS NULL ORDER BY m.room_no`, agentNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.Ref{}
	for rows.Next() {
		var ref room.Ref
		if err := rows.Scan(&ref.No, &ref.ID, &ref.Name); err != nil {
			return nil, err
		}
		out = append(out, ref)
	}
	return out, rows.Err()
}

// InsertRoomAgent stores an agent and returns its number.
func (tx *Tx) InsertRoomAgent(a room.Agent, keyHash string) (int64, error) {
	policy, err := jsonOrNull(a.Policy, a.Policy == nil)
	if err != nil {
		return 0, err
	}
	res, err := tx.Exec(`INSERT INTO room_agents (id, name, owner_no, parent_no, agent_type, description, display_name,
		icon_url, connector_type, connection_model, profile, tools, models, metadata, key_hash, policy, key_set_at,
		created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		a.ID, a.Name, roomNoOrNull(a.OwnerNo), roomNoOrNull(a.ParentNo), roomTextOrNull(a.Type), a.Description,
		roomTextOrNull(a.DisplayName), roomTextOrNull(a.IconURL), a.ConnectorType, string(a.Profile.ConnectionModel),
		string(a.RawProfile), string(a.Tools), string(a.Models), string(a.Metadata), keyHash, policy, a.KeySetAt,
		a.CreatedAt, a.UpdatedAt)
	return res.LastInsertID(), err
}

// UpdateRoomAgent stores every changeable field of the agent but its key.
func (tx *Tx) UpdateRoomAgent(a room.Agent) error {
	policy, err := jsonOrNull(a.Policy, a.Policy == nil)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE room_agents SET owner_no = ?, parent_no = ?, agent_type = ?, description = ?, display_name = ?,
		icon_url = ?, connector_type = ?, connection_model = ?, profile = ?, tools = ?, models = ?, metadata = ?, policy = ?,
		updated_at = ? WHERE room_agent_no = ?`,
		roomNoOrNull(a.OwnerNo), roomNoOrNull(a.ParentNo), roomTextOrNull(a.Type), a.Description, roomTextOrNull(a.DisplayName),
		roomTextOrNull(a.IconURL), a.ConnectorType, string(a.Profile.ConnectionModel), string(a.RawProfile), string(a.Tools),
		string(a.Models), string(a.Metadata), policy, a.UpdatedAt, a.No)
	return err
}

// SetRoomAgentKey replaces the key of an agent.
func (tx *Tx) SetRoomAgentKey(agentNo int64, keyHash string) error {
	_, err := tx.Exec(`UPDATE room_agents SET key_hash = ?, key_set_at = ? WHERE room_agent_no = ?`, keyHash, tx.Now(), agentNo)
	return err
}

// DeleteRoomAgent removes the agent and its memberships.
func (tx *Tx) DeleteRoomAgent(agentNo int64) error {
	if _, err := tx.Exec(`DELETE FROM room_members WHERE room_agent_no = ?`, agentNo); err != nil {
		return err
	}
	_, err := tx.Exec(`DELETE FROM room_agents WHERE room_agent_no = ?`, agentNo)
	return err
}

// roomTextOrNull binds the empty text as NULL.
func roomTextOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// roomNoOrNull binds the number 0 as NULL.
func roomNoOrNull(no int64) any {
	if no == 0 {
		return nil
	}
	return no
}
