package commands

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

type object = map[string]any

// fakeServer answers the operator REST surface from memory, faithfully enough for the rules of the command line: shapes,
// statuses, error envelopes, pages, prefixes and resumable streams.
type fakeServer struct {
	mu       sync.Mutex
	mux      *http.ServeMux
	projects []object
	agents   []object
	commands []object
	events   []object
	keys     []object
	queues   []object
	requests []string      // method and path, for scripts that must show what was not asked
	epoch    string        // of the stream cursors
	moved    chan struct{} // closed and replaced when the streams may go on

	transitions []object
	autoResult  string // "completed" or "failed": agents finish what they are issued
	onWatch     string // the same, once a stream of the command was opened
	cutAfter    int    // cut the next stream in the middle of the record after this many; 0: do not
	dropStreams int    // end this many streams as soon as they were opened
	refuse      *reply // answer of every request
	auditBroken bool
	degraded    []string
	pageSize    int
	rooms       *fakeRooms
	archive     *fakeArchive
}

type reply struct {
	status  int
	code    string
	message string
	details object
	retry   string
}

const fakeAdminKey = "z4k_test-admin-key"

func newFakeServer() *fakeServer {
	f := &fakeServer{epoch: "0a1b2c3d", moved: make(chan struct{}), pageSize: 500, rooms: newFakeRooms(), archive: newFakeArchive()}
	f.addProject("default", "Default")
	f.routes()
	return f
}

func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

func (f *fakeServer) addProject(slug, name string) object {
	p := object{"id": uuid.NewString(), "slug": slug, "name": name, "description": nil, "environment": "production",
		"timezone": "UTC", "retention_days": 30, "is_active": true, "created_at": now(), "updated_at": now()}
	f.projects = append(f.projects, p)
	return p
}

// listen serves on the socket of a data directory and on a loopback port until the test ends.
func (f *fakeServer) listen(t testing.TB, dataDir string) (url string) {
	t.Helper()
	socket, err := net.Listen("unix", filepath.Join(dataDir, "signalbox.sock"))
	if err != nil {
		t.Fatal(err)
	}
	local := &http.Server{Handler: f.handler(false)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = local.Serve(socket)
	}()
	remote := httptest.NewServer(f.handler(true))
	t.Cleanup(func() {
		_ = local.Close()
		<-done
		remote.CloseClientConnections()
		remote.Close()
	})
	return remote.URL
}

// handler checks the key on the TCP side and records each request.
func (f *fakeServer) handler(keyed bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path)
		refuse := f.refuse
		f.mu.Unlock()
		if refuse != nil {
			w.Header().Set("Retry-After", refuse.retry)
			f.fail(w, *refuse)
			return
		}
		public := strings.HasPrefix(r.URL.Path, "/api/v1/health")
		if keyed && !public && r.Header.Get("Authorization") != "Bearer "+fakeAdminKey {
			f.fail(w, reply{status: 401, code: "unauthenticated", message: "invalid API key"})
			return
		}
		f.mux.ServeHTTP(w, r)
	})
}

func (f *fakeServer) fail(w http.ResponseWriter, r reply) {
	if r.details == nil {
		r.details = object{}
	}
	answer(w, r.status, object{"error": r.code, "message": r.message, "request_id": "req_0123456789abcdef", "details": r.details})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body)
	}
}

func (f *fakeServer) notFound(w http.ResponseWriter, what string) {
	f.fail(w, reply{status: 404, code: "not_found", message: what + " not found"})
}

// find returns the object whose field has the value.
func find(list []object, field, value string) object {
	for _, o := range list {
		if o[field] == value {
			return o
		}
	}
	return nil
}

func readBody(r *http.Request) object {
	body := object{}
	dec := json.NewDecoder(r.Body)
	dec.UseNumber()
	_ = dec.Decode(&body)
	return body
}

