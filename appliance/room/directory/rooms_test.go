package directory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/timeline"
)

var _ timeline.Directory = (*directory.Directory)(nil)

func TestCreateByPersonAndByAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ref, err := r.CreateReference(r.ctx(), r.ann.Actor(), directory.NewReference{Type: "url", Name: "wiki", Value: "https://wiki"})
	r.ok("reference", err)
	other := r.room("other")
	made, err := r.Create(r.ctx(), r.ann.Actor(), directory.NewRoom{Name: "den", Description: "d", Instructions: "i",
		Agents: []directory.Invitation{{Name: "fox", Alias: "red", Listening: true}, {AgentID: r.owl.ID}, {Name: "owl"}},
		People: []directory.Introduction{{Name: "bob@example.org"}},
		Roles:  []directory.NewRole{{Name: "lead", Exclusive: true, Instructions: "lead on"}}, References: []uuid.UUID{ref.ID},
		Links: []directory.NewLink{{Target: other.ID, Label: "next door"}}})
	r.ok("create", err)
	if made.Channel != room.ChannelPublic || made.ReadVisibility != room.Public || made.OwnerID != r.ann.ID ||
		made.LastPosition != 0 || made.No == 0 || !made.CreatedAt.Equal(start) {
		t.Errorf("made %+v", made)
	}
	agents, people, err := r.Members(r.ctx(), made.ID)
	r.ok("members", err)
	if len(agents) != 2 || agents[0].Alias != "red" || !agents[0].Listening || agents[1].Agent.Name != "owl" {
		t.Errorf("agents %+v", agents)
	}
	if len(people) != 2 || people[0].Person.ID != r.ann.ID || !people[0].Manager || people[1].Manager {
		t.Errorf("people %+v", people)
	}
	if got := r.events(r.fox, made.No); len(got) != 0 {
		t.Errorf("who is in a room from its beginning was told of joins: %v", got)
	}
	if m := r.audited("room.created"); m["name"] != "den" || m["actor_name"] != "ann" {
		t.Errorf("audit %v", m)
	}

	byAgent, err := r.Create(r.ctx(), r.foxs, directory.NewRoom{Name: "burrow", Agents: invited("owl")})
	r.ok("create by agent", err)
	if byAgent.OwnerID != r.ann.ID {
		t.Errorf("a room an agent makes belongs to %v, not to the agent's owner", byAgent.OwnerID)
	}
	agents, people, err = r.Members(r.ctx(), byAgent.ID)
	r.ok("members", err)
	if len(agents) != 1 || agents[0].Agent.Name != "owl" || len(people) != 0 {
		t.Errorf("the agent that made the room is in it unasked: %+v %+v", agents, people)
	}
}

func TestCreateWithChildren(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cub := r.agent(r.ann, "fox.cub")
	r.exec(`UPDATE room_agents SET parent_no = ? WHERE room_agent_no = ?`, r.fox.No, cub.No)
	made, err := r.Create(r.ctx(), r.ann.Actor(), directory.NewRoom{Name: "den", Agents: invited("fox"), WithChildrenOf: []string{"fox"}})
	r.ok("create", err)
	if got := r.names(made.ID); !slices.Equal(got, []string{"fox", "fox.cub"}) {
		t.Errorf("members %v", got)
	}
}

