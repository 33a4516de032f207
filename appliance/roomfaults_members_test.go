package appliance_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/roomclient"
)

// member is an agent that joins and leaves rooms while it is followed.
type member struct {
	cfg  roomclient.Config
	f    *follower
	stay uuid.UUID // the room that it never leaves

	windows []window
	after   []string // bodies posted when it was no longer in
}

// window is a time in a room: what was said from its join to the mark, both within, must have been heard.
type window struct {
	room uuid.UUID
	mark string // body
}

// TestNothingIsLostUnderJoinsAndLeaves has agents join and leave rooms at random while all of the rooms are spoken in, and
// breaks their streams now and then. What is said in a room is heard by whoever is in it, in order and once; what is said
// after an agent has left is not heard by it, and leaving makes no gap.
func TestNothingIsLostUnderJoinsAndLeaves(t *testing.T) {
	t.Parallel()
	const agents, roomCount, rounds = 6, 3, 6
	s := appliancetest.Start(t, configure(unlimited))
	p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
	members := make([]*member, agents)
	rooms := make([]uuid.UUID, roomCount)
	for i := range members {
		members[i] = &member{cfg: s.RoomAgent(fmt.Sprintf("agent-%d", i))}
	}
	home := s.Room("home")
	for i := range rooms {
		rooms[i] = s.Room(fmt.Sprintf("room-%d", i))
	}
	for i, m := range members {
		m.stay = home
		s.Do("POST", "/rooms/"+home.String()+"/agents", map[string]any{"agent_ids": []uuid.UUID{m.cfg.AgentID}}, http.StatusOK, nil)
		m.f = follow(t, m.cfg, p.URL(), 0, func(f *follower) { f.client.SSEOnly, f.holes = i%2 == 1, true })
	}
	var stop atomic.Bool
	var talking, churning sync.WaitGroup
	for i, r := range append(rooms, home) {
		talking.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if _, err := s.Say(r, fmt.Sprintf("talk-%d-%d", i, n)); err != nil {
					t.Errorf("say: %v", err)
					return
				}
			}
		})
	}
	for i, m := range members {
		churning.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range rounds {
				r := rooms[rnd.IntN(len(rooms))]
				if err := m.visit(s, r, fmt.Sprintf("%d-%d", i, n)); err != nil {
					t.Errorf("agent %d, visit %d: %v", i, n, err)
					return
				}
				if rnd.IntN(2) == 0 {
					m.f.drop()
				}
			}
		})
	}
	churning.Wait()
	stop.Store(true)
	talking.Wait()
	last := say(t, s, home, "the end")
	for _, m := range members {
		m.f.until(t, "the end", func() bool { return m.f.heard[last.ID.String()] })
		m.f.stop()
		if len(m.f.gaps) > 0 {
			t.Errorf("gaps: %+v", m.f.gaps)
		}
	}
	if t.Failed() {
		return
	}
	heard, streams := 0, 0
	for _, m := range members {
		heard += len(m.f.events)
		streams += m.f.states
	}
	t.Logf("%d events heard on %d streams", heard, streams)
	s.Stop()
	db, err := sql.Open("sqlite", "file:"+s.DatabasePath()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i, m := range members {
		m.check(t, db, i)
	}
}

// visit joins the room, waits until what is said there is heard, leaves it, and says something more.
func (m *member) visit(s *appliancetest.Server, r uuid.UUID, name string) error {
	path := "/rooms/" + r.String() + "/agents"
	if err := s.Try("POST", path, map[string]any{"agent_ids": []uuid.UUID{m.cfg.AgentID}}, nil); err != nil {
		return err
	}
	mark, err := s.Say(r, "mark-"+name)
	if err != nil {
		return err
	}
	if err := m.f.await(func() bool { return m.f.heard[mark.ID.String()] }); err != nil {
		return fmt.Errorf("waiting for %s: %w", mark.ID, err)
	}
	m.windows = append(m.windows, window{r, "mark-" + name})
	if err := s.Try("DELETE", path+"/"+m.cfg.AgentID.String(), nil, nil); err != nil {
		return err
	}
	m.after = append(m.after, "after-"+name)
	_, err = s.Say(r, "after-"+name)
	return err
}

// check compares what the member has heard with the logs of the rooms.
func (m *member) check(t *testing.T, db *sql.DB, i int) {
	t.Helper()
	bodies := map[string]bool{}
	perRoom := map[uuid.UUID][]string{}
	for _, h := range m.f.events {
		if h.Message == "" {
			continue
		}
		if bodies[h.Body] {
			t.Errorf("agent %d heard %s twice", i, h.Body)
		}
		bodies[h.Body] = true
		perRoom[h.RoomID] = append(perRoom[h.RoomID], h.Body)
	}
	for _, body := range m.after {
		if bodies[body] {
			t.Errorf("agent %d heard %s after it had left", i, body)
		}
	}
	positions := func(query string, args ...any) map[string]int64 {
		rows, err := db.Query(query, args...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		at := map[string]int64{}
		for rows.Next() {
			var body string
			var position int64
			if err := rows.Scan(&body, &position); err != nil {
				t.Fatal(err)
			}
			at[body] = position
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return at
	}
	const said = `SELECT body, position FROM room_items WHERE kind = 'message' AND room_no = (SELECT room_no FROM rooms WHERE id = ?1)`
	for r, heard := range perRoom {
		at, last := positions(said, r[:]), int64(0)
		for _, body := range heard {
			if at[body] <= last {
				t.Errorf("agent %d heard %s of position %d after position %d", i, body, at[body], last)
			}
			last = at[body]
		}
	}
	for body := range positions(said, m.stay[:]) {
		if !bodies[body] {
			t.Errorf("agent %d has not heard %s of the room it never left", i, body)
		}
	}
	for _, w := range m.windows {
		must := positions(said+` AND position <= (SELECT position FROM room_items WHERE body = ?2 AND room_no = (SELECT room_no FROM rooms WHERE id = ?1))
AND position > (SELECT max(j.position) FROM room_items j WHERE j.kind = 'room_join' AND j.room_no = room_items.room_no AND j.sender_id = ?3
	AND j.position < (SELECT position FROM room_items WHERE body = ?2 AND room_no = (SELECT room_no FROM rooms WHERE id = ?1)))`,
			w.room[:], w.mark, m.cfg.AgentID.String())
		if len(must) == 0 {
			t.Errorf("agent %d: nothing was said up to %s", i, w.mark)
		}
		for body := range must {
			if !bodies[body] {
				t.Errorf("agent %d has not heard %s before %s", i, body, w.mark)
			}
		}
	}
}
