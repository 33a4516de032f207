// Package explain says what became of one room item for one agent: whether it was queued, under which number, whether it
// was addressed and why, over which connection it went, and if it did not arrive, why not. It is pure: the same facts
// give the same sentences. Section names in comments are those of the rooms protocol.
package explain

import (
	"fmt"
	"strings"
	"time"

	"signalbox/appliance/room"
)

// Code is the answer in one word.
type Code string

// The answers.
const (
	Delivered  Code = "delivered"   // written to a connection
	Waiting    Code = "waiting"     // a connection will come to it
	Filtered   Code = "filtered"    // passed over: the connection's filter
	NotCovered Code = "not_covered" // passed over: the connection did not cover the room
	Passed     Code = "passed"      // behind the cursor of every connection, and no record says how
	Offline    Code = "offline"     // kept, and no connection is there
	OwnPost    Code = "own_post"    // never queued: the agent's own
	NotMember  Code = "not_member"  // never queued, or taken away: the agent is not in the room
	JoinedLate Code = "joined_late" // never queued: older than the membership
	NotForIt   Code = "not_for_it"  // never queued: a command for others
	Dropped    Code = "dropped"     // queued, and removed by retention
	NotKept    Code = "not_kept"    // not in the buffer, and no record says why
	InGap      Code = "gap"         // passed over: the connection was told of a gap that it fell into
)

// How an event ended on a stream.
const (
	OutcomeDelivered  = "delivered"
	OutcomeFiltered   = "filtered"
	OutcomeNotCovered = "not_covered"
	OutcomeGap        = "gap"
)

// Queued is the event of the item that waits for the agent.
type Queued struct {
	Sequence int64
	Flag     bool // addressed of a message, listening of a join
	At       time.Time
}

// Delivery is what one stream did with the event. The records are in memory and bounded: none proves nothing.
type Delivery struct {
	Connection string
	Generation int64
	Transport  string
	Outcome    string
	At         time.Time
}

// Connection is a live connection of the agent as it is now.
type Connection struct {
	ID        string
	Scope     string // single or all
	Addressed bool   // its filter passes only what the agent has to notice (D.9)
	Cursor    int64
	Attached  bool
	Held      bool   // single and still without a claim (E.4)
	Covers    bool   // the item's room (F.2)
	Holder    string // the sibling that claims the room; "" when none does
}

// Facts is all that an explanation looks at.
type Facts struct {
	Item        room.Item
	Room        room.Room
	Agent       room.Agent
	Sender      room.Actor   // as far as it is still known
	Member      *room.Member // nil: not in the room now
	Role        string       // that the agent live-holds in the room now
	Queued      *Queued      // nil: no event of the item is kept
	Dropped     int64        // highest number of the agent's events in the room that retention dropped; 0: none
	Deliveries  []Delivery   // of the event, oldest first
	Connections []Connection
}

// Path is what one live connection will do, or did, with the event.
type Path struct {
	Connection string
	State      Code // Delivered, Waiting, Filtered, NotCovered, InGap or Passed
	Text       string
}

// Explanation is the answer.
type Explanation struct {
	Code      Code
	Summary   string
	Sentences []string
	Paths     []Path
	Addressed *Addressed // nil: not a message, or it never could be
}

// Explain answers.
func Explain(f Facts) Explanation {
	e := explanation{Facts: f, out: Explanation{Sentences: []string{}, Paths: []Path{}}}
	e.origin()
	switch {
	case f.Queued != nil:
		e.queued()
	case e.isOwn() && f.Item.Kind == room.ItemJoin:
		e.end(OwnPost, "It is %s's own join: an agent is not told of itself.", f.Agent.Name)
	case e.isOwn():
		e.end(OwnPost, "%s wrote it itself: an agent never receives its own posts.", f.Agent.Name)
	case f.Member == nil:
		e.end(NotMember, "%s is not in the room now.", f.Agent.Name)
		e.say("If it was when the item was posted, its events of the room went when it left.")
		e.say("`signalbox rooms invite %s %s` brings it in; what was said before is in the history, not in its events.",
			shellWord(f.Room.Name), f.Agent.Name)
	case f.Member.JoinedPosition >= f.Item.Position:
		e.end(JoinedLate, "%s joined the room after it, at %s.", f.Agent.Name, stamp(f.Member.JoinedAt))
		e.say("Items from before an agent joined are never queued for it; they are in the history that it can read.")
	default:
		e.missing()
	}
	return e.out
}

