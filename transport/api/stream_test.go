package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/transport"
)

// line is what these tests read of a record.
type line struct {
	Type    string          `json:"type"`
	Cursor  string          `json:"cursor"`
	Seq     int64           `json:"seq"`
	Reason  string          `json:"reason"`
	Status  string          `json:"status"`
	Event   json.RawMessage `json:"event"`
	Command row             `json:"command"`
}

// stream reads a stream that ends by itself.
func (g *rig) stream(path string) []line {
	g.t.Helper()
	a := g.ok(http.StatusOK, "GET", path, "", nil)
	if got := a.header.Get("Content-Type"); got != "application/x-ndjson" {
		g.t.Errorf("%s is %s", path, got)
	}
	var out []line
	for text := range strings.Lines(a.body) {
		var l line
		g.must(json.Unmarshal([]byte(text), &l))
		out = append(out, l)
	}
	return out
}

// words are types, events and reasons of the records, for comparing.
func words(ls []line) string {
	var out []string
	for _, l := range ls {
		switch l.Type {
		case "gap":
			out = append(out, "gap:"+l.Reason)
		case "event":
			var e struct {
				TaskID string `json:"task_id"`
			}
			_ = json.Unmarshal(l.Event, &e)
			out = append(out, e.TaskID)
		default:
			out = append(out, strings.Trim(string(l.Event), `"`)+":"+l.Status)
		}
	}
	return strings.Join(out, " ")
}

