package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

// restartClients is how many clients are connected in `go test`; SIGNALBOX_CLIENTS sets another number, such as the
// 1,000 of `make soak`.
const restartClients = 200

// TestRestartUnderManyClients stops the real binary in good order under many connected clients that live by the pauses of
// the published library, and starts it again: each is back with the first attempt that finds the server, nobody is told
// of a gap, nothing is lost or doubled, and coming back writes nothing.
func TestRestartUnderManyClients(t *testing.T) {
	clients := restartClients
	if text := os.Getenv("SIGNALBOX_CLIENTS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SIGNALBOX_CLIENTS: must be a positive number, got %q", text)
		}
		clients = n
	}
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--metrics-listen=127.0.0.1:0"}
	p.start()
	l := p.crowd(clients)
	var back sync.WaitGroup
	all := make([]*restarted, clients)
	db := openLedgerDB(t, filepath.Join(p.dir, "signalbox.db"))
	heads := db.heads(t, l)
	for i, r := range l.receivers {
		r.start = heads[r.cfg.AgentID] // not all the joins of all the others
		r.cursor, r.client.Open.StartFrom = r.start, &r.start
		all[i] = &restarted{}
		all[i].watch(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, r := range l.receivers {
		back.Go(func() { r.run(ctx) })
	}
	await := func(what string, reached func(*restarted) bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) {
			n := 0
			for _, r := range all {
				r.mu.Lock()
				if reached(r) {
					n++
				}
				r.mu.Unlock()
			}
			if n == len(all) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d of %d after two minutes", what, n, len(all))
			}
		}
	}
	say := func(n int) {
		t.Helper()
		for range n {
			body := fmt.Sprintf("operator-%d", len(l.sent))
			var out struct{ Item struct{ ID string } }
			err := l.call(ctx, http.DefaultClient, "POST", "/api/v1/rooms/"+l.rooms[0]+"/messages",
				map[string]string{"body": body, "request_id": body}, &out)
			if err != nil {
				t.Fatal(err)
			}
			l.mu.Lock()
			l.sent[body]++
			l.acked[body] = out.Item.ID
			l.mu.Unlock()
		}
	}
	await("connected", func(r *restarted) bool { return r.streams == 1 })
	say(5)
	l.drain(t, db)
	full := usageOf(t, p.cmd.Process.Pid)
	say(5) // some of it on its way
	begun := time.Now()
	p.stop()
	stopped := time.Since(begun)
	took := p.start()
	ready := time.Now()
	for _, r := range all {
		r.mu.Lock()
		r.ready = ready
		r.mu.Unlock()
	}
	say(5)
	await("back", func(r *restarted) bool { return r.streams == 2 })
	returned := time.Since(ready)
	l.drain(t, db)
	writes, depth := p.storeFigures(t)
	again := usageOf(t, p.cmd.Process.Pid)
	var waits []time.Duration
	for i, r := range all {
		r.mu.Lock()
		if len(r.endings) == 0 || r.endings[0].Closed.Code != 1012 {
			t.Errorf("%s: the first stream ended with %+v", l.receivers[i].name, r.endings)
		}
		for _, e := range r.endings {
			if e.Pause < 250*time.Millisecond || e.Pause > 750*time.Millisecond {
				t.Errorf("%s: a pause of %v after %v", l.receivers[i].name, e.Pause, &e.Closed)
			}
		}
		if r.late > 1 { // one may have been under way
			t.Errorf("%s: %d attempts failed after the server was ready", l.receivers[i].name, r.late)
		}
		waits = append(waits, r.backAt.Sub(ready))
		r.mu.Unlock()
	}
	slices.Sort(waits)
	t.Logf("%d clients: stopped in %v, ready again in %v, half of them back %v later, the last %v (seen after %v); "+
		"%d writes by then, %d waiting; %d MiB resident before, %d MiB after", clients, stopped, took, waits[len(waits)/2],
		waits[len(waits)-1], returned, writes, depth, full.rss>>20, again.rss>>20)
	// Starting, the five posts and what the clock does in the background: nothing for a client that comes back.
	if limit := 40; writes > limit || depth > limit {
		t.Errorf("%d writes, %d waiting: want at most %d whatever the number of clients", writes, depth, limit)
	}
	cancel()
	back.Wait()
	p.stop()
	l.repeats++ // nothing is repeated here
	l.check(t, db)
}

// restarted is what is known of one client of the restart.
type restarted struct {
	mu      sync.Mutex
	streams int
	endings []roomclient.Ending
	ready   time.Time // of the second start; zero before
	late    int       // failed attempts after that
	backAt  time.Time
}

// watch has the client use the socket alone and live by the system's time.
func (w *restarted) watch(r *killReceiver) {
	r.client.Config.Clock, r.client.SSEOnly = nil, false
	r.client.Open.ConnectionID = uuid.NewString()
	r.client.Handler.Connected = func(roomclient.State) {
		w.mu.Lock()
		w.streams++
		w.backAt = time.Now()
		w.mu.Unlock()
	}
	r.client.Handler.Ended = func(e roomclient.Ending) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.Stop == "stopped" {
			return
		}
		w.endings = append(w.endings, e)
		if !w.ready.IsZero() {
			w.late++
		}
	}
}

// storeFigures reads how many writes the store has done since the start and how many wait.
func (p *process) storeFigures(t *testing.T) (writes, waiting int) {
	t.Helper()
	for line := range strings.Lines(p.metrics(t)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch {
		case strings.HasPrefix(name, "signalbox_store_ops_total{"):
			writes += int(n)
		case name == "signalbox_store_queue_depth":
			waiting = int(n)
		}
	}
	return writes, waiting
}

// metrics scrapes the process.
func (p *process) metrics(t *testing.T) string {
	t.Helper()
	var addresses map[string]string
	content, err := os.ReadFile(filepath.Join(p.dir, "addresses.json"))
	if err == nil {
		err = json.Unmarshal(content, &addresses)
	}
	if err != nil {
		t.Fatalf("addresses.json: %v", err)
	}
	resp, err := http.Get("http://" + addresses["metrics"] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
