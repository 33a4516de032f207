package roomconn

import (
	"encoding/json"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"time"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
	"signalbox/transport/roomclient"
)

// A stream that reads the database may see an event of a room before the registry has been told that the agent has
// joined it: both are of one commit, and what follows a commit takes its time. The event must not be passed over.
func TestEventsAheadOfTheJoin(t *testing.T) {
	for name, dial := range map[string]dialer{"socket": roomclient.Dial, "sse": roomclient.DialSSE} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.agent("bot")
			old, other := r.room("old", a), r.room("new")
			s, _ := r.open(dial, a, asks("c1", all))
			r.say(old, "first")
			if f, err := s.NextEvent(r.ctx); err != nil || f.ID != 1 {
				t.Fatal(f, err)
			}
			r.say(old, "left behind")
			if f, err := s.NextEvent(r.ctx); err != nil || f.ID != 2 {
				t.Fatal(f, err)
			}
			was, is := r.casts[old].Room.Ref(), r.casts[other].Room.Ref()
			r.update(func(tx *store.Tx) error {
				if _, err := tx.Exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at)
					VALUES (?,?,0,0,0)`, is.No, a.No); err != nil {
					return err
				}
				if err := r.feed.Forget(tx, a.No, was.No); err != nil { // has streams read the database, and wakes them
					return err
				}
				if _, err := tx.Exec(`DELETE FROM room_members WHERE room_no = ?`, was.No); err != nil {
					return err
				}
				tx.AfterCommit(func() { // the stream is faster than what follows
					for end := time.Now().Add(5 * time.Second); r.reg.List(a.No)[0].Cursor < 3 && time.Now().Before(end); {
						runtime.Gosched()
					}
				})
				tx.AfterCommit(func() { r.reg.Left(a.No, was.No) })
				tx.AfterCommit(func() { r.reg.Joined(a.No, is) })
				return r.put(tx, other, room.ItemMessage, "welcome", feed.Audience{})
			})
			r.say(other, "second")
			for _, want := range []string{"welcome", "second"} {
				var m message
				f, err := s.NextEvent(r.ctx)
				if err == nil {
					err = json.Unmarshal(f.Data, &m)
				}
				if err != nil || m.Payload.Body != want {
					t.Fatalf("got %q, want %q, %v", m.Payload.Body, want, err)
				}
			}
		})
	}
}

// A stream that finds its agent deleted before the registry has been told waits for that: its client is told so, and not
// that delivery failed.
func TestReadsAheadOfTheDeletion(t *testing.T) {
	for name, dial := range map[string]dialer{"socket": roomclient.Dial, "sse": roomclient.DialSSE} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.agent("bot")
			x := r.room("x", a)
			s, _ := r.open(dial, a, asks("c1", all))
			r.say(x, "first")
			if f, err := s.NextEvent(r.ctx); err != nil || f.ID != 1 {
				t.Fatal(f, err)
			}
			reads := r.reads.Load()
			r.update(func(tx *store.Tx) error {
				if err := r.feed.ForgetAgent(tx, a.No); err != nil { // wakes the stream
					return err
				}
				for _, table := range []string{"room_members", "room_agents"} {
					if _, err := tx.Exec(`DELETE FROM ` + table + ` WHERE room_agent_no = ` + strconv.FormatInt(a.No, 10)); err != nil {
						return err
					}
				}
				tx.AfterCommit(func() {
					for end := time.Now().Add(5 * time.Second); r.reads.Load() == reads && time.Now().Before(end); {
						runtime.Gosched()
					}
					r.reg.AgentClosed(a.No, "the agent was deleted")
				})
				return nil
			})
			var closed *roomclient.Closed
			for err := error(nil); closed == nil; {
				if _, err = s.Next(r.ctx); err != nil && !errors.As(err, &closed) {
					t.Fatal(err)
				}
			}
			if closed.Evicted == nil || closed.Evicted.Code != room.CodeClosed {
				t.Errorf("closed by %v", closed)
			}
		})
	}
}