func TestCommandStream(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	first, second := g.issue("t-1"), g.issue("t-2")
	g.ok(http.StatusOK, "POST", "/projects/one/commands/"+first.String()+"/cancel", "", nil)
	const base = "/projects/one/commands/stream?follow=false"
	all := g.stream(base + "&cursor=0")
	if got := words(all); got != "issued:pending issued:pending cancelled:cancelled" {
		t.Fatalf("oldest first: %s", got)
	}
	if all[0].Command.Status != "cancelled" || all[0].Command.ID != first.String() || all[0].Cursor != fmt.Sprint("01234567.", all[0].Seq) {
		t.Errorf("first record %+v", all[0])
	}
	for query, want := range map[string]string{
		"":                         "",
		"&cursor=" + all[0].Cursor: "issued:pending cancelled:cancelled",
		"&cursor=" + all[2].Cursor: "",
		"&cursor=0&command_id=" + second.String(): "issued:pending",
		"&cursor=0&status=cancelled":              "cancelled:cancelled",
		"&cursor=0&action=retry_task":             "",
		"&cursor=0&agent_id=" + uuid.NewString():  "",
		"&cursor=fedcba98.1":                      "gap:epoch issued:pending issued:pending cancelled:cancelled",
		"&cursor=01234567.999":                    "gap:ahead",
	} {
		if got := words(g.stream(base + query)); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	if got := g.stream(base + "&cursor=01234567.999"); got[0].Cursor != all[2].Cursor {
		t.Errorf("a gap beyond the head leads to %s, head is %s", got[0].Cursor, all[2].Cursor)
	}
	if got := words(g.stream("/projects/two/commands/stream?follow=false&cursor=0")); got != "" {
		t.Errorf("another project: %s", got)
	}
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	var ids []string
	for i := range 2*streamPage + 7 {
		ids = append(ids, fmt.Sprint("t-", i))
	}
	g.events("task.received", ids...)
	const base = "/projects/one/events/stream?follow=false"
	all := g.stream(base + "&cursor=0")
	if got := words(all); got != strings.Join(ids, " ") {
		t.Fatalf("oldest first: %s", got)
	}
	if got := words(g.stream(base + "&cursor=" + all[streamPage].Cursor)); got != strings.Join(ids[streamPage+1:], " ") {
		t.Errorf("resumed: %s", got)
	}
	if got := words(g.stream(base + "&cursor=0&task_id=t-70&engine=celery&kind=task.received")); got != "t-70" {
		t.Errorf("filtered: %s", got)
	}
	if !strings.Contains(string(all[0].Event), `"<b>"`) || !strings.Contains(string(all[0].Event), `1.50`) {
		t.Errorf("payload is not as it arrived: %s", all[0].Event)
	}
}

// TestEventStreamGap lets retention remove events and resumes below, at and above what it removed.
func TestEventStreamGap(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.events("task.received", "old-1", "old-2")
	before := g.stream("/projects/one/events/stream?follow=false&cursor=0")
	g.clock.Advance(40 * 24 * time.Hour)
	g.events("task.received", "new-1")
	for more := true; more; {
		_, next, err := g.records.PruneEvents(context.Background())
		g.must(err)
		more = next
	}
	for cursor, want := range map[string]string{
		"0":              "new-1",
		before[0].Cursor: "gap:retention new-1",
		before[1].Cursor: "new-1",
	} {
		if got := words(g.stream("/projects/one/events/stream?follow=false&cursor=" + cursor)); got != want {
			t.Errorf("from %s: %s, want %s", cursor, got, want)
		}
	}
}

// TestCommandStreamGap lets retention remove a command and resumes below and above what it removed.
func TestCommandStreamGap(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	old := g.issue("t-1")
	g.ok(http.StatusOK, "POST", "/projects/one/commands/"+old.String()+"/cancel", "", nil)
	g.issue("t-2")
	before := g.stream("/projects/one/commands/stream?follow=false&cursor=0")
	g.clock.Advance(time.Second)
	if n, err := g.commands.PruneCommands(context.Background(), g.clock.Now()); err != nil || n != 1 {
		t.Fatalf("pruned %d, %v", n, err)
	}
	for cursor, want := range map[string]string{
		"0":              "issued:pending",
		before[0].Cursor: "gap:retention issued:pending",
		before[1].Cursor: "issued:pending",
		before[2].Cursor: "",
	} {
		if got := words(g.stream("/projects/one/commands/stream?follow=false&cursor=" + cursor)); got != want {
			t.Errorf("from %s: %s, want %s", cursor, got, want)
		}
	}
}

// TestHeadOfAStream asks for no body, and must not wait for one.
func TestHeadOfAStream(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	if a := g.do(g.admin, "HEAD", "/projects/one/events/stream?follow=true", ""); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// follower reads a stream that does not end by itself.
type follower struct {
	t      *testing.T
	cancel context.CancelFunc
	body   io.ReadCloser
	read   *bufio.Reader
}

func (g *rig) followStream(t *testing.T, base, path string) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "GET", base+Prefix+path, nil)
	g.must(err)
	req.Header.Set("Authorization", "Bearer "+g.admin)
	resp, err := http.DefaultClient.Do(req)
	g.must(err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d", path, resp.StatusCode)
	}
	f := &follower{t: t, cancel: cancel, body: resp.Body, read: bufio.NewReader(resp.Body)}
	t.Cleanup(f.close)
	return f
}

func (f *follower) close() {
	f.cancel()
	_ = f.body.Close()
	http.DefaultClient.CloseIdleConnections()
}

func (f *follower) next() string {
	f.t.Helper()
	text, err := f.read.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSuffix(text, "\n")
}

func (f *follower) record() line {
	f.t.Helper()
	var l line
	if err := json.Unmarshal([]byte(f.next()), &l); err != nil {
		f.t.Fatal(err)
	}
	return l
}

func TestFollow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	s := g.serve()
	f := g.followStream(t, s.URL, "/projects/one/commands/stream")
	e := g.followStream(t, s.URL, "/projects/one/events/stream?follow=true")
	id := g.issue("t-1")
	if l := f.record(); l.Command.ID != id.String() || words([]line{l}) != "issued:pending" {
		t.Errorf("woken by %+v", l)
	}
	g.events("task.received", "t-1")
	if l := e.record(); words([]line{l}) != "t-1" {
		t.Errorf("woken by %+v", l)
	}
	g.clock.BlockUntil(2)
	g.clock.Advance(heartbeat)
	if f.next() != "" || e.next() != "" {
		t.Error("no heartbeat")
	}
	g.ok(http.StatusOK, "POST", "/projects/one/commands/"+id.String()+"/cancel", "", nil)
	if l := f.record(); words([]line{l}) != "cancelled:cancelled" {
		t.Errorf("after a heartbeat: %+v", l)
	}
}

