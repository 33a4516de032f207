package operation

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

// referenceTypes are the types that agents are told of. Others are taken as well.
var referenceTypes = []referenceType{
	{"url", "A web address; value is the URL. Fetch it when you need it."},
	{"repository", "A source repository; value is the URL to clone or open it by."},
	{"path", "A file or directory on the machine where the agents of the room work; value is the path."},
	{"ticket", "An entry in a tracker; value is its key or its URL."},
	{"text", "A piece of text to have at hand; value is the text itself."},
}

type referenceType struct {
	Type        string `json:"type"`
	Description string `json:"description"`
}

// typesOf tells what the types of the references mean, as far as they are known.
func typesOf(list []reference) map[string]string {
	said := map[string]string{}
	for _, f := range list {
		if i := slices.IndexFunc(referenceTypes, func(t referenceType) bool { return t.Type == f.Type }); i >= 0 {
			said[f.Type] = referenceTypes[i].Description
		}
	}
	return said
}

var referenceOperations = []operation{{
	name: "list_references", group: "references",
	description: "List what a room points to outside: addresses, repositories, paths. Returns a list of {id, type, name, " +
		"description, instructions, value}; instructions say how to use it.",
	args:   []arg{{"room_id", text, false, nil, roomHelp}},
	result: "`[{id, type, name, description, instructions, value}]`", run: (*request).listReferences,
}, {
	name: "list_all_references", group: "references",
	description: "List every reference you may use, whichever room it is attached to. Returns a list like " +
		"list_references. Next: attach_reference_to_room.",
	result: "`[{id, type, name, description, instructions, value}]`", run: (*request).listAllReferences,
}, {
	name: "list_reference_types", group: "references",
	description: "List the types of references that have a meaning everybody is told. Returns a list of {type, " +
		"description}. Other types are allowed: say in the instructions what they mean.",
	result: "`[{type, description}]`", run: func(*request) (any, error) { return referenceTypes, nil },
}, {
	name: "create_reference", group: "references",
	description: "Make a reference. It belongs to your owner and is in no room yet. Returns it with its id. Next: " +
		"attach_reference_to_room.",
	args: []arg{
		{"type", text, true, nil, "From list_reference_types, or another word: small letters, digits, . _ -"},
		{"name", text, true, nil, "What to call it."},
		{"value", text, true, nil, "What it points to, such as a URL."},
		{"description", text, false, "", "What is there."},
		{"instructions", text, false, "", "How agents should use it."},
		{"read_visibility", visibilities, false, string(room.Public), "public: everybody may use it; private: your owner."},
		{"write_visibility", visibilities, false, string(room.Private), "public: everybody may change it; private: your " +
			"owner."}},
	result: "`{id, type, name, description, instructions, value}`", run: (*request).createReference,
}, {
	name: "attach_reference_to_room", group: "references",
	description: "Put a reference into a room you may write to, so that its agents see it. Attaching it again changes " +
		"nothing. Returns {room_id, reference_id}.",
	args:   []arg{{"reference_id", text, true, nil, "Id of the reference."}, {"room_id", text, false, nil, roomHelp}},
	result: "`{room_id, reference_id}`", run: (*request).attachReference,
}}

type reference struct {
	ID           uuid.UUID `json:"id"`
	Type         string    `json:"type"`
	Name         string    `json:"name"`
	Description  string    `json:"description"`
	Instructions string    `json:"instructions"`
	Value        string    `json:"value"`
}

func shownReference(f directory.Reference) reference {
	return reference{f.ID, f.Type, f.Name, f.Description, f.Instructions, f.Value}
}

func shownReferences(list []directory.Reference) []reference {
	out := make([]reference, len(list))
	for i, f := range list {
		out[i] = shownReference(f)
	}
	return out
}

func (r *request) references(id uuid.UUID) ([]reference, error) {
	list, err := r.svc.Directory.ReferencesOf(r.ctx, r.actor, id)
	return shownReferences(list), err
}

func (r *request) listReferences() (any, error) {
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	return r.references(id)
}

func (r *request) listAllReferences() (any, error) {
	list, err := r.svc.Directory.References(r.ctx, r.actor)
	return shownReferences(list), err
}

func (r *request) createReference() (any, error) {
	f, err := r.svc.Directory.CreateReference(r.ctx, r.actor, directory.NewReference{Type: r.text("type"), Name: r.text("name"),
		Description: r.text("description"), Instructions: r.text("instructions"), Value: r.text("value"),
		ReadVisibility: room.Visibility(r.text("read_visibility")), WriteVisibility: room.Visibility(r.text("write_visibility"))})
	return shownReference(f), err
}

type attachedReference struct {
	RoomID      uuid.UUID `json:"room_id"`
	ReferenceID uuid.UUID `json:"reference_id"`
}

func (r *request) attachReference() (any, error) {
	ref, err := r.id("reference_id")
	if err != nil {
		return nil, err
	}
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	return attachedReference{id, ref}, r.svc.Directory.Attach(r.ctx, r.actor, id, ref)
}

const documentHelp = "Id of the document, from connect_to_room or load_internal_documents."