func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secretRef, err := r.CreateReference(r.ctx(), r.bob.Actor(), directory.NewReference{Type: "url", Name: "x", Value: "y",
		ReadVisibility: room.Private, WriteVisibility: room.Private})
	r.ok("reference", err)
	ann := r.ann.Actor()
	for name, c := range map[string]struct {
		by    room.Actor
		n     directory.NewRoom
		code  fault.Code
		words string
	}{
		"no name":          {ann, directory.NewRoom{Name: " ", Agents: invited("fox")}, fault.Invalid, "name"},
		"long name":        {ann, directory.NewRoom{Name: strings.Repeat("é", 201), Agents: invited("fox")}, fault.Invalid, "name"},
		"escapes":          {ann, directory.NewRoom{Name: "a\x1b[2J", Agents: invited("fox")}, fault.Invalid, "name: must be one line"},
		"two lines":        {ann, directory.NewRoom{Name: "a\nb", Agents: invited("fox")}, fault.Invalid, "name: must be one line"},
		"NUL":              {ann, directory.NewRoom{Name: "a\x00", Agents: invited("fox")}, fault.Invalid, "name"},
		"no agents":        {ann, directory.NewRoom{Name: "a"}, fault.Invalid, "agents"},
		"unknown agent":    {ann, directory.NewRoom{Name: "a", Agents: invited("fox", "nobody")}, fault.Invalid, `agents[1]: agent "nobody" not found`},
		"bad channel":      {ann, directory.NewRoom{Name: "a", Channel: room.ChannelDirect, Agents: invited("fox")}, fault.Invalid, "channel_type"},
		"bad visibility":   {ann, directory.NewRoom{Name: "a", ReadVisibility: "secret", Agents: invited("fox")}, fault.Invalid, "read_visibility"},
		"write but unread": {ann, directory.NewRoom{Name: "a", ReadVisibility: room.Private, Agents: invited("fox")}, fault.Invalid, "write_visibility"},
		"private of nobody": {r.loner.Actor(), directory.NewRoom{Name: "a", ReadVisibility: room.Private, WriteVisibility: room.Private,
			Agents: invited("fox")}, fault.Invalid, "write_visibility"},
		"unknown person":    {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), People: []directory.Introduction{{Name: "zoe"}}}, fault.Invalid, `people[1]: person "zoe"`},
		"unknown group":     {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), Group: "zoo"}, fault.Invalid, `room group "zoo"`},
		"unknown parent":    {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), WithChildrenOf: []string{"zoe"}}, fault.Invalid, "include_subagents_for[0]"},
		"private reference": {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), References: []uuid.UUID{secretRef.ID}}, fault.Forbidden, "references[0]"},
		"unknown link":      {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), Links: []directory.NewLink{{Target: uuid.New()}}}, fault.Invalid, "linked_rooms[0].target_room_id"},
		"bad alias":         {ann, directory.NewRoom{Name: "a", Agents: []directory.Invitation{{Name: "fox", Alias: "a b"}}}, fault.Invalid, "alias"},
		"alias is a name":   {ann, directory.NewRoom{Name: "a", Agents: []directory.Invitation{{Name: "fox", Alias: "OWL"}, {Name: "owl"}}}, fault.Conflict, "the name of agent owl"},
		"alias twice":       {ann, directory.NewRoom{Name: "a", Agents: []directory.Invitation{{Name: "fox", Alias: "it"}, {Name: "owl", Alias: "IT"}}}, fault.Conflict, "the alias of agent fox"},
		"alias is a role": {ann, directory.NewRoom{Name: "a", Agents: []directory.Invitation{{Name: "fox", Alias: "Lead"}},
			Roles: []directory.NewRole{{Name: "lead"}}}, fault.Conflict, "the name of role lead"},
		"role twice":    {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), Roles: []directory.NewRole{{Name: "lead"}, {Name: "LEAD"}}}, fault.Conflict, "roles[1].name"},
		"role of blank": {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), Roles: []directory.NewRole{{Name: "the lead"}}}, fault.Invalid, "roles[0].name"},
		"many links":    {ann, directory.NewRoom{Name: "a", Agents: invited("fox"), Links: make([]directory.NewLink, 101)}, fault.Invalid, "linked_rooms: must be at most 100"},
		"chat channel":  {ann, directory.NewRoom{Name: "a", Chat: true, Channel: room.ChannelPublic, Agents: invited("fox")}, fault.Invalid, "channel_type"},
	} {
		r.unchanged(name, func() {
			_, err := r.Create(r.ctx(), c.by, c.n)
			r.wants(name, err, c.code, c.words)
		})
	}
}