type explanation struct {
	Facts
	out Explanation
}

func (e *explanation) say(format string, args ...any) {
	e.out.Sentences = append(e.out.Sentences, fmt.Sprintf(format, args...))
}

// end settles the answer.
func (e *explanation) end(c Code, format string, args ...any) {
	e.out.Code, e.out.Summary = c, fmt.Sprintf(format, args...)
}

func (e *explanation) isOwn() bool {
	return e.Item.SenderKind == room.KindAgent && e.Item.SenderNo == e.Agent.No
}

var nouns = map[room.ItemKind]string{room.ItemMessage: "The message", room.ItemCommand: "The command", room.ItemJoin: "The join"}

// origin says what is spoken of.
func (e *explanation) origin() {
	e.say("%s is item %d of room %s, by %s at %s.", nouns[e.Item.Kind], e.Item.Position, e.Room.Name, e.Item.SenderName,
		stamp(e.Item.At))
}

// queued explains an event that is in the buffer.
func (e *explanation) queued() {
	q := e.Queued
	e.say("It was queued for %s as number %d at %s and is still kept.", e.Agent.Name, q.Sequence, stamp(q.At))
	if e.Item.Kind == room.ItemMessage {
		a := e.addressed()
		e.out.Addressed = &a
		e.say("%s", a.Text)
	}
	delivered := e.records()
	waiting := e.paths()
	switch {
	case len(delivered) > 0:
		d := delivered[0]
		e.end(Delivered, "Delivered to connection %s at %s.", d.Connection, stamp(d.At))
	case waiting != "":
		e.end(Waiting, "Waiting: %s", waiting)
	case len(e.Connections) == 0 && len(e.Deliveries) == 0:
		e.end(Offline, "Kept for %s, which has no live connection.", e.Agent.Name)
		e.say("A client that resumes from a number below %d gets it, while it is kept; one that opens at the head does not.", q.Sequence)
	default:
		e.over()
	}
	if len(delivered) > 0 && e.Item.Kind == room.ItemMessage && !q.Flag {
		e.say("An agent that only acts on what is addressed to it does nothing about it.")
	}
}

// records tells what streams did with the event, and returns the deliveries.
func (e *explanation) records() (delivered []Delivery) {
	for _, d := range e.Deliveries {
		where := fmt.Sprintf("connection %s (generation %d, %s)", d.Connection, d.Generation, d.Transport)
		switch d.Outcome {
		case OutcomeDelivered:
			delivered = append(delivered, d)
			e.say("It was written to %s at %s, %s after it was queued.", where, stamp(d.At), d.At.Sub(e.Queued.At).Round(time.Millisecond/10))
		case OutcomeFiltered:
			e.say("It was passed over on %s at %s: the filter is addressed.", where, stamp(d.At))
		case OutcomeGap:
			e.say("It fell into a gap that %s was told of at %s.", where, stamp(d.At))
		default:
			e.say("It was passed over on %s at %s: the connection did not cover the room then.", where, stamp(d.At))
		}
	}
	return delivered
}

// paths says what every live connection does with the event, and returns what the first that will come to it waits for.
func (e *explanation) paths() (waiting string) {
	for i := range e.Connections {
		c := &e.Connections[i]
		p := e.path(c)
		e.out.Paths = append(e.out.Paths, p)
		if p.State == Waiting && waiting == "" {
			waiting = fmt.Sprintf("connection %s %s", c.ID, p.Text)
		}
		e.say("Connection %s %s", c.ID, p.Text)
	}
	return waiting
}