var documentOperations = []operation{{
	name: "load_internal_documents", group: "documents", bound: true,
	description: "Read documents of the room you are connected to. Returns a list of {id, name, description, " +
		"instructions, scope, created_by_agent_id, size, content}. At most 4 MiB of content comes at once: where content " +
		"is null, ask for that document by its id.",
	args:   []arg{{"document_ids", names, false, nil, "Which documents. Leave out for all that you may see."}},
	result: "`[{id, name, description, instructions, scope, created_by_agent_id, size, content}]`", run: (*request).loadDocuments,
}, {
	name: "create_room_document", group: "documents", bound: true,
	description: "Keep a text of up to 1 MiB in the room you are connected to, such as notes or a plan. Returns it " +
		"without its content. With scope agent only you see it.",
	args: []arg{
		{"name", text, true, nil, "What to call it."},
		{"content", text, true, nil, "The text."},
		{"description", text, false, "", "What is in it."},
		{"instructions", text, false, "", "How agents should use it."},
		{"scope", oneOf(string(directory.ScopeRoom), string(directory.ScopeAgent)), false, string(directory.ScopeRoom),
			"room: for everybody in the room; agent: for you alone."}},
	result: "`{id, name, description, instructions, scope, created_by_agent_id, size}`", run: (*request).createDocument,
}, {
	name: "update_room_document", group: "documents",
	description: "Change a document that you made, or any in a room you may write to. Only what you give is changed; " +
		"content replaces the whole text. Returns it without its content.",
	args: []arg{
		{"document_id", text, true, nil, documentHelp},
		{"name", text, false, nil, "New name."},
		{"content", text, false, nil, "The whole new text."},
		{"description", text, false, nil, "New description."},
		{"instructions", text, false, nil, "New instructions."}},
	result: "`{id, name, description, instructions, scope, created_by_agent_id, size}`", run: (*request).updateDocument,
}, {
	name: "delete_room_document", group: "documents",
	description: "Remove a document that you made, or any in a room you may write to. Returns {document_id, deleted}.",
	args:        []arg{{"document_id", text, true, nil, documentHelp}},
	result:      "`{document_id, deleted: true}`", run: (*request).deleteDocument,
}}

type document struct {
	ID           uuid.UUID       `json:"id"`
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	Instructions string          `json:"instructions"`
	Scope        directory.Scope `json:"scope"`
	CreatedBy    *string         `json:"created_by_agent_id"`
	Size         int             `json:"size"`
}

type loadedDocument struct {
	document
	Content *string `json:"content"`
}

func shownDocument(d directory.Document) document {
	return document{d.ID, d.Name, d.Description, d.Instructions, d.Scope, idOrNull(d.CreatedBy), d.Size}
}

func (r *request) documents(id uuid.UUID) ([]document, error) {
	list, err := r.svc.Directory.Documents(r.ctx, r.actor, id)
	out := make([]document, len(list))
	for i, d := range list {
		out[i] = shownDocument(d)
	}
	return out, err
}

func (r *request) loadDocuments() (any, error) {
	list, err := r.documents(r.room.ID)
	if err != nil {
		return nil, err
	}
	if wanted := given[[]string](r, "document_ids"); wanted != nil {
		if list, err = chosen(list, *wanted); err != nil {
			return nil, err
		}
	}
	out, left := make([]loadedDocument, len(list)), r.loadBytes
	for i, d := range list {
		out[i].document = d
		if d.Size > left {
			continue
		}
		doc, err := r.svc.Directory.Document(r.ctx, r.actor, d.ID)
		if err != nil {
			return nil, err
		}
		left -= doc.Size
		out[i] = loadedDocument{shownDocument(doc), &doc.Content}
	}
	return out, nil
}

// chosen picks documents of the list by id, in the order asked for, each once.
func chosen(list []document, wanted []string) (out []document, err error) {
	for _, s := range wanted {
		id, err := parseID("document_ids", s)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(d document) bool { return d.ID == id }) {
			continue
		}
		i := slices.IndexFunc(list, func(d document) bool { return d.ID == id })
		if i < 0 {
			return nil, fault.Field("document_ids", "there is no document %s in this room", id)
		}
		out = append(out, list[i])
	}
	return out, nil
}

func (r *request) createDocument() (any, error) {
	d, err := r.svc.Directory.CreateDocument(r.ctx, r.actor, r.room.ID, directory.NewDocument{Name: r.text("name"),
		Description: r.text("description"), Instructions: r.text("instructions"), Scope: directory.Scope(r.text("scope")),
		Content: r.text("content")})
	return shownDocument(d), err
}

func (r *request) updateDocument() (any, error) {
	id, err := r.id("document_id")
	if err != nil {
		return nil, err
	}
	d, err := r.svc.Directory.UpdateDocument(r.ctx, r.actor, id, directory.DocumentChange{Name: given[string](r, "name"),
		Description: given[string](r, "description"), Instructions: given[string](r, "instructions"),
		Content: given[string](r, "content")})
	return shownDocument(d), err
}

type deletedDocument struct {
	ID      uuid.UUID `json:"document_id"`
	Deleted bool      `json:"deleted"`
}

func (r *request) deleteDocument() (any, error) {
	id, err := r.id("document_id")
	if err != nil {
		return nil, err
	}
	return deletedDocument{id, true}, r.svc.Directory.DeleteDocument(r.ctx, r.actor, id)
}
