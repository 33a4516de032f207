package appliance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance"
	"signalbox/appliance/appliancetest"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid/validtest"
	"signalbox/appliance/config"
)

// TestArchiveWire has messages between control and daemons lost, late, repeated and strange.
func TestArchiveWire(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t, configure(func(c *config.Config) { c.Archive.MaxChunkEntries = 50 }))
	r.start()
	r.scenes(sceneTreeCutOff, sceneChunkLost, sceneUnansweredCommand, sceneUnknownStep, sceneRouteGap)
}

// tree asks the daemon for the tree of a resource and returns the state of the query, or the code that it failed with.
func (r *archiveRig) tree(m *machine, resource string) string {
	r.t.Helper()
	var q struct {
		State string
		Error *archiveError
	}
	r.Do("POST", "/daemons/"+m.ID.String()+"/inventory", map[string]any{"scope": "content_tree", "resource": resource}, 200, &q)
	if q.Error != nil {
		return q.Error.Code
	}
	return q.State
}

// filesOf counts the files of the tree that control has.
func (r *archiveRig) filesOf(m *machine, resource string) int {
	r.t.Helper()
	var page struct{ Files []any }
	r.Do("GET", "/daemons/"+m.ID.String()+"/tree?limit=500&resource="+resource, nil, 200, &page)
	return len(page.Files)
}

// sceneTreeCutOff: row 9. The connection ends inside a tree: nothing of it is kept, and the tree before stays.
func sceneTreeCutOff(r *archiveRig) {
	for i := range 120 {
		r.nas.Put("content", fmt.Sprintf("films/%03d", i), nil)
	}
	resource := r.resource(r.nas, "films")
	if state := r.tree(r.nas, resource); state != "complete" {
		r.t.Fatalf("tree: %s", state)
	}
	var cut atomic.Bool
	r.nas.onSend(func(_ *heldConn, e *pb.Envelope) bool {
		if c := e.GetInventoryChunk(); c.GetContentTree() != nil && c.GetChunkIndex() == 1 && !cut.Swap(true) {
			r.nas.wire.CutAll()
			return false
		}
		return true
	})
	if state := r.tree(r.nas, resource); state != "timeout" {
		r.t.Errorf("half a tree: %s", state)
	}
	if n := r.Count("SELECT count(*) FROM inventory_staging"); n != 3 { // the parts of the tree before
		r.t.Errorf("%d parts are stored", n)
	}
	if n := r.filesOf(r.nas, resource); n != 120 {
		r.t.Errorf("the tree has %d files", n)
	}
	r.online(r.nas)
	if state := r.tree(r.nas, resource); state != "complete" {
		r.t.Errorf("tree: %s", state)
	}
}

// sceneChunkLost: row 10. A snapshot with a hole is thrown away, and the query is made once more.
func sceneChunkLost(r *archiveRig) {
	for i := range 120 {
		r.nas.Put("content", fmt.Sprintf("films/%03d", i), nil)
	}
	resource := r.resource(r.nas, "films")
	for _, times := range []int32{1, 100} {
		var lost, asked atomic.Int32
		r.nas.onReceive(func(_ *heldConn, f *frame.Frame) bool {
			if f.Envelope.GetCommand().GetInventoryQuery().GetScope() == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
				asked.Add(1)
			}
			return true
		})
		r.nas.onSend(func(_ *heldConn, e *pb.Envelope) bool {
			c := e.GetInventoryChunk()
			return c.GetContentTree() == nil || c.GetChunkIndex() != 1 || lost.Add(1) > times
		})
		want := map[int32]string{1: "complete", 100: "protocol_violation"}[times]
		if state := r.tree(r.nas, resource); state != want {
			r.t.Errorf("lost %d times: %s, want %s", lost.Load(), state, want)
		}
		if n := asked.Load(); n != 2 {
			r.t.Errorf("asked %d times", n)
		}
	}
	if n := r.filesOf(r.nas, resource); n != 120 {
		r.t.Errorf("the tree has %d files", n)
	}
}