func TestCreateIsIdempotentByRequestID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := directory.NewRoom{Name: "chat", Chat: true, Agents: invited("fox"), RequestID: "r1"}
	first, err := r.Create(r.ctx(), r.ann.Actor(), n)
	r.ok("first", err)
	if first.Channel != room.ChannelDirect || first.ReadVisibility != room.Private || first.WriteVisibility != room.Private || !first.Chat {
		t.Errorf("a chat with one agent is %+v", first)
	}
	r.unchanged("a repeated request", func() {
		again, err := r.Create(r.ctx(), r.ann.Actor(), n)
		if err != nil || again.ID != first.ID {
			t.Errorf("again: %v %v, want room %v", again.ID, err, first.ID)
		}
		other := n
		other.Name = "another"
		_, err = r.Create(r.ctx(), r.ann.Actor(), other)
		r.wants("other content", err, fault.Conflict, "requestId")
		if room.RefusedCode(err) != room.CodeRequestReused {
			t.Errorf("code %q", room.RefusedCode(err))
		}
	})
	bobs, err := r.Create(r.ctx(), r.bob.Actor(), n)
	if err != nil || bobs.ID == first.ID {
		t.Errorf("another person's request of the same id: %v %v", bobs.ID, err)
	}
	r.ok("delete", r.Delete(r.ctx(), r.ann.Actor(), first.ID))
	_, err = r.Create(r.ctx(), r.ann.Actor(), n)
	r.wants("after its room was deleted", err, fault.NotFound, "room")
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox")
	g, err := r.CreateGroup(r.ctx(), r.bob.Actor(), "forest", "all in the wood")
	r.ok("group", err)
	watch := r.hub.Watch(timeline.PersonKey{PersonNo: r.ann.No})
	defer watch.Stop()
	got, err := r.Update(r.ctx(), r.bob.Actor(), made.ID, directory.RoomChange{Name: p("lair"), Description: p("x"),
		Instructions: p("y"), Channel: p(room.ChannelPrivate), InternalOnly: p(true), Group: p("forest")})
	r.ok("update", err)
	if got.Name != "lair" || got.Description != "x" || got.Instructions != "y" || got.Channel != room.ChannelPrivate ||
		!got.InternalOnly || got.GroupID != g.ID || got.GroupName != "forest" || got.CastRevision == made.CastRevision {
		t.Errorf("updated %+v", got)
	}
	select {
	case <-watch.C():
	default:
		t.Error("a person in the room was not told that it changed")
	}
	r.unchanged("no change", func() {
		_, err := r.Update(r.ctx(), r.ann.Actor(), made.ID, directory.RoomChange{Name: p("lair")})
		r.ok("update", err)
	})
	got, err = r.Update(r.ctx(), r.ann.Actor(), made.ID, directory.RoomChange{Group: p(""), WriteVisibility: p(room.Private)})
	if err != nil || got.GroupNo != 0 || got.WriteVisibility != room.Private {
		t.Errorf("out of the group: %+v %v", got, err)
	}
	r.unchanged("refusals", func() {
		_, err := r.Update(r.ctx(), r.bob.Actor(), made.ID, directory.RoomChange{Name: p("mine")})
		r.wants("no writer", err, fault.Forbidden, "lair")
		_, err = r.Update(r.ctx(), r.ann.Actor(), uuid.New(), directory.RoomChange{Name: p("mine")})
		r.wants("unknown", err, fault.NotFound, "room")
		_, err = r.Update(r.ctx(), r.ann.Actor(), made.ID, directory.RoomChange{Name: p("")})
		r.wants("no name", err, fault.Invalid, "name")
		_, err = r.Update(r.ctx(), r.ann.Actor(), made.ID, directory.RoomChange{ReadVisibility: p(room.Visibility("odd"))})
		r.wants("visibility", err, fault.Invalid, "read_visibility")
		_, err = r.Update(r.ctx(), r.ann.Actor(), made.ID, directory.RoomChange{Channel: p(room.ChannelDirect)})
		r.wants("channel", err, fault.Invalid, "channel_type")
	})
	open := r.room("open", "fox")
	_, err = r.Update(r.ctx(), r.bob.Actor(), open.ID, directory.RoomChange{WriteVisibility: p(room.Private)})
	r.wants("visibility by a writer who does not own", err, fault.Forbidden, "visibility")
}

