package appliance_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// Vector 18: a restart with durable data, also after 20 minutes down. Sockets close with 1012, no gap, nothing is
// duplicated or lost, the old generation opens.
func TestRoomVector18Restart(t *testing.T) {
	for what, down := range map[string]time.Duration{"at once": 0, "after 20 minutes": 20 * time.Minute} {
		t.Run(what, func(t *testing.T) {
			s := appliancetest.Start(t, frozen())
			agents := map[string]*roomclient.Config{"websocket": enlist(s, "socket"), "sse": enlist(s, "stream")}
			roomID := seats(s, "plaza", agents["websocket"], agents["sse"])
			type held struct {
				*roomclient.Stream
				roomclient.State
				open roomclient.Open
				last int64
			}
			streams := map[string]*held{}
			for via, cfg := range agents {
				o := opening(claiming(roomID))
				st, state := join(t, via, cfg, o)
				streams[via] = &held{Stream: st, State: state, open: o}
			}
			speak(t, s, roomID, "before")
			for via, h := range streams {
				h.last = hears(t, h.Stream, "before")
				// What comes now is in the stream, and is not handled any more.
				t.Logf("%s has read to %d", via, h.last)
			}
			speak(t, s, roomID, "1", "2", "3")
			for _, h := range streams {
				for range 3 {
					next(t, h.Stream, roomclient.FrameMessage, nil)
				}
			}
			s.Stop()
			for via, h := range streams {
				c := over(t, h.Stream)
				if c.Evicted != nil || via == "websocket" && c.Code != 1012 {
					t.Errorf("%s ended with %v, want 1012 and no evicted", via, &c)
				}
			}
			s.Clock.Advance(down)
			s.Restart()
			for via, h := range streams {
				cfg := back(s, agents[via])
				o := h.open
				o.StartFrom, o.ExpectedGeneration = &h.last, &h.Generation
				st, state := join(t, via, cfg, o)
				if state.Generation <= h.Generation || !slices.Equal(state.Rooms, []string{roomID}) || state.Cursor != h.last {
					t.Errorf("%s is back with %+v", via, state)
				}
				if got := hears(t, st, "1", "2", "3"); got != h.last+3 {
					t.Errorf("%s: the last of three is %d, want %d", via, got, h.last+3)
				}
				h.Stream = st
			}
			speak(t, s, roomID, "after")
			for via, h := range streams {
				if got := hears(t, h.Stream, "after"); got != h.last+4 {
					t.Errorf("%s: the next is %d, want %d", via, got, h.last+4)
				}
			}
		})
	}
}

// client is a whole client whose endings are kept.
type client struct {
	*roomclient.Client
	states  chan roomclient.State
	events  chan roomclient.Frame
	gaps    chan roomclient.Gap
	endings chan roomclient.Ending
	stopped chan roomclient.Ending
}