// sceneUnansweredCommand: row 44. Three sends without an answer, then the first answer comes after all.
func sceneUnansweredCommand(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	type answer struct {
		c *heldConn
		e *pb.Envelope
	}
	var mu sync.Mutex
	var command string
	var first *answer
	r.nas.onReceive(func(_ *heldConn, f *frame.Frame) bool {
		if c := f.Envelope.GetCommand(); c.GetExecuteStep() != nil {
			mu.Lock()
			command = c.GetCommandId()
			mu.Unlock()
		}
		return true
	})
	r.nas.onSend(func(c *heldConn, e *pb.Envelope) bool {
		mu.Lock()
		defer mu.Unlock()
		if a := e.GetCommandAck(); a.GetCommandId() == command && command != "" {
			if first == nil {
				first = &answer{c, e}
			}
			return false
		}
		return true
	})
	j := r.run("films", nil)
	r.awaitJob(j.ID, "waiting for command_unacked", func(j archiveJob) bool {
		mu.Lock()
		held := first != nil // until then the clock goes its way, for all other commands are to be answered in time
		mu.Unlock()
		if held {
			r.clock.By(5 * time.Second)
		}
		return j.Waiting != nil && j.Waiting.Reason == "command_unacked"
	})
	r.explained(j.ID, "never acknowledged", "jobs retry", "3 times")
	r.nas.onSend(nil)
	if err := first.c.Conn.Send(r.t.Context(), first.e, 1); err != nil {
		r.t.Fatal(err)
	}
	j = r.await(j.ID, "completed")
	if n, _ := j.step("stage"); n != 1 {
		r.t.Errorf("staged %d times", n)
	}
	r.arrived()
	kept()
}

// sceneUnknownStep: row 52. A newer control sends a step that this daemon does not know.
func sceneUnknownStep(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	r.nas.onReceive(func(c *heldConn, f *frame.Frame) bool {
		if f.Envelope.GetCommand().GetExecuteStep() == nil {
			return true
		}
		text, err := frame.Marshal(f.Envelope)
		if err != nil {
			r.t.Error(err)
		}
		changed, v := frame.Decode([]byte(strings.Replace(compact(r.t, text), "JOB_STEP_STAGE", "JOB_STEP_TELEPORT", 1)), frame.Options{From: frame.FromControl,
			Registered: true, Client: r.nas.ID.String()})
		if v != nil {
			r.t.Error(v)
			return true
		}
		c.inject <- changed
		return false
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "unsupported")
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), nil)
	kept()
}

// sceneRouteGap: row 39. An update of a route is lost: the route is held back until the daemon's own list agrees.
func sceneRouteGap(r *archiveRig) {
	var lost atomic.Int64
	r.vault.onSend(func(_ *heldConn, e *pb.Envelope) bool {
		if u := e.GetRouteUpdate(); u != nil {
			return !lost.CompareAndSwap(0, int64(u.GetSequence())) // once: the daemon sends it again only after a while
		}
		return true
	})
	r.Do("POST", "/routes/"+r.route+"/test?wait=30", nil, 202, nil)
	r.alerted("route_quarantine")
	r.Eventually("the route", func() bool {
		var now struct{ Ready bool }
		r.Do("GET", "/routes/"+r.route, nil, 200, &now)
		return now.Ready
	})
	if lost.Load() == 0 {
		r.t.Error("no update was lost")
	}
}

// peer is a socket of the test's own at control's endpoint.
type peer struct {
	*websocket.Conn
	t *testing.T
}

func (r *archiveRig) peer() *peer {
	r.t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"archive-control.v2"}}
	ws, _, err := d.Dial("ws"+strings.TrimPrefix(r.URL(), "http")+"/daemon/v2", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = ws.Close() })
	_ = ws.SetReadDeadline(time.Now().Add(2 * appliancetest.Wait))
	return &peer{ws, r.t}
}

// say sends a frame.
func (p *peer) say(text string) {
	p.t.Helper()
	if err := p.WriteMessage(websocket.TextMessage, []byte(text)); err != nil && !errors.Is(err, websocket.ErrCloseSent) {
		p.t.Logf("write: %v", err) // control may have closed it already
	}
}