// TestFollowEndsWithTheRight revokes the key of a stream.
func TestFollowEndsWithTheRight(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.serve()
	f := g.followStream(t, s.URL, "/projects/one/events/stream")
	g.must(g.db.Update(context.Background(), "revoke", func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE api_keys SET revoked_at = 1")
		return err
	}))
	g.clock.BlockUntil(1)
	g.clock.Advance(heartbeat)
	if _, err := f.read.ReadString('\n'); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream of a revoked key: %v", err)
	}
}

// TestFollowEndsWithTheServer drains a server with a stream, which must end cleanly.
func TestFollowEndsWithTheServer(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	srv, err := transport.NewServer(transport.ServerConfig{Listen: "127.0.0.1:0", Handler: g.handler, Log: zerolog.Nop()})
	g.must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()
	f := g.followStream(t, "http://"+srv.Addresses()[transport.ListenerMain], "/projects/one/events/stream")
	g.must(srv.Shutdown(context.Background()))
	g.must(<-served)
	if _, err := f.read.ReadString('\n'); !errors.Is(err, io.EOF) {
		t.Errorf("the stream of a server that drains: %v", err)
	}
}

func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) { o.MaxStreams = 1 })
	s := g.serve()
	g.followStream(t, s.URL, "/projects/one/events/stream")
	for _, path := range []string{"/projects/one/commands/stream?follow=false", "/projects/one/tasks?format=csv"} {
		if a := g.do(g.admin, "GET", path, ""); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "5" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
}

// failingRecords fails after some pages.
type failingRecords struct {
	Records
	mu   sync.Mutex
	left int
}

func (r *failingRecords) fail() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left--; r.left < 0 {
		return fault.New(fault.Internal, "disk trouble")
	}
	return nil
}

func (r *failingRecords) ListTasks(ctx context.Context, no int64, f agent.TaskFilter, p agent.Page) ([]agent.Task, error) {
	if err := r.fail(); err != nil {
		return nil, err
	}
	return r.Records.ListTasks(ctx, no, f, p)
}

func (r *failingRecords) StreamEvents(ctx context.Context, no, after int64, f agent.EventFilter, limit int) (agent.EventStream, error) {
	if err := r.fail(); err != nil {
		return agent.EventStream{}, err
	}
	return r.Records.StreamEvents(ctx, no, after, f, limit)
}

// TestTroubleInTheMiddle holds that an answer that could not be finished does not look whole.
func TestTroubleInTheMiddle(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) { o.MaxPage = 500 })
	var ids []string
	for i := range exportPage + 1 {
		ids = append(ids, fmt.Sprint("t-", i))
	}
	g.events("task.received", ids...)
	s := g.serve()
	for _, path := range []string{"/projects/one/tasks?format=json", "/projects/one/tasks?limit=500",
		"/projects/one/events/stream?follow=false&cursor=0"} {
		for pages := range 2 {
			g.api.Records = &failingRecords{Records: g.records, left: pages}
			req, err := http.NewRequest("GET", s.URL+Prefix+path, nil)
			g.must(err)
			req.Header.Set("Authorization", "Bearer "+g.admin)
			resp, err := http.DefaultClient.Do(req)
			if err != nil { // nothing had been sent yet; on a used connection the client asks again
				if pages == 0 {
					t.Errorf("%s: %v", path, err)
				}
				continue
			}
			_, err = io.Copy(io.Discard, resp.Body)
			g.must(resp.Body.Close())
			if pages == 0 && (resp.StatusCode != http.StatusInternalServerError || err != nil) {
				t.Errorf("%s: %d %v", path, resp.StatusCode, err)
			}
			if pages == 1 && err == nil && resp.StatusCode == http.StatusOK {
				t.Errorf("%s: looks whole", path)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