// page answers a list in pages; the cursor is the position.
func (f *fakeServer) page(w http.ResponseWriter, r *http.Request, items []object) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = 50
	}
	limit = min(limit, f.pageSize)
	start, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	start = min(max(start, 0), len(items))
	end := min(start+limit, len(items))
	var next any
	if end-start == limit {
		next = strconv.Itoa(end)
	}
	out := items[start:end]
	if out == nil {
		out = []object{}
	}
	answer(w, 200, object{"items": out, "next_cursor": next})
}

// newestFirst copies a list in reverse, keeping what matches the query parameters named like fields.
func newestFirst(list []object, r *http.Request, params map[string]string) []object {
	out := []object{}
	for i := len(list) - 1; i >= 0; i-- {
		if matches(list[i], r, params) {
			out = append(out, list[i])
		}
	}
	return out
}

func matches(o object, r *http.Request, params map[string]string) bool {
	for param, field := range params {
		if v := r.URL.Query().Get(param); v != "" && fmt.Sprint(o[field]) != v {
			return false
		}
	}
	return true
}

// transition stores a new state of a command, in the order that the stream shows.
func (f *fakeServer) transition(c object, event, status string) {
	c["status"] = status
	if status == "completed" || status == "failed" || status == "cancelled" || status == "timeout" {
		c["completed_at"] = now()
	}
	if status == "failed" {
		c["error"] = "adapter said no"
	}
	if status == "completed" {
		c["result"] = object{"ok": true}
	}
	copied := object{}
	for k, v := range c {
		copied[k] = v
	}
	f.transitions = append(f.transitions, object{"type": "transition", "at": now(), "event": event, "status": status,
		"seq": len(f.transitions) + 1, "command": copied})
	f.wake()
}

func (f *fakeServer) wake() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// stream serves records as NDJSON from a cursor. list is read under the lock, again after each wake.
func (f *fakeServer) stream(w http.ResponseWriter, r *http.Request, started func(), list func() []object, keep func(object) bool) {
	flush := w.(http.Flusher).Flush
	f.mu.Lock()
	cut := f.cutAfter
	f.cutAfter = 0
	drop := f.dropStreams > 0
	if drop {
		f.dropStreams--
	}
	pos, gap := f.startOf(r.URL.Query().Get("cursor"), len(list()))
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Signalbox-Cursor", f.cursor(pos))
	f.mu.Unlock()
	w.WriteHeader(200)
	flush()
	if drop {
		panic(http.ErrAbortHandler)
	}
	started()
	if gap != "" {
		writeRecord(w, object{"type": "gap", "cursor": f.cursor(0), "reason": gap})
	}
	sent := 0
	for {
		f.mu.Lock()
		pending, moved := list()[pos:], f.moved
		f.mu.Unlock()
		for _, rec := range pending {
			pos++
			if !keep(rec) {
				continue
			}
			rec = maps.Clone(rec) // another stream may show it too
			rec["cursor"] = f.cursor(pos)
			if sent++; cut > 0 && sent > cut {
				line, _ := json.Marshal(rec)
				_, _ = w.Write(line[:len(line)/2])
				flush()
				panic(http.ErrAbortHandler) // the connection ends inside a record
			}
			writeRecord(w, rec)
		}
		_, _ = w.Write([]byte("\n")) // heartbeat
		flush()
		if r.URL.Query().Get("follow") == "false" {
			return
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fakeServer) cursor(pos int) string { return fmt.Sprintf("%s.%d", f.epoch, pos) }

func (f *fakeServer) startOf(cursor string, head int) (pos int, gap string) {
	switch cursor {
	case "":
		return head, ""
	case "0":
		return 0, ""
	}
	epoch, seq, _ := strings.Cut(cursor, ".")
	n, err := strconv.Atoi(seq)
	if err != nil || epoch != f.epoch || n > head {
		return 0, "epoch"
	}
	return n, ""
}

func writeRecord(w http.ResponseWriter, rec object) {
	var buf bytes.Buffer
	_ = json.NewEncoder(&buf).Encode(rec)
	_, _ = w.Write(buf.Bytes())
}

func secretText() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x", b)
}
