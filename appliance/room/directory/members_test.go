package directory_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/timeline"
)

func TestInvite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox")
	r.post(r.ann.Actor(), made.ID, "before")
	r.connect(r.owl, "c1")
	watch := r.hub.Watch(timeline.RoomKey{RoomNo: made.No})
	defer watch.Stop()
	// Somebody else's agent, by an agent with no more than write access: its policy protects it.
	joined, err := r.Invite(r.ctx(), r.foxs, made.ID, []directory.Invitation{{Name: "fox"}, {Name: "owl", Alias: "wise"}, {AgentID: r.loner.ID}})
	r.ok("invite", err)
	if len(joined) != 2 || joined[0].Agent.Name != "owl" || joined[0].Alias != "wise" || joined[0].JoinedPosition != 1 {
		t.Errorf("joined %+v", joined)
	}
	if got := r.events(r.fox, made.No); !slices.Equal(got, []room.EventKind{room.EventMessage, room.EventJoin, room.EventJoin}) {
		t.Errorf("the member hears %v", got)
	}
	if got := r.events(r.owl, made.No); !slices.Equal(got, []room.EventKind{room.EventJoin}) {
		t.Errorf("who joined hears %v, want the join of the other alone", got)
	}
	if _, err := r.conns.Connect(r.owl.No, "c1", "", made.ID); err != nil {
		t.Errorf("the connection of who joined: %v", err)
	}
	select {
	case <-watch.C():
	default:
		t.Error("watchers of the room were not woken")
	}
	r.unchanged("inviting members", func() {
		again, err := r.Invite(r.ctx(), r.ann.Actor(), made.ID, []directory.Invitation{{Name: "owl", Alias: "other"}})
		if err != nil || len(again) != 0 {
			t.Errorf("again: %v %v", again, err)
		}
	})
}

func TestInviteRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shut := r.private("shut", "fox")
	_, err := r.SetAlias(r.ctx(), r.ann.Actor(), shut.ID, r.fox.ID, "owl")
	r.ok("alias", err)
	many := make([]directory.Invitation, 201)
	for i := range many {
		many[i].Name = fmt.Sprint("a", i)
	}
	for name, c := range map[string]struct {
		by    room.Actor
		id    uuid.UUID
		list  []directory.Invitation
		code  fault.Code
		words string
	}{
		"nobody":         {r.ann.Actor(), shut.ID, nil, fault.Invalid, "agents"},
		"too many":       {r.ann.Actor(), shut.ID, many, fault.Invalid, "200"},
		"no writer":      {r.bob.Actor(), shut.ID, invited("owl"), fault.Forbidden, "shut"},
		"unknown room":   {r.ann.Actor(), uuid.New(), invited("owl"), fault.NotFound, "room"},
		"one unknown":    {r.ann.Actor(), shut.ID, invited("loner", "zoe"), fault.Invalid, `agents[1]: agent "zoe" not found`},
		"name is alias":  {r.ann.Actor(), shut.ID, invited("loner", "owl"), fault.Conflict, `alias of agent "fox"`},
		"alias is taken": {r.ann.Actor(), shut.ID, []directory.Invitation{{Name: "loner", Alias: "OWL"}}, fault.Conflict, "alias of agent fox"},
		"alias everyone": {r.ann.Actor(), shut.ID, []directory.Invitation{{Name: "loner", Alias: "everyone"}}, fault.Invalid, "agents[0].alias"},
	} {
		r.unchanged(name, func() {
			_, err := r.Invite(r.ctx(), c.by, c.id, c.list)
			r.wants(name, err, c.code, c.words)
		})
	}
}

func TestRemoveFreesEverythingWithoutAGap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made, other := r.room("den", "fox", "owl"), r.room("other", "owl")
	_, err := r.DefineRole(r.ctx(), r.ann.Actor(), made.ID, directory.NewRole{Name: "lead"})
	r.ok("role", err)
	r.connect(r.owl, "c1", made.ID)
	r.ok("assume", r.conns.AssumeRole(r.owl.No, "c1", made.ID, "lead", false))
	r.post(r.foxs, made.ID, "one")
	r.post(r.ann.Actor(), other.ID, "two")
	r.ok("remove", r.Remove(r.ctx(), r.bob.Actor(), made.ID, r.owl.ID)) // its owner; the room is ann's
	if got := r.events(r.owl, made.No); len(got) != 0 {
		t.Errorf("of the left room %v waits", got)
	}
	if got := r.events(r.owl, other.No); len(got) != 1 {
		t.Errorf("of the other room %v waits", got)
	}
	if _, err := r.conns.Locate(r.owl.No, "c1", ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("the claim: %v", err)
	}
	if held := r.conns.RoleHolders(made.No); len(held) != 0 {
		t.Errorf("the lease: %v", held)
	}
	r.unchanged("refusals", func() {
		r.wants("again", r.Remove(r.ctx(), r.ann.Actor(), made.ID, r.owl.ID), fault.NotFound, "owl")
		r.wants("unknown agent", r.Remove(r.ctx(), r.ann.Actor(), made.ID, uuid.New()), fault.NotFound, "agent")
	})
	shut := r.private("shut", "fox")
	r.wants("by a stranger", r.Remove(r.ctx(), r.bob.Actor(), shut.ID, r.fox.ID), fault.Forbidden, "shut")
}

