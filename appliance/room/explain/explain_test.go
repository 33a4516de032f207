package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

var (
	at    = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	owner = room.Actor{Kind: room.KindPerson, No: 1, ID: uuid.New(), Name: "olga", OwnerNo: 1}
	other = room.Actor{Kind: room.KindPerson, No: 2, ID: uuid.New(), Name: "ben", OwnerNo: 2}
)

// facts is a message that was queued for a member, with the changes of a case.
func facts(change func(*Facts)) Facts {
	agent := room.Agent{No: 7, ID: uuid.New(), Name: "build-bot", OwnerNo: 1}
	f := Facts{
		Item: room.Item{No: 40, Position: 12, Kind: room.ItemMessage, SenderKind: room.KindPerson, SenderNo: other.No,
			SenderName: other.Name, Body: "@build-bot status?", At: at},
		Room: room.Room{No: 3, ID: uuid.New(), Name: "plaza", Channel: room.ChannelPublic}, Agent: agent, Sender: other,
		Member: &room.Member{Agent: agent, Alias: "bb", JoinedPosition: 4, JoinedAt: at.Add(-time.Hour)},
		Queued: &Queued{Sequence: 100, Flag: true, At: at},
	}
	change(&f)
	return f
}

func delivery(conn, outcome string) Delivery {
	return Delivery{Connection: conn, Generation: 9, Transport: "websocket", Outcome: outcome, At: at.Add(2 * time.Millisecond)}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	live := Connection{ID: "c1", Scope: "all", Cursor: 100, Attached: true, Covers: true}
	with := func(change func(*Connection)) Connection { c := live; change(&c); return c }
	tests := []struct {
		name   string
		change func(*Facts)
		want   Code
		says   []string
	}{
		{"delivered", func(f *Facts) {
			f.Connections, f.Deliveries = []Connection{live}, []Delivery{delivery("c1", OutcomeDelivered)}
		}, Delivered, []string{"number 100", "connection c1 (generation 9, websocket)", "2ms after it was queued", "Delivered to connection c1"}},
		{"delivered, connection gone", func(f *Facts) { f.Deliveries = []Delivery{delivery("c1", OutcomeDelivered)} }, Delivered, nil},
		{"delivered wins over a filter elsewhere", func(f *Facts) {
			f.Deliveries = []Delivery{delivery("c2", OutcomeFiltered), delivery("c1", OutcomeDelivered)}
		}, Delivered, nil},
		{"delivered but not addressed", func(f *Facts) {
			f.Item.Body, f.Queued.Flag = "hello", false
			f.Deliveries = []Delivery{delivery("c1", OutcomeDelivered)}
		}, Delivered, []string{"mentions neither @build-bot", "does nothing about it"}},
		{"own post", func(f *Facts) {
			f.Queued, f.Item.SenderKind, f.Item.SenderNo = nil, room.KindAgent, 7
		}, OwnPost, []string{"never receives its own posts"}},
		{"own join", func(f *Facts) {
			f.Queued, f.Item.Kind, f.Item.SenderKind, f.Item.SenderNo = nil, room.ItemJoin, room.KindAgent, 7
		}, OwnPost, []string{"own join"}},
		{"detached and held", func(f *Facts) {
			f.Connections = []Connection{with(func(c *Connection) {
				c.Scope, c.Cursor, c.Held, c.Attached, c.Covers, c.Holder = "single", 90, true, false, false, "c9"
			})}
		}, NotCovered, []string{"connection c9 has claimed the room"}},
		{"a person with the agent's number is not the agent", func(f *Facts) {
			f.Queued, f.Item.SenderNo = nil, 7
		}, NotKept, nil},
		{"not a member", func(f *Facts) { f.Queued, f.Member = nil, nil }, NotMember, []string{"signalbox rooms invite plaza build-bot"}},
		{"quoted room name", func(f *Facts) { f.Queued, f.Member, f.Room.Name = nil, nil, "it's big" }, NotMember,
			[]string{`signalbox rooms invite 'it'\''s big' build-bot`}},
		{"joined later", func(f *Facts) { f.Queued, f.Member.JoinedPosition = nil, 12 }, JoinedLate, []string{"2026-06-01T11:00:00.000Z"}},
		{"joined just before", func(f *Facts) { f.Queued, f.Member.JoinedPosition = nil, 11 }, NotKept, nil},
		{"dropped", func(f *Facts) { f.Queued, f.Dropped = nil, 150 }, Dropped, []string{"up to number 150", "got a gap"}},
		{"command for others", func(f *Facts) { f.Queued, f.Item.Kind = nil, room.ItemCommand }, NotForIt, []string{"names"}},
		{"command, perhaps dropped", func(f *Facts) { f.Queued, f.Item.Kind, f.Dropped = nil, room.ItemCommand, 8 }, NotForIt,
			[]string{"retention removed"}},
		{"not kept", func(f *Facts) { f.Queued = nil }, NotKept, nil},
		{"offline", func(*Facts) {}, Offline, []string{"no live connection", "resumes from a number below 100"}},
		{"behind", func(f *Facts) { f.Connections = []Connection{with(func(c *Connection) { c.Cursor = 99 })} }, Waiting,
			[]string{"has read up to 99, 1 number behind it"}},
		{"detached", func(f *Facts) {
			f.Connections = []Connection{with(func(c *Connection) { c.Cursor, c.Attached = 90, false })}
		}, Waiting, []string{"no stream attached; it resumes after 90"}},
		{"held", func(f *Facts) {
			f.Connections = []Connection{with(func(c *Connection) { c.Scope, c.Cursor, c.Held, c.Covers = "single", 90, true, false })}
		}, Waiting, []string{"is held"}},
		{"held with the filter", func(f *Facts) {
			f.Queued.Flag, f.Item.Body = false, "hello"
			f.Connections = []Connection{with(func(c *Connection) { c.Addressed, c.Cursor, c.Held, c.Covers = true, 90, true, false })}
		}, Filtered, nil},
		{"will be filtered", func(f *Facts) {
			f.Queued.Flag, f.Item.Body = false, "hello"
			f.Connections = []Connection{with(func(c *Connection) { c.Addressed, c.Cursor = true, 90 })}
		}, Filtered, []string{"its filter is addressed"}},
		{"a command is never notifiable", func(f *Facts) {
			f.Item.Kind = room.ItemCommand
			f.Connections = []Connection{with(func(c *Connection) { c.Addressed, c.Cursor = true, 90 })}
		}, Filtered, nil},
		{"was filtered", func(f *Facts) {
			f.Connections, f.Deliveries = []Connection{live}, []Delivery{delivery("c1", OutcomeFiltered)}
		}, Filtered, []string{"was passed over on connection c1"}},
		{"was filtered, connection gone", func(f *Facts) { f.Deliveries = []Delivery{delivery("c1", OutcomeFiltered)} }, Filtered, nil},
		{"claimed by a sibling", func(f *Facts) {
			f.Connections = []Connection{with(func(c *Connection) { c.Cursor, c.Covers, c.Holder = 90, false, "c9" })}
		}, NotCovered, []string{"connection c9 has claimed the room", "a start below 100 replays it"}},
		{"no claim", func(f *Facts) {
			f.Connections = []Connection{with(func(c *Connection) { c.Scope, c.Cursor, c.Covers = "single", 90, false })}
		}, NotCovered, []string{"has not claimed the room"}},
		{"was not covered", func(f *Facts) {
			f.Connections, f.Deliveries = []Connection{live}, []Delivery{delivery("c1", OutcomeNotCovered)}
		}, NotCovered, []string{"did not cover the room then"}},
		{"fell into a gap", func(f *Facts) {
			f.Connections, f.Deliveries = []Connection{live}, []Delivery{delivery("c1", OutcomeGap)}
		}, InGap, []string{"was told of"}},
		{"waits on one, passed over on another", func(f *Facts) {
			f.Deliveries = []Delivery{delivery("c2", OutcomeNotCovered)}
			f.Connections = []Connection{with(func(c *Connection) { c.Cursor = 90 })}
		}, Waiting, nil},
		{"beyond it without a record", func(f *Facts) { f.Connections = []Connection{live} }, Passed, []string{"no record says"}},
	}
	seen := map[Code]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Explain(facts(tt.change))
			seen[got.Code] = true
			text := got.Summary + "\n" + strings.Join(got.Sentences, "\n")
			if got.Code != tt.want {
				t.Errorf("code %s, want %s:\n%s", got.Code, tt.want, text)
			}
			for _, want := range tt.says {
				if !strings.Contains(text, want) {
					t.Errorf("does not say %q:\n%s", want, text)
				}
			}
			if got.Summary == "" || len(got.Sentences) == 0 {
				t.Errorf("says nothing: %+v", got)
			}
		})
	}
	for _, c := range []Code{Delivered, Waiting, Filtered, NotCovered, Passed, Offline, OwnPost, NotMember, JoinedLate, NotForIt, Dropped, NotKept, InGap} {
		if !seen[c] {
			t.Errorf("no case gives %s", c)
		}
	}
}