// closed reads until control closes the socket, and returns the code and what came before.
func (p *peer) closed() (code int, before string) {
	p.t.Helper()
	for {
		_, text, err := p.ReadMessage()
		before += string(text)
		var ce *websocket.CloseError
		if errors.As(err, &ce) {
			return ce.Code, before
		}
		if err != nil {
			p.t.Fatalf("the socket ended with %v", err)
		}
	}
}

// registration is the first frame of a daemon.
func (r *archiveRig) registration(id string) string {
	r.t.Helper()
	token, err := os.ReadFile(filepath.Join(r.Config.DataDir, appliance.DaemonTokenFile))
	if err != nil {
		r.t.Fatal(err)
	}
	q := proto.CloneOf(validtest.Registration())
	q.ClientId, q.Token, q.ActiveJobs = id, strings.TrimSpace(string(token)), nil
	text, err := frame.Marshal(&pb.Envelope{EnvelopeId: uuid.NewString(), Version: &pb.ProtocolVersion{Major: 2}, SentAt: timestamppb.Now(), ClientId: id,
		Payload: &pb.Envelope_RegisterRequest{RegisterRequest: q}})
	if err != nil {
		r.t.Fatal(err)
	}
	return compact(r.t, text)
}

// compact is a JSON document without the spaces that its encoder puts in by chance.
func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestArchiveStrangers: rows 46 and 51. Frames that break the rules end the connection and leave nothing.
func TestArchiveStrangers(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	good := r.registration(uuid.NewString())
	for _, tc := range []struct {
		name, text string
		code       int
	}{
		{"ten megabytes", strings.Repeat(" ", 10<<20) + good, 1009},
		{"deep nesting", strings.Replace(good, `"registerRequest":{`, `"registerRequest":{"x":`+strings.Repeat("[", 64)+strings.Repeat("]", 64)+",", 1), 4400},
		{"duplicate keys", strings.Replace(good, `"registerRequest":{`, `"registerRequest":{"clientId":"x",`, 1), 4400},
		{"unknown field before negotiation", strings.Replace(good, `"registerRequest":{`, `"registerRequest":{"fromTheFuture":1,`, 1), 4400},
		{"no JSON", "hello", 4400},
	} {
		p := r.peer()
		p.say(tc.text)
		code, before := p.closed()
		if code != tc.code {
			t.Errorf("%s: closed with %d, want %d", tc.name, code, tc.code)
		}
		if strings.Contains(tc.name, "field") && !strings.Contains(before, "PROTOCOL_VIOLATION") {
			t.Errorf("%s: no rejection came before: %s", tc.name, before)
		}
	}
	if n := r.Count("SELECT count(*) FROM daemons"); n != 0 {
		t.Errorf("%d daemons are known", n)
	}
	p := r.peer()
	p.say(good)
	_, text, err := p.ReadMessage()
	if err != nil || !strings.Contains(string(text), "registerResponse") {
		t.Fatalf("a good registration: %v %s", err, text)
	}
	p.say(strings.Replace(heartbeat(t, string(text)), `"outboxDepth":1`, `"outboxDepth":NaN`, 1))
	if code, _ := p.closed(); code != 4400 {
		t.Errorf("NaN: closed with %d", code)
	}
}

// heartbeat is a heartbeat of the connection that was answered so.
func heartbeat(t *testing.T, response string) string {
	t.Helper()
	f, v := frame.Decode([]byte(response), frame.Options{From: frame.FromControl})
	if v != nil {
		t.Fatal(v)
	}
	e := f.Envelope
	text, err := frame.Marshal(&pb.Envelope{EnvelopeId: uuid.NewString(), Version: e.GetVersion(), SentAt: timestamppb.Now(), ClientId: e.GetClientId(),
		ConnectionGeneration: e.GetRegisterResponse().GetConnectionGeneration(), Payload: &pb.Envelope_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: 1,
			SentAt: timestamppb.Now(), OutboxDepth: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	return compact(t, text)
}
