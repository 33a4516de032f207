package timeline_test

import (
	"maps"
	"strings"
	"testing"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
)

// H.3 send_targeted_message.
func TestPostTargeted(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("Alice Smith")
	me, a, b, deaf := r.agent("me", alice), r.agent("agent", alice), r.agent("build-bot", alice), r.agent("deaf", alice)
	r.policy(deaf, room.OwnerOnly())
	in := r.room(room.ChannelPublic, alice, me, a, b, deaf)
	r.exec(`UPDATE room_members SET alias = 'Bob' WHERE room_agent_no = ?`, b.No)
	r.exec(`INSERT INTO room_roles (room_no, name, exclusive, instructions, created_at, updated_at)
		VALUES (?,'lead',0,'',0,0), (?,'critic',0,'',0,0)`, in.No, in.No)
	r.presence.holders = map[int64]string{a.No: "lead", deaf.No: "lead"}
	r.presence.live = map[int64]room.Status{a.No: room.StatusLive, b.No: room.StatusDormant}
	root := r.say(in, alice, "root").Item
	for _, c := range []struct {
		targets  timeline.Targets
		body     string
		statuses map[string]string
		flagged  []room.Actor
	}{
		{timeline.Targets{Names: []string{"agent"}}, "@agent go", map[string]string{"agent": "live"}, []room.Actor{a}},
		{timeline.Targets{Names: []string{"bob", "@Agent"}}, "@bob @Agent go", map[string]string{"bob": "dormant", "Agent": "live"},
			[]room.Actor{a, b}},
		{timeline.Targets{Names: []string{"agent", "AGENT"}}, "@agent go", map[string]string{"agent": "live"}, []room.Actor{a}},
		{timeline.Targets{Names: []string{"deaf"}}, "@deaf go", map[string]string{"deaf": "not_permitted"}, nil},
		{timeline.Targets{Names: []string{"Alice Smith"}}, "@Alice Smith go", map[string]string{}, nil},
		{timeline.Targets{Names: []string{"everyone"}}, "@everyone go", map[string]string{"everyone": "no_bridge"}, nil},
		{timeline.Targets{Roles: []string{"lead"}}, "@lead go", map[string]string{"agent": "live", "deaf": "not_permitted"},
			[]room.Actor{a}},
		{timeline.Targets{Roles: []string{"critic"}}, "@critic go", map[string]string{}, nil},
		{timeline.Targets{Names: []string{"build-bot"}, Roles: []string{"lead"}}, "@build-bot @lead go",
			map[string]string{"build-bot": "dormant", "agent": "live", "deaf": "not_permitted"}, []room.Actor{a, b}},
		{timeline.Targets{Names: []string{"me"}}, "@me go", map[string]string{"me": "disconnected"}, nil},
	} {
		p, statuses, err := r.log.PostTargeted(ctx, timeline.Draft{Actor: me, RoomID: in.ID, Body: "go"}, c.targets)
		if err != nil {
			t.Errorf("%+v: %v", c.targets, err)
			continue
		}
		if p.Item.Body != c.body || !maps.Equal(statuses, c.statuses) {
			t.Errorf("%+v: %q, %v", c.targets, p.Item.Body, statuses)
		}
		flagged := 0
		for _, agent := range []room.Actor{a, b, deaf} {
			for _, e := range r.events(agent) {
				if e.position == p.Item.Position && e.flag {
					flagged++
				}
			}
		}
		if flagged != len(c.flagged) || len(p.Statuses) != len(c.flagged) {
			t.Errorf("%+v: %d addressed, %v", c.targets, flagged, p.Statuses)
		}
	}

	before := r.counts()
	for _, c := range []struct {
		targets timeline.Targets
		d       timeline.Draft
		field   string
		text    string
	}{
		{timeline.Targets{}, timeline.Draft{Body: "go"}, "target_names", "at least one"},
		{timeline.Targets{Names: []string{" @ "}}, timeline.Draft{Body: "go"}, "target_names", "empty"},
		{timeline.Targets{Names: []string{"agent"}}, timeline.Draft{Body: " "}, "body", "empty"},
		{timeline.Targets{Names: []string{"agent", "nobody"}}, timeline.Draft{Body: "go"}, "target_names",
			"participants: me, agent, build-bot (Bob), deaf, Alice Smith"},
		{timeline.Targets{Roles: []string{"boss"}}, timeline.Draft{Body: "go"}, "target_roles", "roles: critic, lead"},
		{timeline.Targets{Names: []string{"Everyone"}}, timeline.Draft{Body: "go", ThreadID: root.ID.String()}, "target_names",
			"leave out thread_id"},
		{timeline.Targets{Names: []string{"agent"}}, timeline.Draft{Body: "go", ThreadID: "x"}, "thread_id", "no message"},
		{timeline.Targets{Names: make([]string, 1)}, timeline.Draft{Body: "go"}, "target_names", "empty"},
	} {
		c.d.Actor, c.d.RoomID = me, in.ID
		_, _, err := r.log.PostTargeted(ctx, c.d, c.targets)
		if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != c.field || !strings.Contains(fault.Message(err), c.text) {
			t.Errorf("%+v: %v", c.targets, err)
		}
	}
	stranger := r.agent("stranger", alice)
	_, _, err := r.log.PostTargeted(ctx, timeline.Draft{Actor: stranger, RoomID: in.ID, Body: "go"},
		timeline.Targets{Names: []string{"nobody"}})
	if !fault.Is(err, fault.Forbidden) || !strings.Contains(fault.Message(err), in.ID.String()) {
		t.Errorf("from outside: %v", err)
	}
	if got := r.counts(); got != before {
		t.Errorf("rows changed from %v to %v", before, got)
	}
}