func TestDeletedAgentLeavesItsRooms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox", "owl")
	r.post(r.foxs, made.ID, "one")
	r.ok("delete agent", r.people.DeleteAgent(r.ctx(), r.bob.Actor(), r.owl.ID))
	if got := r.names(made.ID); !slices.Equal(got, []string{"fox"}) {
		t.Errorf("members %v", got)
	}
	if n := r.count(`SELECT count(*) FROM room_events WHERE room_agent_no = ?`, r.owl.No); n != 0 {
		t.Errorf("%d events wait for nobody", n)
	}
}

func TestAliasAndListening(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den", "fox", "owl")
	_, err := r.DefineRole(r.ctx(), r.ann.Actor(), made.ID, directory.NewRole{Name: "Lead"})
	r.ok("role", err)
	for _, alias := range []string{"Red.Fox_1", "RED.fox_1", "x", ""} { // its own in other letters is free
		m, err := r.SetAlias(r.ctx(), r.foxs, made.ID, r.fox.ID, alias)
		if err != nil || m.Alias != alias {
			t.Errorf("alias %q: %+v %v", alias, m, err)
		}
	}
	_, err = r.SetAlias(r.ctx(), r.foxs, made.ID, r.fox.ID, "red")
	r.ok("alias", err)
	r.unchanged("refusals", func() {
		for alias, words := range map[string]string{"RED": "alias of agent fox", "Fox": "name of agent fox", "OWL": "name of agent owl",
			"lead": "name of role Lead", "two words": "alias: must match", "everyone": "everyone", "é": "must match"} {
			_, err := r.SetAlias(r.ctx(), r.ann.Actor(), made.ID, r.owl.ID, alias)
			code := fault.Conflict
			if slices.Contains([]string{"two words", "everyone", "é"}, alias) {
				code = fault.Invalid
			}
			r.wants("alias "+alias, err, code, words)
		}
		_, err := r.DefineRole(r.ctx(), r.ann.Actor(), made.ID, directory.NewRole{Name: "Red"})
		r.wants("role called like an alias", err, fault.Conflict, `alias of agent "fox"`)
	})
	m, err := r.SetListening(r.ctx(), r.ann.Actor(), made.ID, r.owl.ID, true)
	if err != nil || !m.Listening || r.count(`SELECT listening FROM room_members WHERE room_agent_no = ?`, r.owl.No) != 1 {
		t.Errorf("listening: %+v %v", m, err)
	}
	shut := r.private("shut", "fox")
	r.unchanged("a stranger", func() {
		_, err := r.SetListening(r.ctx(), r.bob.Actor(), shut.ID, r.fox.ID, true)
		r.wants("listening", err, fault.Forbidden, "shut")
		_, err = r.SetAlias(r.ctx(), r.owls, shut.ID, r.fox.ID, "x")
		r.wants("alias", err, fault.Forbidden, "shut")
		_, err = r.SetAlias(r.ctx(), r.ann.Actor(), shut.ID, r.owl.ID, "x")
		r.wants("no member", err, fault.NotFound, "owl")
	})
}

func TestSecondAgentMakesADirectRoomAGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	chat, err := r.Create(r.ctx(), r.ann.Actor(), directory.NewRoom{Name: "chat", Chat: true, Agents: invited("fox")})
	r.ok("chat", err)
	if chat.Channel != room.ChannelDirect {
		t.Fatalf("a chat with one agent is %s", chat.Channel)
	}
	r.ok("invite", r.InviteAgent(r.ctx(), r.ann.Actor(), chat.ID, "owl"))
	got, err := r.Room(r.ctx(), r.ann.Actor(), chat.ID)
	if err != nil || got.Channel != room.ChannelGroup || got.CastRevision == chat.CastRevision {
		t.Errorf("with two agents it is %+v %v", got, err)
	}
}

