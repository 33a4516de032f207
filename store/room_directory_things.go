package store

import (
	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

const dirRoleColumns = `room_role_no, room_no, name, exclusive, instructions, created_at, updated_at`

func dirRoleDest(r *room.RoleDef) []any {
	return []any{&r.No, &r.RoomNo, &r.Name, &r.Exclusive, &r.Instructions, &r.CreatedAt, &r.UpdatedAt}
}

// DirRole finds a role by name, case aside.
func (r *reader) DirRole(roomNo int64, name string) (role room.RoleDef, err error) {
	err = r.QueryRow(`SELECT `+dirRoleColumns+` FROM room_roles WHERE room_no = ? AND name = ?`, roomNo, name).
		Scan(dirRoleDest(&role)...)
	return role, err
}

// DirRoles returns the roles of the room by name.
func (r *reader) DirRoles(roomNo int64) ([]room.RoleDef, error) {
	rows, err := r.Query(`SELECT `+dirRoleColumns+` FROM room_roles WHERE room_no = ? ORDER BY name`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.RoleDef{}
	for rows.Next() {
		var role room.RoleDef
		if err := rows.Scan(dirRoleDest(&role)...); err != nil {
			return nil, err
		}
		out = append(out, role)
	}
	return out, rows.Err()
}

// DirInsertRole stores a role.
func (tx *Tx) DirInsertRole(r room.RoleDef) error {
	_, err := tx.Exec(`INSERT INTO room_roles (room_no, name, exclusive, instructions, created_at, updated_at)
		VALUES (?,?,?,?,?,?)`, r.RoomNo, r.Name, r.Exclusive, r.Instructions, r.CreatedAt, r.UpdatedAt)
	return err
}

// DirUpdateRole stores every changeable field of the role.
func (tx *Tx) DirUpdateRole(r room.RoleDef) error {
	_, err := tx.Exec(`UPDATE room_roles SET name = ?, exclusive = ?, instructions = ?, updated_at = ? WHERE room_role_no = ?`,
		r.Name, r.Exclusive, r.Instructions, r.UpdatedAt, r.No)
	return err
}

// DirDeleteRole removes a role.
func (tx *Tx) DirDeleteRole(roleNo int64) error {
	_, err := tx.Exec(`DELETE FROM room_roles WHERE room_role_no = ?`, roleNo)
	return err
}

// DirLinks returns the links from the room by the target's name, without those to deleted rooms.
func (r *reader) DirLinks(roomNo int64) ([]directory.Link, error) {
	rows, err := r.Query(`SELECT s.room_no, s.id, s.name, l.label, l.created_at, `+dirRoomColumns+`
		FROM room_links l JOIN rooms s ON s.room_no = l.room_no JOIN rooms r ON r.room_no = l.target_room_no`+dirRoomJoins+`
		WHERE l.room_no = ? AND r.deleted_at IS NULL ORDER BY r.name, r.room_no`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []directory.Link{}
	for rows.Next() {
		var l directory.Link
		var target dirRoomRow
		dest := append([]any{&l.Room.No, &l.Room.ID, &l.Room.Name, &l.Label, &l.CreatedAt}, target.dest()...)
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		l.Target = target.room()
		out = append(out, l)
	}
	return out, rows.Err()
}

// DirSetLink stores a link or its new label.
func (tx *Tx) DirSetLink(roomNo, targetNo int64, label string) error {
	_, err := tx.Exec(`INSERT INTO room_links (room_no, target_room_no, label, created_at) VALUES (?,?,?,?)
		ON CONFLICT (room_no, target_room_no) DO UPDATE SET label = excluded.label`, roomNo, targetNo, label, tx.Now())
	return err
}

// DirDeleteLink removes a link and reports whether there was one.
func (tx *Tx) DirDeleteLink(roomNo, targetNo int64) (bool, error) {
	res, err := tx.Exec(`DELETE FROM room_links WHERE room_no = ? AND target_room_no = ?`, roomNo, targetNo)
	return res.RowsAffected() > 0, err
}

const dirReferenceColumns = `f.room_reference_no, f.id, f.type, f.name, f.description, f.instructions, f.value,
	coalesce(f.owner_no, 0), f.read_visibility, f.write_visibility, f.created_at, f.updated_at`

func dirReferenceDest(f *directory.Reference) []any {
	return []any{&f.No, &f.ID, &f.Type, &f.Name, &f.Description, &f.Instructions, &f.Value, &f.OwnerNo, &f.ReadVisibility,
		&f.WriteVisibility, &f.CreatedAt, &f.UpdatedAt}
}

// DirReference finds a reference.
func (r *reader) DirReference(id uuid.UUID) (f directory.Reference, err error) {
	err = r.QueryRow(`SELECT `+dirReferenceColumns+` FROM room_references f WHERE f.id = ?`, id).Scan(dirReferenceDest(&f)...)
	return f, err
}

// DirReferences returns references by name: those that the actor may read, or those attached to the room when roomNo is
// not 0.
func (r *reader) DirReferences(roomNo int64, by room.Actor) ([]directory.Reference, error) {
	rows, err := r.Query(`SELECT `+dirReferenceColumns+` FROM room_references f
		WHERE CASE WHEN ?1 <> 0 THEN EXISTS (SELECT 1 FROM room_reference_uses u
				WHERE u.room_no = ?1 AND u.room_reference_no = f.room_reference_no)
			ELSE ?2 OR f.read_visibility = 'public' OR f.owner_no = ?3 END
		ORDER BY f.name, f.room_reference_no`, roomNo, by.Admin, by.OwnerNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []directory.Reference{}
	for rows.Next() {
		var f directory.Reference
		if err := rows.Scan(dirReferenceDest(&f)...); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// DirInsertReference stores a reference and returns its number.
func (tx *Tx) DirInsertReference(f directory.Reference) (int64, error) {
	res, err := tx.Exec(`INSERT INTO room_references (id, type, name, description, instructions, value, owner_no,
		read_visibility, write_visibility, created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?)`,
		f.ID, f.Type, f.Name, f.Description, f.Instructions, f.Value, dirNoOrNull(f.OwnerNo), string(f.ReadVisibility),
		string(f.WriteVisibility), f.CreatedAt, f.UpdatedAt)
	return res.LastInsertID(), err
}

// DirUpdateReference stores the texts of the reference.
func (tx *Tx) DirUpdateReference(f directory.Reference) error {
	_, err := tx.Exec(`UPDATE room_references SET type = ?, name = ?, description = ?, instructions = ?, value = ?, updated_at = ?
		WHERE room_reference_no = ?`, f.Type, f.Name, f.Description, f.Instructions, f.Value, f.UpdatedAt, f.No)
	return err
}

// DirDeleteReference removes a reference from everywhere.
func (tx *Tx) DirDeleteReference(no int64) error {
	if _, err := tx.Exec(`DELETE FROM room_reference_uses WHERE room_reference_no = ?`, no); err != nil {
		return err
	}
	_, err := tx.Exec(`DELETE FROM room_references WHERE room_reference_no = ?`, no)
	return err
}

// DirAttach attaches a reference; twice is once.
func (tx *Tx) DirAttach(roomNo, referenceNo int64) error {
	_, err := tx.Exec(`INSERT INTO room_reference_uses (room_no, room_reference_no) VALUES (?,?) ON CONFLICT DO NOTHING`,
		roomNo, referenceNo)
	return err
}

// DirDetach reports whether the reference was attached.
func (tx *Tx) DirDetach(roomNo, referenceNo int64) (bool, error) {
	res, err := tx.Exec(`DELETE FROM room_reference_uses WHERE room_no = ? AND room_reference_no = ?`, roomNo, referenceNo)
	return res.RowsAffected() > 0, err
}

const dirDocumentColumns = `d.room_document_no, d.id, r.room_no, r.id, r.name, d.name, d.description, d.instructions, d.scope,
	length(CAST(d.content AS BLOB)), d.created_by, d.created_at, d.updated_at`

const fromDirDocuments = ` FROM room_documents d JOIN rooms r ON r.room_no = d.room_no`

func scanDirDocument(scan func(...any) error) (d directory.Document, err error) {
	var by uuid.NullUUID
	err = scan(&d.No, &d.ID, &d.Room.No, &d.Room.ID, &d.Room.Name, &d.Name, &d.Description, &d.Instructions, &d.Scope, &d.Size,
		&by, &d.CreatedAt, &d.UpdatedAt, &d.Content)
	d.CreatedBy = by.UUID
	return d, err
}

// DirDocument finds a document.
func (r *reader) DirDocument(id uuid.UUID) (directory.Document, error) {
	return scanDirDocument(r.QueryRow(`SELECT `+dirDocumentColumns+`, d.content`+fromDirDocuments+
		` WHERE d.id = ? AND r.deleted_at IS NULL`, id).Scan)
}

// DirDocuments returns the documents of the room without their content, oldest first.
func (r *reader) DirDocuments(roomNo int64) ([]directory.Document, error) {
	rows, err := r.Query(`SELECT `+dirDocumentColumns+`, ''`+fromDirDocuments+` WHERE d.room_no = ?
		ORDER BY d.room_document_no`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []directory.Document{}
	for rows.Next() {
		d, err := scanDirDocument(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, rows.Err()
}

// DirCountDocuments counts the documents of the room.
func (r *reader) DirCountDocuments(roomNo int64) (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM room_documents WHERE room_no = ?`, roomNo).Scan(&n)
	return n, err
}

// DirInsertDocument stores a document.
func (tx *Tx) DirInsertDocument(d directory.Document) error {
	_, err := tx.Exec(`INSERT INTO room_documents (id, room_no, name, description, instructions, scope, content, created_by,
		created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?)`,
		d.ID, d.Room.No, d.Name, d.Description, d.Instructions, string(d.Scope), d.Content,
		uuid.NullUUID{UUID: d.CreatedBy, Valid: d.CreatedBy != uuid.Nil}, d.CreatedAt, d.UpdatedAt)
	return err
}

// DirUpdateDocument stores the texts of the document.
func (tx *Tx) DirUpdateDocument(d directory.Document) error {
	_, err := tx.Exec(`UPDATE room_documents SET name = ?, description = ?, instructions = ?, content = ?, updated_at = ?
		WHERE room_document_no = ?`, d.Name, d.Description, d.Instructions, d.Content, d.UpdatedAt, d.No)
	return err
}

// DirDeleteDocument removes a document.
func (tx *Tx) DirDeleteDocument(no int64) error {
	_, err := tx.Exec(`DELETE FROM room_documents WHERE room_document_no = ?`, no)
	return err
}