func TestArchive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox")
	r.connect(r.fox, "c1", made.ID)
	got, err := r.Archive(r.ctx(), r.ann.Actor(), made.ID)
	if err != nil || got.ArchivedAt == nil {
		t.Fatalf("archive: %+v %v", got, err)
	}
	if ref, err := r.conns.Locate(r.fox.No, "c1", ""); err != nil || ref.ID != made.ID {
		t.Errorf("archiving changed a claim: %v %v", ref, err)
	}
	r.unchanged("an archived room", func() {
		_, err := r.log.Post(r.ctx(), timeline.Draft{Actor: r.foxs, RoomID: made.ID, Body: "x"})
		r.wants("post", err, fault.Conflict, "archived")
		_, err = r.Invite(r.ctx(), r.ann.Actor(), made.ID, invited("owl"))
		r.wants("invite", err, fault.Conflict, "archived")
		_, err = r.AddPeople(r.ctx(), r.ann.Actor(), made.ID, []directory.Introduction{{Name: "bob"}})
		r.wants("add people", err, fault.Conflict, "archived")
		_, err = r.Archive(r.ctx(), r.ann.Actor(), made.ID)
		r.ok("archive again", err)
	})
	rooms, err := r.RoomsOf(r.ctx(), r.fox.No, false)
	if err != nil || len(rooms) != 0 {
		t.Errorf("listed without archived rooms: %v %v", rooms, err)
	}
	if rooms, err = r.RoomsOf(r.ctx(), r.fox.No, true); err != nil || len(rooms) != 1 {
		t.Errorf("listed with archived rooms: %v %v", rooms, err)
	}
	got, err = r.Unarchive(r.ctx(), r.ann.Actor(), made.ID)
	if err != nil || got.ArchivedAt != nil {
		t.Errorf("unarchive: %+v %v", got, err)
	}
	r.post(r.foxs, made.ID, "back")
}