func TestPeople(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made, shut := r.room("den", "fox"), r.private("shut", "fox")
	watch := r.hub.Watch(timeline.PersonKey{PersonNo: r.bob.No})
	defer watch.Stop()
	woken := func() bool {
		select {
		case <-watch.C():
			return true
		default:
			return false
		}
	}
	added, err := r.AddPeople(r.ctx(), r.foxs, made.ID, []directory.Introduction{{Name: "bob"}, {PersonID: r.ann.ID}})
	if err != nil || len(added) != 1 || added[0].Person.ID != r.bob.ID {
		t.Fatalf("added %+v %v", added, err)
	}
	if !woken() {
		t.Error("the person added was not told")
	}
	if got := r.events(r.fox, made.No); !slices.Equal(got, []room.EventKind{room.EventJoin}) {
		t.Errorf("the agent hears %v", got)
	}
	r.unchanged("adding again", func() {
		added, err := r.AddPeople(r.ctx(), r.ann.Actor(), made.ID, []directory.Introduction{{PersonID: r.bob.ID}})
		if err != nil || len(added) != 0 {
			t.Errorf("added %v %v", added, err)
		}
	})
	r.unchanged("refusals", func() {
		_, err := r.AddPeople(r.ctx(), r.bob.Actor(), made.ID, []directory.Introduction{{Name: "bob", Manager: true}})
		r.wants("making oneself a manager", err, fault.Forbidden, "managers")
		_, err = r.AddPeople(r.ctx(), r.bob.Actor(), shut.ID, []directory.Introduction{{Name: "bob"}})
		r.wants("a stranger", err, fault.Forbidden, "shut")
		_, err = r.AddPeople(r.ctx(), r.ann.Actor(), made.ID, nil)
		r.wants("nobody", err, fault.Invalid, "people")
		_, err = r.AddPeople(r.ctx(), r.ann.Actor(), made.ID, []directory.Introduction{{Name: "zoe"}})
		r.wants("unknown", err, fault.Invalid, `people[0]: person "zoe"`)
		r.wants("remove by one who may not", r.RemovePerson(r.ctx(), r.bob.Actor(), made.ID, r.ann.ID), fault.Forbidden, "den")
		r.wants("remove who is not in", r.RemovePerson(r.ctx(), r.ann.Actor(), shut.ID, r.bob.ID), fault.NotFound, "bob")
		r.wants("manager by one who may not", r.SetManager(r.ctx(), r.bob.Actor(), made.ID, r.bob.ID, true), fault.Forbidden, "den")
	})
	// A manager writes to a room that only its owner may write to.
	_, err = r.AddPeople(r.ctx(), r.ann.Actor(), shut.ID, []directory.Introduction{{Name: "bob", Manager: true}})
	r.ok("add manager", err)
	if ok, err := r.Manages(r.ctx(), r.bob.Actor(), shut.ID); err != nil || !ok {
		t.Errorf("manages: %v %v", ok, err)
	}
	_, err = r.Invite(r.ctx(), r.bob.Actor(), shut.ID, invited("owl"))
	r.ok("invite by a manager", err)
	r.ok("unmake", r.SetManager(r.ctx(), r.ann.Actor(), shut.ID, r.bob.ID, false))
	if ok, err := r.Manages(r.ctx(), r.bob.Actor(), shut.ID); err != nil || ok {
		t.Errorf("manages no more: %v %v", ok, err)
	}
	woken()
	var told []string
	defer r.hub.Notify(timeline.RoomKey{RoomNo: shut.No}, func() { told = append(told, "room") }).Stop()
	defer r.hub.Notify(timeline.PersonKey{PersonNo: r.bob.No}, func() { told = append(told, "person") }).Stop()
	r.ok("leave", r.RemovePerson(r.ctx(), r.bob.Actor(), shut.ID, r.bob.ID))
	if !woken() || !slices.Equal(told, []string{"person", "room"}) {
		t.Errorf("the person removed was not told, or not first: %v", told)
	}
	if rooms, err := r.RoomsOfPerson(r.ctx(), r.bob.No, true); err != nil || len(rooms) != 1 || rooms[0].ID != made.ID {
		t.Errorf("rooms of bob: %+v %v", rooms, err)
	}
	if in, err := r.PersonIn(r.ctx(), shut.No, r.bob.No); err != nil || in {
		t.Errorf("still in it: %v %v", in, err)
	}
}

func TestAmbiguousAndDisabledPeople(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.room("den")
	r.exec(`UPDATE people SET name = 'twin' WHERE person_no IN (?, ?)`, r.ann.No, r.bob.No)
	_, err := r.AddPeople(r.ctx(), r.admin, made.ID, []directory.Introduction{{Name: "twin"}})
	r.wants("two of a name", err, fault.Conflict, "email")
	_, err = r.AddPeople(r.ctx(), r.admin, made.ID, []directory.Introduction{{Name: "BOB@example.org"}})
	r.ok("by email", err)
	_, err = r.people.SetDisabled(r.ctx(), r.admin, r.person("zoe").ID, true)
	r.ok("disable", err)
	_, err = r.AddPeople(r.ctx(), r.admin, made.ID, []directory.Introduction{{Name: "zoe"}})
	r.wants("disabled", err, fault.Invalid, "disabled")
}