func TestAddressed(t *testing.T) {
	t.Parallel()
	ownerOnly := func(f *Facts) { f.Agent.Policy = room.OwnerOnly() }
	tests := []struct {
		name   string
		change func(*Facts)
		value  bool
		want   Rule
		says   string
	}{
		{"name", func(*Facts) {}, true, RuleName, "@build-bot"},
		{"direct", func(f *Facts) { f.Room.Channel, f.Item.Body = room.ChannelDirect, "hi" }, true, RuleDirect, "direct"},
		{"alias", func(f *Facts) { f.Item.Body = "@BB, hi" }, true, RuleAlias, "@bb, which is build-bot"},
		{"role", func(f *Facts) { f.Item.Body, f.Role = "@reviewer hi", "reviewer" }, true, RuleRole, "@reviewer, the role"},
		{"addressed by what is gone", func(f *Facts) { f.Item.Body = "@old hi" }, true, RuleEarlier, "changed since"},
		{"nothing mentioned", func(f *Facts) { f.Item.Body, f.Queued.Flag = "@build-bot.", false }, false, RuleNone, "full stop"},
		{"a notice", func(f *Facts) { f.Item.Automatic, f.Queued.Flag = true, false }, false, RuleNotice, "notice"},
		{"owner-only", func(f *Facts) { ownerOnly(f); f.Queued.Flag = false }, false, RulePolicy, "signalbox roomagents policy build-bot --open"},
		{"owner-only, the owner", func(f *Facts) { ownerOnly(f); f.Sender = owner; f.Queued.Flag = false }, false, RuleEarlier, "Today it would be"},
		{"another policy", func(f *Facts) {
			f.Agent.Policy = &room.Policy{Rules: []room.Rule{{Rooms: room.Selector{All: true}, RoomGroups: room.Selector{All: true}, OwnerAgents: true}}}
			f.Queued.Flag = false
		}, false, RulePolicy, "does not admit ben"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Explain(facts(tt.change)).Addressed
			if got == nil || got.Value != tt.value || got.Rule != tt.want || !strings.Contains(got.Text, tt.says) {
				t.Errorf("got %+v, want %v by %s saying %q", got, tt.value, tt.want, tt.says)
			}
		})
	}
	if got := Explain(facts(func(f *Facts) { f.Item.Kind = room.ItemJoin })).Addressed; got != nil {
		t.Errorf("a join is addressed: %+v", got)
	}
}