func TestDeleteAndPurge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made, kept := r.room("den", "fox", "owl"), r.room("kept", "fox")
	r.ok("link", r.Link(r.ctx(), r.ann.Actor(), kept.ID, directory.NewLink{Target: made.ID}))
	_, err := r.CreateDocument(r.ctx(), r.foxs, made.ID, directory.NewDocument{Name: "notes", Content: "text"})
	r.ok("document", err)
	r.post(r.foxs, made.ID, "@owl hello") // and the answer in its thread
	r.exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id, sender_name, body, thread_root_no,
		automatic, created_at)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 350)
		SELECT room_no, position + 100 + i, randomblob(16), kind, sender_kind, sender_no, sender_id, sender_name, body, item_no, 0, created_at
		FROM room_items, n WHERE position = 1 AND room_no = ?`, made.No)
	r.post(r.ann.Actor(), kept.ID, "stays")
	r.connect(r.owl, "c1", made.ID)

	r.unchanged("a stranger's delete", func() {
		r.wants("delete", r.Delete(r.ctx(), r.bob.Actor(), made.ID), fault.Forbidden, "den")
		r.wants("delete by owl", r.Delete(r.ctx(), r.owls, made.ID), fault.Forbidden, "den")
	})
	r.ok("delete", r.Delete(r.ctx(), r.foxs, made.ID)) // with its owner's rights
	if got := r.events(r.owl, made.No); len(got) != 0 {
		t.Errorf("%d events of a deleted room wait", len(got))
	}
	if got := r.events(r.fox, kept.No); len(got) != 1 {
		t.Errorf("of the other room %v waits", got)
	}
	if _, err := r.conns.Locate(r.owl.No, "c1", ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("the claim on a deleted room: %v", err)
	}
	_, err = r.Room(r.ctx(), r.admin, made.ID)
	r.wants("room", err, fault.NotFound, made.ID.String())
	if links, err := r.Links(r.ctx(), r.ann.Actor(), kept.ID); err != nil || len(links) != 0 {
		t.Errorf("links to it: %v %v", links, err)
	}
	if n := r.count(`SELECT count(*) FROM room_items WHERE room_no = ?`, made.No); n < 350 {
		t.Errorf("%d items right after the delete: the transaction should not remove them", n)
	}
	n, err := r.PurgeDeleted(r.ctx())
	if err != nil || n < 352 {
		t.Errorf("purged %d: %v", n, err)
	}
	for _, table := range []string{"rooms", "room_items", "room_documents", "room_members", "room_events"} {
		if n := r.count(`SELECT count(*) FROM `+table+` WHERE room_no = ?`, made.No); n != 0 {
			t.Errorf("%d rows of %s are left", n, table)
		}
	}
	if n := r.count(`SELECT count(*) FROM room_items WHERE room_no = ?`, kept.No); n != 1 {
		t.Errorf("%d items of the other room are left", n)
	}
	if n, err := r.PurgeDeleted(r.ctx()); n != 0 || err != nil {
		t.Errorf("purging nothing: %d %v", n, err)
	}
}

func TestReadingByTheOwnershipRule(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open, shut := r.room("open"), r.private("shut", "owl")
	for name, c := range map[string]struct {
		by   room.Actor
		may  bool
		list []string
	}{
		"owner":             {r.ann.Actor(), true, []string{"open", "shut"}},
		"owner's agent":     {r.foxs, true, []string{"open", "shut"}},
		"admin":             {r.admin, true, []string{"open", "shut"}},
		"stranger":          {r.bob.Actor(), false, []string{"open"}},
		"stranger's member": {r.owls, true, []string{"open", "shut"}},
		"nobody's agent":    {r.loner.Actor(), false, []string{"open"}},
	} {
		_, err := r.Room(r.ctx(), c.by, shut.ID)
		if c.may && err != nil || !c.may && !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s reads a private room: %v", name, err)
		}
		rooms, err := r.Rooms(r.ctx(), c.by, directory.Filter{})
		r.ok("rooms", err)
		var names []string
		for _, m := range rooms {
			names = append(names, m.Name)
		}
		if !slices.Equal(names, c.list) {
			t.Errorf("%s lists %v, want %v", name, names, c.list)
		}
		if _, err := r.Room(r.ctx(), c.by, open.ID); err != nil {
			t.Errorf("%s reads a public room: %v", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	den, twin, shut := r.room("den"), r.room("twin"), r.private("shut")
	r.room("twin")
	for _, text := range []string{"den", den.ID.String(), strings.ReplaceAll(den.ID.String(), "-", ""), den.ID.String()[:35]} {
		if got, err := r.Find(r.ctx(), r.bob.Actor(), text); err != nil || got.ID != den.ID {
			t.Errorf("find %q: %v %v", text, got.ID, err)
		}
	}
	_, err := r.Find(r.ctx(), r.bob.Actor(), "twin")
	r.wants("two of a name", err, fault.Conflict, twin.ID.String())
	for _, text := range []string{"shut", shut.ID.String(), "nothing", "", "ab", uuid.Nil.String()} {
		_, err := r.Find(r.ctx(), r.bob.Actor(), text)
		r.wants(text, err, fault.NotFound, "no room")
	}
}

// A change of membership is one transaction: when it fails to commit nothing of it is there, and no hook ran.
func TestMembershipIsOneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox")
	r.post(r.ann.Actor(), made.ID, "one")
	r.connect(r.fox, "c1", made.ID)
	r.connect(r.owl, "c2")
	boom := errors.New("boom")
	for name, op := range map[string]func() error{
		"invite": func() error { _, err := r.Invite(r.ctx(), r.ann.Actor(), made.ID, invited("owl")); return err },
		"remove": func() error { return r.Remove(r.ctx(), r.ann.Actor(), made.ID, r.fox.ID) },
		"person": func() error {
			_, err := r.AddPeople(r.ctx(), r.ann.Actor(), made.ID, []directory.Introduction{{Name: "bob"}})
			return err
		},
		"delete": func() error { return r.Delete(r.ctx(), r.ann.Actor(), made.ID) },
	} {
		r.unchanged(name, func() {
			r.before.Arm(boom, 1)
			if err := op(); !errors.Is(err, boom) {
				t.Errorf("%s: %v", name, err)
			}
		})
		if ref, err := r.conns.Locate(r.fox.No, "c1", ""); err != nil || ref.ID != made.ID {
			t.Errorf("%s that failed freed a claim: %v", name, err)
		}
		if _, err := r.conns.Connect(r.owl.No, "c2", "", made.ID); err == nil {
			t.Errorf("%s that failed let an agent in", name)
		}
		if got := r.events(r.fox, made.No); len(got) != 1 {
			t.Errorf("%s that failed left %v", name, got)
		}
	}
}