// live runs a client of revision 8 on the system's time with pauses that are short; it stops with the test. hold, unless
// it is nil, is called with every gap before that counts as handled.
func live(t *testing.T, cfg *roomclient.Config, o roomclient.Open, hold func(roomclient.Gap)) *client {
	t.Helper()
	c := &client{states: make(chan roomclient.State, 64), events: make(chan roomclient.Frame, 64), gaps: make(chan roomclient.Gap, 8),
		endings: make(chan roomclient.Ending, 64), stopped: make(chan roomclient.Ending, 1)}
	config := *cfg
	config.Clock = nil
	config.Jitter = func(time.Duration, time.Duration) time.Duration { return time.Millisecond }
	c.Client = &roomclient.Client{Config: config, Open: o, Handler: roomclient.Handler{
		Connected: func(s roomclient.State) { c.states <- s },
		Event:     func(_ context.Context, f roomclient.Frame) error { c.events <- f; return nil },
		Gap: func(_ context.Context, g roomclient.Gap) error {
			c.gaps <- g
			if hold != nil {
				hold(g)
			}
			return nil
		},
		Ended: func(e roomclient.Ending) {
			select {
			case c.endings <- e:
			default: // as many attempts while the server was down
			}
		},
	}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.stopped <- c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// receive takes from a channel, or fails the test.
func take[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-limit(t).Done():
		t.Fatalf("%s does not come", what)
		panic("not reached")
	}
}

// Vector 18: the client comes back by itself, through what stands before the server, within the pauses of a restart.
func TestRoomVector18ClientsComeBack(t *testing.T) {
	s := appliancetest.Start(t)
	proxy := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
	cfg := s.RoomAgent("bot")
	cfg.Endpoint = proxy.URL()
	roomID := seats(s, "plaza", &cfg)
	c := live(t, &cfg, opening(claiming(roomID)), nil)
	first := take(t, "connection_state", c.states)
	speak(t, s, roomID, "before")
	take(t, "an event", c.events)
	s.Stop()
	e := take(t, "the ending", c.endings)
	if e.Closed.Code != 1012 || e.Stop != "" || e.Pause > time.Second {
		t.Errorf("ended with %+v", e)
	}
	s.Restart()
	proxy.Retarget(strings.TrimPrefix(s.URL(), "http://"))
	if again := take(t, "connection_state", c.states); again.Generation <= first.Generation || !slices.Equal(again.Rooms, []string{roomID}) {
		t.Errorf("back with %+v", again)
	}
	speak(t, s, roomID, "after")
	if f := take(t, "an event", c.events); !strings.Contains(string(f.Data), `"after"`) {
		t.Errorf("heard %s", f.Data)
	}
	for len(c.endings) > 0 { // attempts meanwhile
		if e := <-c.endings; e.Pause > time.Second || e.Stop != "" {
			t.Errorf("an attempt ended with %+v", e)
		}
	}
	select {
	case g := <-c.gaps:
		t.Errorf("a gap: %+v", g)
	default:
	}
}

// copyFile copies a file.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Vector 19: an older database is put back. Cursors from before get one reset gap, pongs that still carry them skip
// nothing, no number is issued twice.
func TestRoomVector19RestoredDatabase(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	cfg, idle := enlist(s, "bot"), enlist(s, "idle")
	roomID := seats(s, "plaza", cfg, idle)
	speak(t, s, roomID, "old")
	s.Stop()
	older := t.TempDir() + "/older.db"
	copyFile(t, s.DatabasePath(), older)
	s.Restart()
	lost, _ := join(t, "websocket", back(s, cfg), opening(claiming(roomID)))
	speak(t, s, roomID, "lost 1", "lost 2")
	cursor := hears(t, lost, "lost 1", "lost 2")
	s.Stop()
	copyFile(t, older, s.DatabasePath())
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Remove(s.DatabasePath() + suffix)
	}
	s.Restart()
	cfg = back(s, cfg)

	st, state := join(t, "websocket", cfg, opening(covering))
	st.Drop()
	restored := state.Cursor
	if restored <= cursor {
		t.Fatalf("head is %d after the restore, and %d was issued before", restored, cursor)
	}
	var said []string // since the restore
	for what, at := range map[string]int64{"a cursor from before": cursor, "a cursor beyond the head": restored + 1000} {
		for via := range carriers {
			t.Run(what+" over "+via, func(t *testing.T) {
				head, replayed := restored+int64(len(said)), []string(nil)
				if at == cursor { // what was said since the restore is not lost
					head, replayed = restored, said
				}
				st, state := join(t, via, cfg, opening(claiming(roomID), resuming(at)))
				var g roomclient.Gap
				next(t, st, roomclient.FrameGap, &g)
				if !g.AllRooms || g.ResumedAt != head || g.From != at || !slices.Equal(g.Rooms, []string{roomID}) || g.Reason == "" {
					t.Errorf("gap %+v, want everything lost and resumed_at %d", g, head)
				}
				if state.Cursor != head {
					t.Errorf("cursor is %d, want %d", state.Cursor, head)
				}
				hears(t, st, replayed...)
				// The gap is not handled yet: signs of life carry the old cursor.
				if via == "websocket" {
					if err := st.Pong(at); err != nil {
						t.Fatal(err)
					}
				} else if _, err := cfg.Beat(limit(t), roomclient.BeatRequest{ConnectionID: state.ConnectionID, Cursor: at,
					Generation: &state.Generation}); err != nil {
					t.Fatal(err)
				}
				speak(t, s, roomID, "new 1", "new 2")
				said = append(said, "new 1", "new 2")
				if last := hears(t, st, "new 1", "new 2"); last != restored+int64(len(said)) {
					t.Errorf("the newest event is %d, want %d", last, restored+int64(len(said)))
				}
			})
		}
	}
	t.Run("who reads from the head notices nothing", func(t *testing.T) {
		st, _ := join(t, "websocket", back(s, idle), opening(claiming(roomID)))
		speak(t, s, roomID, "hello")
		hears(t, st, "hello")
	})
}