// notifiable tells whether filter=addressed lets the event through (D.9).
func (e *explanation) notifiable() bool { return e.Item.Kind != room.ItemCommand && e.Queued.Flag }

func (e *explanation) path(c *Connection) Path {
	p := Path{Connection: c.ID}
	switch {
	case c.Cursor >= e.Queued.Sequence:
		p.State, p.Text = Passed, fmt.Sprintf("has read up to %d, beyond it.", c.Cursor)
		for _, d := range e.Deliveries {
			if d.Connection == c.ID {
				p.State = outcome(d.Outcome)
			}
		}
	case c.Addressed && !e.notifiable():
		p.State, p.Text = Filtered, "passes it over: its filter is addressed."
	case c.Held && c.Attached:
		p.State, p.Text = Waiting, "is held: it is single and has claimed no room yet; it reads on with its first claim."
	case !c.Covers && c.Holder != "":
		p.State, p.Text = NotCovered, fmt.Sprintf("passes it over: connection %s has claimed the room.", c.Holder)
	case !c.Covers:
		p.State, p.Text = NotCovered, "passes it over: it is single and has not claimed the room."
	case !c.Attached:
		p.State, p.Text = Waiting, fmt.Sprintf("has no stream attached; it resumes after %d.", c.Cursor)
	default:
		p.State, p.Text = Waiting, fmt.Sprintf("has read up to %d, %s behind it.", c.Cursor, count(e.Queued.Sequence-c.Cursor))
	}
	return p
}

func outcome(s string) Code {
	switch s {
	case OutcomeDelivered:
		return Delivered
	case OutcomeFiltered:
		return Filtered
	case OutcomeGap:
		return InGap
	}
	return NotCovered
}

// over answers when no stream delivered the event and none will.
func (e *explanation) over() {
	for _, c := range []Code{InGap, Filtered, NotCovered} {
		for _, p := range e.out.Paths {
			if p.State == c {
				e.passedOver(c, p.Connection)
				return
			}
		}
		for _, d := range e.Deliveries {
			if outcome(d.Outcome) == c {
				e.passedOver(c, d.Connection)
				return
			}
		}
	}
	e.end(Passed, "Every live connection of %s is beyond it, and no record says whether it was written.", e.Agent.Name)
	e.say("They opened at the head after it, were given it before this server started, or the record of it is no longer kept.")
}

func (e *explanation) passedOver(c Code, connection string) {
	switch c {
	case Filtered:
		e.end(c, "Passed over on connection %s: its filter is addressed, and this is not for its notice.", connection)
		return
	case InGap:
		e.end(c, "Lost to connection %s in a gap, which it was told of.", connection)
		return
	}
	e.end(c, "Passed over on connection %s, which does not cover the room.", connection)
	e.say("A reopen with the room in rooms= and a start below %d replays it, while it is kept.", e.Queued.Sequence)
}

// missing explains a member without an event.
func (e *explanation) missing() {
	switch {
	case e.Item.Kind == room.ItemCommand:
		e.end(NotForIt, "No event of the command is kept for %s.", e.Agent.Name)
		e.say("A command is queued only for agents that it names, that let the sender direct them, and that obey it; the room's answer says which.")
		if e.Dropped > 0 {
			e.say("If it was one of them, retention removed the event since.")
		}
	case e.Dropped > 0:
		e.end(Dropped, "It was queued for %s, and retention has removed it.", e.Agent.Name)
		e.say("Retention has dropped the agent's events in this room up to number %d. A connection that had not come so far got a gap; "+
			"the item stays in the history.", e.Dropped)
		e.say("Which connections it was written to before that is no longer known.")
	default:
		e.end(NotKept, "No event of it is kept for %s, and no record says why.", e.Agent.Name)
	}
}

func count(n int64) string {
	if n == 1 {
		return "1 number"
	}
	return fmt.Sprintf("%d numbers", n)
}

// stamp is a time in a sentence.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// shellWord quotes a name for a command line when it needs it.
func shellWord(s string) string {
	plain := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
	if s != "" && plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
