package directory

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// maxDocuments bounds the documents of one room.
const maxDocuments = 1000

// NewDocument is what CreateDocument makes a document of.
type NewDocument struct {
	Name                      string
	Description, Instructions string
	Scope                     Scope // "": room
	Content                   string
}

// DocumentChange is what UpdateDocument changes; nil leaves a field as it is.
type DocumentChange struct {
	Name, Description, Instructions, Content *string
}

func checkDocument(doc Document) error {
	if err := checkName("name", doc.Name); err != nil {
		return err
	}
	if err := checkText("description", doc.Description, 0, maxDescription); err != nil {
		return err
	}
	if err := checkText("instructions", doc.Instructions, 0, maxInstructions); err != nil {
		return err
	}
	if !utf8.ValidString(doc.Content) || strings.ContainsRune(doc.Content, 0) {
		return fault.Field("content", "must be valid UTF-8 text without NUL")
	}
	if len(doc.Content) > MaxDocument {
		return fault.Field("content", "must have at most %d bytes", MaxDocument)
	}
	return nil
}

// CreateDocument puts a text into a room. Who is in the room may, and who may write to it. A document of scope agent is
// made by an agent, for itself.
func (d *Directory) CreateDocument(ctx context.Context, by room.Actor, id uuid.UUID, n NewDocument) (doc Document, err error) {
	doc = Document{Name: n.Name, Description: n.Description, Instructions: n.Instructions, Scope: n.Scope, Content: n.Content,
		Size: len(n.Content)}
	if doc.Scope == "" {
		doc.Scope = ScopeRoom
	}
	if doc.Scope != ScopeRoom && doc.Scope != ScopeAgent {
		return Document{}, fault.Field("scope", "must be room or agent")
	}
	if by.Kind == room.KindAgent {
		doc.CreatedBy = by.ID
	} else if doc.Scope == ScopeAgent {
		return Document{}, fault.Field("scope", "agent is for the document of an agent; a person's is for the room")
	}
	if err := checkDocument(doc); err != nil {
		return Document{}, err
	}
	if doc.ID, err = newID(); err != nil {
		return Document{}, err
	}
	err = d.st.Update(ctx, "create room document", func(tx Tx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		if err := inOrWriter(tx, by, r); err != nil {
			return err
		}
		count, err := tx.DirCountDocuments(r.No)
		if err != nil {
			return err
		}
		if count >= maxDocuments {
			return fault.New(fault.Conflict, "room %q has %d documents, which is the most there may be", r.Name, count)
		}
		doc.Room, doc.CreatedAt, doc.UpdatedAt = r.Ref(), tx.Now(), tx.Now()
		if err := tx.DirInsertDocument(doc); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.document_created", "room", id, map[string]any{"document": doc.Name,
			"document_id": doc.ID.String(), "bytes": doc.Size})
	})
	if err != nil {
		return Document{}, err
	}
	return doc, nil
}

func inOrWriter(tx ReadTx, by room.Actor, r room.Room) error {
	ok, err := memberOf(tx, by, r.No)
	if err == nil && !ok {
		ok, err = mayWrite(tx, by, r)
	}
	if err == nil && !ok {
		err = fault.New(fault.Forbidden, "only who is in room %q or may change it may do this", r.Name)
	}
	return err
}

// UpdateDocument changes a document: the agent that made it may, and who may write to the room.
func (d *Directory) UpdateDocument(ctx context.Context, by room.Actor, id uuid.UUID, c DocumentChange) (doc Document, err error) {
	err = d.st.Update(ctx, "update room document", func(tx Tx) error {
		if doc, err = ownDocument(tx, by, id); err != nil {
			return err
		}
		for _, f := range []struct{ from, to *string }{{c.Name, &doc.Name}, {c.Description, &doc.Description},
			{c.Instructions, &doc.Instructions}, {c.Content, &doc.Content}} {
			if f.from != nil {
				*f.to = *f.from
			}
		}
		if err := checkDocument(doc); err != nil {
			return err
		}
		doc.Size, doc.UpdatedAt = len(doc.Content), tx.Now()
		if err := tx.DirUpdateDocument(doc); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.document_updated", "room", doc.Room.ID, map[string]any{"document": doc.Name,
			"document_id": id.String(), "bytes": doc.Size})
	})
	if err != nil {
		return Document{}, err
	}
	return doc, nil
}

// DeleteDocument removes a document; who may change it may.
func (d *Directory) DeleteDocument(ctx context.Context, by room.Actor, id uuid.UUID) error {
	return d.st.Update(ctx, "delete room document", func(tx Tx) error {
		doc, err := ownDocument(tx, by, id)
		if err != nil {
			return err
		}
		if err := tx.DirDeleteDocument(doc.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.document_deleted", "room", doc.Room.ID, map[string]any{"document": doc.Name,
			"document_id": id.String()})
	})
}

// ownDocument finds a document that the actor may change.
func ownDocument(tx ReadTx, by room.Actor, id uuid.UUID) (Document, error) {
	doc, err := tx.DirDocument(id)
	if err != nil {
		return doc, named(err, "document %s", id)
	}
	r, err := roomFor(tx, doc.Room.ID)
	if err != nil {
		return doc, err
	}
	maker := by.Kind == room.KindAgent && by.ID == doc.CreatedBy
	in, err := memberOf(tx, by, r.No)
	if err != nil || maker && in {
		return doc, err
	}
	may, err := mayWrite(tx, by, r)
	if err != nil {
		return doc, err
	}
	if !doc.shownTo(by, may) && by.Kind == room.KindAgent {
		return doc, fault.New(fault.NotFound, "document %s not found", id) // as if it were not there, as in lists
	}
	if !may {
		err = fault.New(fault.Forbidden,
			"document %q may be changed only by the agent that made it, and by who may change its room", doc.Name)
	}
	return doc, err
}

// Documents returns the documents of a room that the actor may read or is in, without their content, oldest first.
// Another agent's own documents are left out.
func (d *Directory) Documents(ctx context.Context, by room.Actor, id uuid.UUID) (list []Document, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := readable(tx, by, id)
		if err != nil {
			return err
		}
		all, err := tx.DirDocuments(r.No)
		if err != nil {
			return err
		}
		may, err := mayWrite(tx, by, r)
		if err != nil {
			return err
		}
		list = all[:0]
		for _, doc := range all {
			if doc.shownTo(by, may) {
				list = append(list, doc)
			}
		}
		return nil
	})
	return list, err
}

// Document finds a document that Documents would list, with its content.
func (d *Directory) Document(ctx context.Context, by room.Actor, id uuid.UUID) (doc Document, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		if doc, err = tx.DirDocument(id); err != nil {
			return named(err, "document %s", id)
		}
		r, err := readable(tx, by, doc.Room.ID)
		if err != nil {
			return err
		}
		may, err := mayWrite(tx, by, r)
		if err == nil && !doc.shownTo(by, may) {
			err = fault.New(fault.NotFound, "document %s not found", id)
		}
		return err
	})
	if err != nil {
		return Document{}, err
	}
	return doc, nil
}

// shownTo tells whether the actor sees a document of a room that it may read: an agent's own only that agent, and people
// who may write to the room.
func (doc Document) shownTo(by room.Actor, mayWrite bool) bool {
	own := by.Kind == room.KindAgent && doc.CreatedBy == by.ID
	return doc.Scope == ScopeRoom || own || by.Kind != room.KindAgent && mayWrite
}
