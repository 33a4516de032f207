package timeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
)

// Who gets an event of a command, with which words, and what the room hears (D.7).
func TestCommandsReachTheirTargets(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice, olga := r.person("alice"), r.person("olga")
	always := room.CommandCapabilities{Reset: room.CapabilityAlways, Compact: room.CapabilityAlways, Interrupt: room.CapabilityAlways}
	session := room.CommandCapabilities{Reset: room.CapabilitySessionDependent, Interrupt: room.CapabilitySessionDependent}
	ready, lead := r.agent("ready", alice), r.agent("lead-bot", alice)
	live, idle, mute := r.agent("live", alice), r.agent("idle", alice), r.agent("mute", alice)
	deaf, plain := r.agent("deaf", olga), r.agent("plain", alice)
	names := map[int64]string{}
	all := []room.Actor{ready, lead, live, idle, mute, deaf, plain}
	for _, a := range all {
		names[a.No] = a.Name
	}
	r.capabilities(ready, room.AlwaysOn, always)
	r.capabilities(lead, room.AlwaysOn, always)
	r.capabilities(deaf, room.AlwaysOn, always)
	r.capabilities(live, room.SessionAddressable, session)
	r.capabilities(idle, room.SessionAddressable, session)
	r.capabilities(mute, room.SessionAddressable, session)
	r.policy(deaf, room.OwnerOnly())
	in := r.room(room.ChannelPublic, append(all, alice, olga)...)
	r.exec(`UPDATE room_members SET alias = 'Rudy' WHERE room_agent_no = ?`, ready.No)
	r.presence.holders = map[int64]string{lead.No: "lead", live.No: "lead"}
	r.presence.live = map[int64]room.Status{live.No: room.StatusLive, mute.No: room.StatusLive, ready.No: room.StatusDisconnected,
		idle.No: room.StatusDormant}
	controls := map[string]bool{"reset": true, "interrupt": false}
	r.presence.controls = map[int64]map[string]bool{live.No: controls, idle.No: {"reset": true}}

	for _, c := range []struct {
		body    string
		events  map[string]string // agent → command as stored
		replies []string          // "who: part of the text"
	}{
		{"!reset @ready", map[string]string{"ready": `["reset",""]`}, []string{"ready: reset requested by alice"}},
		{"!reset @READY, please", map[string]string{"ready": `["reset",""]`}, []string{"ready: reset"}},
		{"!compact @rudy", map[string]string{"ready": `["compact",""]`}, []string{"ready: compact requested"}},
		{"!reset @lead", map[string]string{"lead-bot": `["reset","lead"]`, "live": `["reset","lead"]`},
			[]string{"lead-bot: reset requested", "live: reset requested"}},
		{"!interrupt @lead-bot stop it", map[string]string{"lead-bot": `["interrupt","@lead-bot stop it"]`},
			[]string{"lead-bot: interrupt requested"}},
		{"!interrupt @live", nil, []string{"live: no live session"}},
		{"!reset @idle", nil, []string{"idle: no live session"}}, // not live, whatever it said last
		{"!reset @mute", nil, []string{"mute: no live session"}}, // live, but says nothing of commands
		{"!reset @plain", nil, []string{"plain: does not support !reset"}},
		{"!compact @live", nil, []string{"live: does not support !compact"}},
		{"!reset @deaf", nil, []string{"deaf: alice may not direct deaf"}},
		{"!reset", nil, []string{"signalbox: Say whom"}},
		{"!reset ready", nil, []string{"signalbox: Say whom"}},
		{"!reset @nobody @ready", nil, []string{"signalbox: nobody"}},
		{"!reset @everyone", nil, []string{"signalbox: everyone"}},
		{"!reset-all-agents", map[string]string{"ready": `["reset",""]`, "lead-bot": `["reset","lead"]`, "live": `["reset","lead"]`},
			[]string{"ready: reset", "lead-bot: reset", "live: reset", "idle: no live", "mute: no live", "deaf: may not", "plain: does not"}},
		{"!interrupt-all-agents now", map[string]string{"ready": `["interrupt","now"]`, "lead-bot": `["interrupt","now"]`},
			[]string{"ready: interrupt", "lead-bot: interrupt", "live: no live", "idle: no live", "mute: no live", "deaf: may not",
				"plain: does not"}},
		{"!nope @ready", nil, []string{"signalbox: no command !nope"}},
		{"!", nil, []string{"signalbox: no command !."}},
	} {
		seen := map[int64]int{}
		for _, a := range all {
			seen[a.No] = len(r.events(a))
		}
		p := r.say(in, alice, c.body)
		if p.Item.Kind != room.ItemCommand || p.Item.Body != c.body || len(p.Statuses) != len(c.events) {
			t.Errorf("%s: item %+v, statuses %v", c.body, p.Item, p.Statuses)
		}
		var told int
		for _, a := range all {
			for _, e := range r.events(a)[seen[a.No]:] {
				if e.kind != room.EventCommand {
					continue
				}
				told++
				if e.command != c.events[a.Name] || e.flag {
					t.Errorf("%s: %s got %+v", c.body, a.Name, e)
				}
			}
		}
		if told != len(c.events) {
			t.Errorf("%s: %d agents got it, want %d", c.body, told, len(c.events))
		}
		if len(p.Answers) != len(c.replies) {
			t.Errorf("%s: answers %+v", c.body, p.Answers)
			continue
		}
		for i, want := range c.replies {
			who, text, _ := strings.Cut(want, ": ")
			a := p.Answers[i]
			if a.SenderName != who || !strings.Contains(a.Body, text) || !a.Automatic || a.ThreadID != p.Item.ID ||
				(who == "signalbox") != (a.SenderKind == room.KindPlatform) || names[a.SenderNo] != who && who != "signalbox" {
				t.Errorf("%s: answer %d is %+v, want %s", c.body, i, a, want)
			}
		}
	}

	// Typed in a thread, everything stays there.
	root := r.say(in, olga, "root").Item
	p := r.post(timeline.Draft{Actor: olga, RoomID: in.ID, Body: "!reset @deaf", ThreadID: root.ID.String()})
	if p.Item.ThreadID != root.ID || len(p.Answers) != 1 || p.Answers[0].ThreadID != root.ID {
		t.Errorf("in a thread: %+v", p)
	}
}

