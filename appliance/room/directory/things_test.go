package directory_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox")
	before := made.CastRevision
	role, err := r.DefineRole(r.ctx(), r.foxs, made.ID, directory.NewRole{Name: "Lead", Exclusive: true, Instructions: "lead"})
	if err != nil || role.No == 0 || !role.Exclusive {
		t.Fatalf("define: %+v %v", role, err)
	}
	if got, _ := r.Room(r.ctx(), r.admin, made.ID); got.CastRevision == before {
		t.Error("a new role did not change the cast")
	}
	r.connect(r.fox, "c1", made.ID)
	r.ok("assume", r.conns.AssumeRole(r.fox.No, "c1", made.ID, role.Name, true))
	got, err := r.EditRole(r.ctx(), r.ann.Actor(), made.ID, "lead", directory.RoleChange{Instructions: p("on"), Exclusive: p(false)})
	if err != nil || got.Instructions != "on" || got.Exclusive || got.Name != "Lead" {
		t.Errorf("edit: %+v %v", got, err)
	}
	if held := r.conns.RoleHolders(made.No); held[r.fox.No] != "Lead" {
		t.Errorf("an edit that is no rename ended a lease: %v", held)
	}
	_, err = r.EditRole(r.ctx(), r.ann.Actor(), made.ID, "lead", directory.RoleChange{Name: p("boss")})
	r.ok("rename", err)
	if held := r.conns.RoleHolders(made.No); len(held) != 0 {
		t.Errorf("held after a rename: %v", held)
	}
	r.ok("assume", r.conns.AssumeRole(r.fox.No, "c1", made.ID, "boss", false))
	r.unchanged("refusals", func() {
		for name, words := range map[string]string{"BOSS": "there already", "": "name", "a b": "white space", "everyone": "everyone"} {
			_, err := r.DefineRole(r.ctx(), r.ann.Actor(), made.ID, directory.NewRole{Name: name})
			r.wants("define "+name, err, fault.CodeOf(err), words)
			if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Conflict {
				t.Errorf("define %q: %v", name, err)
			}
		}
		_, err := r.EditRole(r.ctx(), r.ann.Actor(), made.ID, "nothing", directory.RoleChange{})
		r.wants("edit", err, fault.NotFound, `role "nothing"`)
		r.wants("delete", r.DeleteRole(r.ctx(), r.ann.Actor(), made.ID, "nothing"), fault.NotFound, `role "nothing"`)
		_, err = r.EditRole(r.ctx(), r.ann.Actor(), made.ID, "boss", directory.RoleChange{Name: p("boss")})
		r.ok("edit to the same", err)
	})
	r.ok("delete", r.DeleteRole(r.ctx(), r.ann.Actor(), made.ID, "Boss"))
	if held := r.conns.RoleHolders(made.No); len(held) != 0 {
		t.Errorf("held after the delete: %v", held)
	}
	if roles, err := r.Roles(r.ctx(), made.ID); err != nil || len(roles) != 0 {
		t.Errorf("roles %v %v", roles, err)
	}
	shut := r.private("shut")
	r.unchanged("a stranger", func() {
		_, err := r.DefineRole(r.ctx(), r.owls, shut.ID, directory.NewRole{Name: "x"})
		r.wants("define", err, fault.Forbidden, "shut")
		r.wants("delete", r.DeleteRole(r.ctx(), r.owls, shut.ID, "x"), fault.Forbidden, "shut")
	})
}

func TestLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	den, open, shut := r.room("den", "fox", "owl"), r.room("open", "owl"), r.private("shut")
	r.ok("link", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: open.ID, Label: "a"}))
	r.ok("relabel", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: open.ID, Label: "b"}))
	r.ok("link", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: shut.ID}))
	links, err := r.Links(r.ctx(), r.owls, den.ID)
	r.ok("links", err)
	if len(links) != 2 || links[0].Label != "b" || !links[0].Member || links[1].Member || links[1].Readable {
		t.Errorf("links as owl sees them: %+v", links)
	}
	r.unchanged("refusals", func() {
		r.wants("self", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: den.ID}), fault.Invalid, "itself")
		r.wants("unread", r.Link(r.ctx(), r.owls, den.ID, directory.NewLink{Target: shut.ID}), fault.Forbidden, "target_room_id")
		r.wants("unwritable", r.Link(r.ctx(), r.owls, shut.ID, directory.NewLink{Target: den.ID}), fault.Forbidden, "shut")
		r.wants("unknown", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: uuid.New()}), fault.Invalid, "target_room_id")
		r.wants("long", r.Link(r.ctx(), r.ann.Actor(), den.ID, directory.NewLink{Target: open.ID, Label: strings.Repeat("x", 201)}), fault.Invalid, "label")
		r.wants("no link", r.Unlink(r.ctx(), r.ann.Actor(), open.ID, den.ID), fault.NotFound, "no link")
	})
	r.ok("unlink", r.Unlink(r.ctx(), r.ann.Actor(), den.ID, open.ID))
	if links, err = r.Links(r.ctx(), r.ann.Actor(), den.ID); err != nil || len(links) != 1 {
		t.Errorf("links %v %v", links, err)
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	den := r.room("den", "owl")
	ref, err := r.CreateReference(r.ctx(), r.foxs, directory.NewReference{Type: "url", Name: "wiki", Value: "https://wiki",
		ReadVisibility: room.Private, WriteVisibility: room.Private})
	r.ok("create", err)
	if ref.OwnerNo != r.ann.No {
		t.Errorf("owner %d", ref.OwnerNo)
	}
	r.ok("attach", r.Attach(r.ctx(), r.ann.Actor(), den.ID, ref.ID))
	r.ok("attach twice", r.Attach(r.ctx(), r.ann.Actor(), den.ID, ref.ID))
	if list, err := r.ReferencesOf(r.ctx(), r.owls, den.ID); err != nil || len(list) != 1 {
		t.Errorf("what a room holds is for who is in it: %v %v", list, err)
	}
	if list, err := r.References(r.ctx(), r.owls); err != nil || len(list) != 0 {
		t.Errorf("a stranger lists %v %v", list, err)
	}
	got, err := r.UpdateReference(r.ctx(), r.ann.Actor(), ref.ID, directory.ReferenceChange{Value: p("https://new")})
	if err != nil || got.Value != "https://new" || got.Name != "wiki" {
		t.Errorf("update: %+v %v", got, err)
	}
	r.unchanged("refusals", func() {
		for words, n := range map[string]directory.NewReference{"type": {Type: "A b", Name: "x", Value: "y"}, "name": {Type: "url", Value: "y"},
			"value": {Type: "url", Name: "x"}, "write_visibility": {Type: "url", Name: "x", Value: "y", ReadVisibility: room.Private, WriteVisibility: room.Public}} {
			_, err := r.CreateReference(r.ctx(), r.ann.Actor(), n)
			r.wants(words, err, fault.Invalid, words)
		}
		_, err := r.CreateReference(r.ctx(), r.loner.Actor(), directory.NewReference{Type: "url", Name: "x", Value: "y", WriteVisibility: room.Private})
		r.wants("private of nobody", err, fault.Invalid, "write_visibility")
		_, err = r.Reference(r.ctx(), r.owls, ref.ID)
		r.wants("read", err, fault.Forbidden, "private")
		r.wants("attach", r.Attach(r.ctx(), r.owls, den.ID, ref.ID), fault.Forbidden, "private")
		_, err = r.UpdateReference(r.ctx(), r.owls, ref.ID, directory.ReferenceChange{Value: p("x")})
		r.wants("update", err, fault.Forbidden, "wiki")
		r.wants("delete", r.DeleteReference(r.ctx(), r.owls, ref.ID), fault.Forbidden, "wiki")
		r.wants("unknown", r.Attach(r.ctx(), r.ann.Actor(), den.ID, uuid.New()), fault.NotFound, "reference")
	})
	r.ok("detach", r.Detach(r.ctx(), r.ann.Actor(), den.ID, ref.ID))
	r.wants("detach again", r.Detach(r.ctx(), r.ann.Actor(), den.ID, ref.ID), fault.NotFound, "not attached")
	r.ok("attach", r.Attach(r.ctx(), r.ann.Actor(), den.ID, ref.ID))
	r.ok("delete", r.DeleteReference(r.ctx(), r.ann.Actor(), ref.ID))
	if list, err := r.ReferencesOf(r.ctx(), r.owls, den.ID); err != nil || len(list) != 0 {
		t.Errorf("after the delete %v %v", list, err)
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shut := r.private("shut", "fox", "owl")
	whole := strings.Repeat("é", 1<<19) // exactly 1 MiB
	doc, err := r.CreateDocument(r.ctx(), r.owls, shut.ID, directory.NewDocument{Name: "notes", Content: whole})
	r.ok("create by a member", err)
	own, err := r.CreateDocument(r.ctx(), r.owls, shut.ID, directory.NewDocument{Name: "mine", Content: "m", Scope: directory.ScopeAgent})
	r.ok("create own", err)
	peoples, err := r.CreateDocument(r.ctx(), r.ann.Actor(), shut.ID, directory.NewDocument{Name: "rules", Content: "r"})
	r.ok("create by a person", err)
	for name, c := range map[string]struct {
		by   room.Actor
		want []string
	}{"its maker": {r.owls, []string{"notes", "mine", "rules"}}, "another agent": {r.foxs, []string{"notes", "rules"}},
		"a person who may write": {r.ann.Actor(), []string{"notes", "mine", "rules"}}} {
		list, err := r.Documents(r.ctx(), c.by, shut.ID)
		r.ok("list", err)
		var names []string
		for _, d := range list {
			names = append(names, d.Name)
			if d.Content != "" || d.Size == 0 {
				t.Errorf("a list holds %d bytes of content, size %d", len(d.Content), d.Size)
			}
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("%s sees %v, want %v", name, names, c.want)
		}
	}
	if got, err := r.Document(r.ctx(), r.foxs, doc.ID); err != nil || got.Content != whole || got.CreatedBy != r.owl.ID || got.Room.ID != shut.ID {
		t.Errorf("read: %v", err)
	}
	got, err := r.UpdateDocument(r.ctx(), r.owls, doc.ID, directory.DocumentChange{Content: p("short"), Name: p("note")})
	if err != nil || got.Content != "short" || got.Size != 5 || got.Name != "note" {
		t.Errorf("update: %+v %v", got, err)
	}
	r.unchanged("refusals", func() {
		_, err := r.CreateDocument(r.ctx(), r.owls, shut.ID, directory.NewDocument{Name: "big", Content: whole + "x"})
		r.wants("over 1 MiB", err, fault.Invalid, "content")
		_, err = r.UpdateDocument(r.ctx(), r.owls, doc.ID, directory.DocumentChange{Content: p(whole + "x")})
		r.wants("update over 1 MiB", err, fault.Invalid, "content")
		_, err = r.CreateDocument(r.ctx(), r.owls, shut.ID, directory.NewDocument{Name: "x", Content: "a\xff"})
		r.wants("no UTF-8", err, fault.Invalid, "content")
		_, err = r.CreateDocument(r.ctx(), r.owls, shut.ID, directory.NewDocument{Name: "x", Scope: "world"})
		r.wants("scope", err, fault.Invalid, "scope")
		_, err = r.CreateDocument(r.ctx(), r.ann.Actor(), shut.ID, directory.NewDocument{Name: "x", Scope: directory.ScopeAgent})
		r.wants("a person's own", err, fault.Invalid, "scope")
		_, err = r.CreateDocument(r.ctx(), r.loner.Actor(), shut.ID, directory.NewDocument{Name: "x"})
		r.wants("a stranger", err, fault.Forbidden, "shut")
		_, err = r.UpdateDocument(r.ctx(), r.owls, peoples.ID, directory.DocumentChange{Name: p("x")})
		r.wants("not its maker", err, fault.Forbidden, "rules")
		_, err = r.Document(r.ctx(), r.foxs, own.ID)
		r.wants("another's own", err, fault.NotFound, "document")
		r.wants("delete another's own", r.DeleteDocument(r.ctx(), r.foxs, own.ID), fault.NotFound, "document")
		r.wants("unknown", r.DeleteDocument(r.ctx(), r.foxs, uuid.New()), fault.NotFound, "document")
	})
	r.ok("delete by the owner of the room", r.DeleteDocument(r.ctx(), r.ann.Actor(), own.ID))
	r.ok("remove", r.Remove(r.ctx(), r.ann.Actor(), shut.ID, r.owl.ID))
	_, err = r.UpdateDocument(r.ctx(), r.owls, doc.ID, directory.DocumentChange{Name: p("x")})
	r.wants("the maker that left", err, fault.Forbidden, "note")
}

func TestGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g, err := r.CreateGroup(r.ctx(), r.foxs, "forest", "d")
	r.ok("create", err)
	shut := r.private("shut")
	_, err = r.Update(r.ctx(), r.ann.Actor(), shut.ID, directory.RoomChange{Group: p(g.ID.String())})
	r.ok("put in", err)
	for by, want := range map[*room.Actor]int{p(r.ann.Actor()): 1, &r.owls: 0} {
		got, rooms, err := r.Group(r.ctx(), *by, "forest")
		if err != nil || got.ID != g.ID || len(rooms) != want {
			t.Errorf("%s sees %v %v %v", by.Name, got, rooms, err)
		}
	}
	if list, err := r.Rooms(r.ctx(), r.ann.Actor(), directory.Filter{Group: "forest"}); err != nil || len(list) != 1 {
		t.Errorf("rooms of the group: %v %v", list, err)
	}
	r.unchanged("refusals", func() {
		_, err := r.CreateGroup(r.ctx(), r.ann.Actor(), "forest", "")
		r.wants("taken", err, fault.Conflict, "forest")
		_, err = r.CreateGroup(r.ctx(), r.ann.Actor(), uuid.NewString(), "")
		r.wants("an id", err, fault.Invalid, "name")
		_, _, err = r.Group(r.ctx(), r.ann.Actor(), "zoo")
		r.wants("unknown", err, fault.NotFound, `room group "zoo"`)
	})
	if list, err := r.Groups(r.ctx()); err != nil || len(list) != 1 {
		t.Errorf("groups %v %v", list, err)
	}
}