// Vector 19: a client counts the gap as handled when its handler is done, and its pongs carry resumed_at from then on.
func TestRoomVector19ClientHandlesTheGap(t *testing.T) {
	s := appliancetest.Start(t)
	cfg := s.RoomAgent("bot")
	roomID := seats(s, "plaza", &cfg)
	speak(t, s, roomID, "old")
	handled := make(chan struct{})
	c := live(t, &cfg, opening(claiming(roomID), resuming(1000)), func(roomclient.Gap) { <-handled })
	g := take(t, "the gap", c.gaps)
	speak(t, s, roomID, "new")
	pings := c.Stream().Pings()
	s.Eventually("a ping while the gap is handled", func() bool { return c.Stream().Pings() > pings })
	if at := c.Stream().Cursor(); at != 1000 {
		t.Errorf("pongs carry %d before the gap is handled", at)
	}
	close(handled)
	if f := take(t, "the event after the gap", c.events); f.ID != g.ResumedAt+1 {
		t.Errorf("event %d after a gap that resumed at %d", f.ID, g.ResumedAt)
	}
	s.Eventually("the cursor", func() bool { return c.Stream().Cursor() == g.ResumedAt+1 })
}

// Vector 21: commands are withheld by filter=addressed, and told otherwise; a join is told to who listens.
func TestRoomVector21CommandsAndJoins(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	var made struct {
		Agent struct {
			ID uuid.UUID `json:"id"`
		} `json:"agent"`
		Key string `json:"api_key"`
	}
	s.Do("POST", "/room-agents", map[string]any{"name": "bot", "open": true, "integration_profile": map[string]any{
		"connection_model": "always_on", "message_exchange": true,
		"command_capabilities": map[string]string{"reset": "always", "compact": "always", "interrupt": "always"}}}, http.StatusCreated, &made)
	bot := &roomclient.Config{Endpoint: s.URL(), HTTP: s.Client(), Clock: s.Clock, AgentID: made.Agent.ID, Token: secret.NewText(made.Key)}
	roomID := seats(s, "plaza", bot)
	for via := range carriers {
		t.Run(via, func(t *testing.T) {
			narrow := opening(claiming(roomID))
			narrow.Filter = "addressed"
			st, state := join(t, via, bot, narrow)
			speak(t, s, roomID, "chatter", "!reset @bot", "!compact-all-agents", "more chatter", "@bot one")
			if seq := hears(t, st, "@bot one"); seq != state.Cursor+5 {
				t.Errorf("sequence %d after %d: five events were queued", seq, state.Cursor)
			}
			speak(t, s, roomID, "!interrupt @bot now", "@bot two")
			hears(t, st, "@bot two")

			wide, _ := join(t, via, bot, opening(claiming(roomID), resuming(state.Cursor)))
			hears(t, wide, "chatter")
			for _, want := range []string{`"command":"reset"`, `"command":"compact"`} {
				if f := next(t, wide, roomclient.FrameCommand, nil); !strings.Contains(string(f.Data), want) {
					t.Errorf("command %s, want %s", f.Data, want)
				}
			}
			hears(t, wide, "more chatter", "@bot one")
			f := next(t, wide, roomclient.FrameCommand, nil)
			if !strings.Contains(string(f.Data), `"command":"interrupt"`) || !strings.Contains(string(f.Data), `"args":"@bot now"`) {
				t.Errorf("command %s", f.Data)
			}
			hears(t, wide, "@bot two")
		})
	}
}