func TestOnlyPeopleType(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a, b := r.agent("agent", alice), r.agent("build-bot", alice)
	in := r.room(room.ChannelPublic, alice, a, b)
	p := r.say(in, a, "!reset @build-bot")
	if p.Item.Kind != room.ItemMessage || len(p.Answers) != 0 {
		t.Errorf("an agent's: %+v", p)
	}
	if got := r.events(b); len(got) != 1 || got[0].kind != room.EventMessage || !got[0].flag {
		t.Errorf("%+v", got)
	}
	p = r.post(timeline.Draft{Actor: alice, RoomID: in.ID, Body: "!what is this",
		Attachments: []room.Attachment{{Filename: "a.png", Mimetype: "image/png", Size: 1, Media: "m", Type: "m.image"}}})
	if p.Item.Kind != room.ItemMessage || !strings.Contains(string(p.Item.Attachments), `"mxc":"m"`) {
		t.Errorf("a caption: %+v", p)
	}
}

func TestTheRoomIsToldAboutItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a := r.agent("agent", alice)
	in, empty := r.room(room.ChannelPublic, alice, a), r.room(room.ChannelPublic, alice)
	r.exec(`UPDATE room_members SET alias = 'Bob'`)
	r.exec(`INSERT INTO room_roles (room_no, name, exclusive, instructions, created_at, updated_at)
		VALUES (?,'lead',0,'',0,0), (?,'critic',0,'',0,0)`, in.No, in.No)
	r.presence.holders = map[int64]string{a.No: "lead"}
	for _, c := range []struct {
		in   room.Ref
		body string
		want []string
	}{
		{in, "!help", []string{"!reset @agent", "!invite-agent"}},
		{in, "!roles", []string{"lead: held by agent", "critic: free"}},
		{in, "!list-agents", []string{"agent, alias Bob: disconnected"}},
		{empty, "!roles", []string{"no roles"}},
		{empty, "!list-agents", []string{"no agent"}},
		{empty, "!reset-all-agents", []string{"no agent"}},
		{in, "!invite-agent other", []string{"not available"}},
		{in, "!set-alias @agent x", []string{"not available"}},
	} {
		p := r.say(c.in, alice, c.body)
		if len(p.Answers) != 1 || p.Answers[0].SenderKind != room.KindPlatform {
			t.Errorf("%s: %+v", c.body, p.Answers)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(p.Answers[0].Body, w) {
				t.Errorf("%s: %q lacks %q", c.body, p.Answers[0].Body, w)
			}
		}
	}
	for _, e := range r.events(a) {
		if e.kind == room.EventCommand || e.flag {
			t.Errorf("the agent got %+v", e)
		}
	}
}

// directory notes what it was asked for.
type directory struct {
	asked []string
	err   error
}

func (d *directory) InviteAgent(_ context.Context, by room.Actor, _ uuid.UUID, name string) error {
	d.asked = append(d.asked, by.Name+" invites "+name)
	return d.err
}

func (d *directory) SetAlias(_ context.Context, by room.Actor, _, agentID uuid.UUID, alias string) (room.Member, error) {
	d.asked = append(d.asked, by.Name+" calls "+agentID.String()+" "+alias)
	return room.Member{}, d.err
}

func TestCommandsForTheDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	dir := &directory{}
	r.log.UseDirectory(dir)
	alice := r.person("alice")
	a := r.agent("agent", alice)
	in := r.room(room.ChannelPublic, alice, a)
	id := a.ID.String()
	for _, c := range []struct {
		body, asked, want string
		err               error
	}{
		{"!invite-agent other", "alice invites other", "other is in this room", nil},
		{"!invite-agent @other", "alice invites other", "other is in this room", nil},
		{"!invite-agent", "", "Say whom", nil},
		{"!invite-agent two agents", "", "Say whom", nil},
		{"!invite-agent other", "alice invites other", "refused: agent other does not exist.",
			fault.New(fault.NotFound, "agent other does not exist")},
		{"!set-alias @agent Bob", "alice calls " + id + " Bob", "agent is also called Bob", nil},
		{"!set-alias @agent @Bob", "alice calls " + id + " Bob", "agent is also called Bob", nil},
		{"!set-alias @agent", "alice calls " + id + " ", "agent has no alias", nil},
		{"!set-alias agent Bob", "", "Say it like this", nil},
		{"!set-alias", "", "Say it like this", nil},
		{"!set-alias @agent a b", "", "Say it like this", nil},
		{"!set-alias @nobody Bob", "", "No agent in this room has the name, alias or role nobody", nil},
		{"!set-alias @agent x", "alice calls " + id + " x", "refused: alias: taken.", fault.Field("alias", "taken")},
	} {
		dir.asked, dir.err = nil, c.err
		p := r.say(in, alice, c.body)
		if got := strings.Join(dir.asked, "; "); got != c.asked {
			t.Errorf("%s: asked %q, want %q", c.body, got, c.asked)
		}
		if len(p.Answers) != 1 || !strings.Contains(p.Answers[0].Body, c.want) {
			t.Errorf("%s: %+v", c.body, p.Answers)
		}
	}

	before := r.counts()
	dir.err = fault.New(fault.Unavailable, "the appliance is stopping")
	d := timeline.Draft{Actor: alice, RoomID: in.ID, Body: "!invite-agent other", RequestID: "r"}
	if _, err := r.log.Post(ctx, d); !errors.Is(err, dir.err) {
		t.Errorf("a failure of the directory: %v", err)
	}
	if got := r.counts(); got != before {
		t.Errorf("rows changed from %v to %v", before, got)
	}
	dir.err, dir.asked = nil, nil
	first := r.post(d)
	if again := r.post(d); !again.Repeated || again.Item.ID != first.Item.ID || len(dir.asked) != 1 {
		t.Errorf("repeated %+v, asked %v", again, dir.asked)
	}
	dir.asked = nil
	if _, err := r.log.Post(ctx, timeline.Draft{Actor: r.person("eve"), RoomID: in.ID, Body: "!invite-agent other"}); err == nil ||
		dir.asked != nil {
		t.Errorf("from outside: %v, asked %v", err, dir.asked)
	}
}