// Vectors 2, 9, 10, 11 and 12, as the client does them.
func TestRoomVectorsOfTheClient(t *testing.T) {
	s := appliancetest.Start(t)
	cfg := s.RoomAgent("bot")
	good, gone := seats(s, "good", &cfg), seats(s, "gone", &cfg)

	t.Run("M02 one attempt with a wrong key", func(t *testing.T) {
		wrong := cfg
		wrong.Token = secret.NewText(strings.Repeat("x", 43))
		c := live(t, &wrong, opening(), nil)
		if e := take(t, "the end", c.stopped); e.Stop != roomclient.StopRejected || e.Closed.Code != 4401 || len(c.endings) != 1 {
			t.Errorf("stopped with %+v after %d attempts", e, len(c.endings))
		}
	})
	t.Run("M09 a generation that nobody holds", func(t *testing.T) {
		c := live(t, &cfg, opening(fencing(1)), nil)
		take(t, "connection_state", c.states)
	})
	t.Run("M10 the one taken over never returns", func(t *testing.T) {
		o := opening(claiming(good))
		c := live(t, &cfg, o, nil)
		take(t, "connection_state", c.states)
		join(t, "websocket", &cfg, o)
		if e := take(t, "the end", c.stopped); e.Stop != roomclient.StopTakenOver || e.Closed.Code != 1000 {
			t.Errorf("stopped with %+v", e)
		}
	})
	t.Run("M11 a stale generation stops", func(t *testing.T) {
		o := opening()
		st, state := join(t, "websocket", &cfg, o)
		o.ExpectedGeneration = new(int64)
		*o.ExpectedGeneration = state.Generation - 1
		c := live(t, &cfg, o, nil)
		if e := take(t, "the end", c.stopped); e.Stop != roomclient.StopTakenOver || e.Closed.Code != 4409 {
			t.Errorf("stopped with %+v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if f, err := st.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the holder saw %s %s, %v", f.Event, f.Data, err)
		}
	})
	t.Run("M12 a deleted room is dropped at once", func(t *testing.T) {
		s.Do("DELETE", "/rooms/"+gone, nil, http.StatusNoContent, nil)
		c := live(t, &cfg, opening(covering, claiming(gone, good)), nil)
		if st := take(t, "connection_state", c.states); !slices.Equal(st.Rooms, []string{good}) {
			t.Errorf("claims are %v", st.Rooms)
		}
		if e := <-c.endings; e.Closed.Code != 4403 || !slices.Equal(e.Dropped, []string{gone}) || e.Pause != 0 || len(c.endings) != 0 {
			t.Errorf("the first attempt ended with %+v, and %d more came", e, len(c.endings))
		}
	})
}

// Vector 28, with a person: every member agent gets it once, and nobody the echo of its own.
func TestRoomVector28EveryMember(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	var agents []*roomclient.Config
	for _, name := range []string{"a", "b", "c", "d"} {
		agents = append(agents, enlist(s, name))
	}
	roomID, elsewhere := seats(s, "plaza", agents[:3]...), seats(s, "elsewhere", agents...)
	var streams []*roomclient.Stream
	for i, cfg := range agents {
		st, _ := join(t, []string{"websocket", "sse"}[i%2], cfg, opening(covering))
		streams = append(streams, st)
	}
	speak(t, s, roomID, "from a person")
	if err := agents[0].Do(limit(t), http.MethodPost, "/agents/"+agents[0].AgentID.String()+"/message",
		map[string]string{"room_id": roomID, "content": "from a"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	speak(t, s, elsewhere, "end")
	hears(t, streams[0], "from a person", "end")
	hears(t, streams[1], "from a person", "from a", "end")
	hears(t, streams[2], "from a person", "from a", "end")
	hears(t, streams[3], "end")
}
