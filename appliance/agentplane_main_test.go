package appliance_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is where the clocks of these tests begin: near the vectors of agent protocol C.9.
var epoch = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)

func frozen() appliancetest.Option { return appliancetest.WithFakeClock(epoch) }

func configure(change func(*config.Config)) appliancetest.Option {
	return appliancetest.WithConfig(change)
}

// unlimited is for tests that make many requests.
func unlimited(c *config.Config) { c.Agent.RateLimits = false }

// dial connects a WebSocket agent that must be welcome.
func dial(t *testing.T, cfg agentclient.Config) *agentclient.WS {
	t.Helper()
	ws, err := agentclient.DialWS(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return guarded(t, ws)
}

// open connects without a hello.
func open(t *testing.T, cfg agentclient.Config) *agentclient.WS {
	t.Helper()
	ws, err := agentclient.OpenWS(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return guarded(t, ws)
}

func guarded(t *testing.T, ws *agentclient.WS) *agentclient.WS {
	ws.Deadline(time.Now().Add(appliancetest.Wait))
	t.Cleanup(func() { _ = ws.Abort() })
	return ws
}

// openLP opens a long-poll session that must be welcome.
func openLP(t *testing.T, cfg agentclient.Config) *agentclient.LP {
	t.Helper()
	lp, err := agentclient.OpenLP(t.Context(), cfg)
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	return lp
}

// closeCode is the code that the server closed with; other errors fail the test.
func closeCode(t *testing.T, err error) int {
	t.Helper()
	var ce *agentclient.CloseError
	if !errors.As(err, &ce) {
		t.Fatalf("not closed by the server: %v", err)
	}
	return ce.Code
}

func wantClose(t *testing.T, err error, code int) {
	t.Helper()
	if got := closeCode(t, err); got != code {
		t.Fatalf("closed with %v, want %d", err, code)
	}
}

// closed reads until the server closes the session and returns the code. Frames that still come are dropped.
func closed(t *testing.T, ws *agentclient.WS) int {
	t.Helper()
	for {
		_, _, err := ws.Conn().ReadMessage()
		var ce *websocket.CloseError
		if errors.As(err, &ce) {
			return ce.Code
		}
		if err != nil {
			t.Fatalf("not closed by the server: %v", err)
		}
	}
}

// status is what a long-poll request was refused with.
func status(t *testing.T, err error) *agentclient.StatusError {
	t.Helper()
	var se *agentclient.StatusError
	if !errors.As(err, &se) {
		t.Fatalf("not refused: %v", err)
	}
	return se
}

func wantStatus(t *testing.T, err error, code int) *agentclient.StatusError {
	t.Helper()
	se := status(t, err)
	if se.Status != code {
		t.Fatalf("refused with %v, want %d", err, code)
	}
	return se
}

var serial atomic.Uint64

// batchID is a new frame id.
func batchID() string { return agentclient.BatchID(serial.Add(1)) }

// batch is the payload of an event_batch of one event.
func batch(taskID string, at time.Time) []byte {
	return agentclient.AppendEventBatch(nil, []agentclient.Event{{ID: uuid.New(), Kind: "task.succeeded", Engine: "celery",
		TaskID: taskID, OccurredAt: at}})
}

// receive returns the next frame, which must be of the type.
func receive(t *testing.T, ws *agentclient.WS, typ wire.Type) wire.Frame {
	t.Helper()
	f, err := ws.Receive()
	if err != nil {
		t.Fatalf("receive %s: %v", typ, err)
	}
	if f.Type != typ {
		t.Fatalf("received %s, want %s: %s", f.Type, typ, f.Raw())
	}
	return f
}

// send sends an event_batch and returns its acknowledgement, which must be the next frame that comes.
func send(t *testing.T, ws *agentclient.WS, id string, payload []byte) agentclient.Ack {
	t.Helper()
	if err := ws.Send(wire.TypeEventBatch, id, payload); err != nil {
		t.Fatal(err)
	}
	f := receive(t, ws, wire.TypeEventBatchAck)
	defer f.Release()
	ack := agentclient.ReadAck(&f)
	if ack.ID != id || f.ID != wire.EventBatchAckID(id) {
		t.Fatalf("ack %q of %q in frame %q", ack.ID, id, f.ID)
	}
	return ack
}

// settle returns when the server has stored everything that was sent on the session before: frames are handled in order.
func settle(t *testing.T, ws *agentclient.WS) {
	t.Helper()
	send(t, ws, batchID(), []byte(`{"events":[]}`))
}

// command receives a command.
func command(t *testing.T, ws *agentclient.WS) agentclient.Command {
	t.Helper()
	f := receive(t, ws, wire.TypeCommand)
	defer f.Release()
	c, err := agentclient.ReadCommand(&f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer sends an ack or a result and waits until it is stored.
func answer(t *testing.T, ws *agentclient.WS, typ wire.Type, id, payload string) {
	t.Helper()
	if err := ws.SendJSON(typ, id, payload); err != nil {
		t.Fatal(err)
	}
	settle(t, ws)
}

// polled is how a poll ended.
type polled struct {
	commands []agentclient.Command
	err      error
}

// poll starts a poll.
func poll(ctx context.Context, lp *agentclient.LP, wait time.Duration, limit int) <-chan polled {
	done := make(chan polled, 1)
	go func() {
		c, err := lp.Poll(ctx, wait, limit)
		done <- polled{c, err}
	}()
	return done
}

// park starts a poll and returns when it has looked once, found nothing, and waits.
func park(t *testing.T, s *appliancetest.Server, lp *agentclient.LP, wait time.Duration, limit int) <-chan polled {
	t.Helper()
	looks := s.Faults.Reads(appliancetest.Look)
	done := poll(t.Context(), lp, wait, limit)
	s.Faults.AwaitReads(t, appliancetest.Look, looks+1)
	return done
}

// ended waits for the end of a poll.
func ended(t *testing.T, done <-chan polled) polled {
	t.Helper()
	select {
	case p := <-done:
		return p
	case <-time.After(appliancetest.Wait):
		t.Fatal("the poll does not end")
		return polled{}
	}
}

func wantCommands(t *testing.T, got []agentclient.Command, err error, ids ...string) {
	t.Helper()
	if err != nil {
		t.Fatalf("poll: %v", err)
	}
	if len(got) != len(ids) {
		t.Fatalf("%d commands, want %d: %v", len(got), len(ids), got)
	}
	for i := range ids {
		if got[i].ID != ids[i] {
			t.Fatalf("command %d is %s, want %s", i, got[i].ID, ids[i])
		}
	}
}

// reply is an HTTP response with its body.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// fields decodes the body.
func (r reply) fields(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(r.body, &m); err != nil {
		t.Fatalf("body %q: %v", r.body, err)
	}
	return m
}

// request sends one request of a long-poll agent as it is. headers come in pairs.
func request(t *testing.T, s *appliancetest.Server, method, path, body string, headers ...string) reply {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, content)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return exchange(t, s, req)
}

func exchange(t *testing.T, s *appliancetest.Server, req *http.Request) reply {
	t.Helper()
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, text}
}

const (
	eventsPath   = "/api/v1/agent/events"
	commandsPath = "/api/v1/agent/commands"
	noncePath    = "X-Z4J-Session-Nonce"
)

func bearer(m *appliancetest.Minted) string { return "Bearer " + m.Token.Reveal() }

// cancelFields are the fields of a cancel-task, which may be handed over again; restartFields those of a
// restart-worker, which may not.
func cancelFields(task string) map[string]any {
	return map[string]any{"engine": "celery", "task_id": task}
}

func restartFields() map[string]any { return map[string]any{"worker_name": "celery@box"} }

func retryFields(engine string) map[string]any {
	return map[string]any{"engine": engine, "task_id": "t-1", "override_args": []int{}, "override_kwargs": map[string]any{}}
}

// online makes a long-poll agent online by an upload, as an agent's first heartbeat does.
func online(t *testing.T, lp *agentclient.LP) {
	t.Helper()
	up, err := lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeHeartbeat, ID: batchID(), Payload: []byte(agentclient.Heartbeat)})
	if err != nil || up.Accepted != 1 {
		t.Fatalf("heartbeat: %+v, %v", up, err)
	}
}

// state is the agent's state as the API shows it.
func state(s *appliancetest.Server, m *appliancetest.Minted) string {
	var a struct {
		State string `json:"state"`
	}
	s.Do("GET", "/projects/"+m.Project+"/agents/"+m.ID.String(), nil, http.StatusOK, &a)
	return a.State
}

// frames is the body of an upload.
func frames(texts ...string) string {
	b, err := json.Marshal(map[string][]string{"frames": texts})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// networks are address ranges of a configuration.
func networks(ranges ...string) config.Prefixes {
	var out config.Prefixes
	for _, r := range ranges {
		out = append(out, netip.MustParsePrefix(r))
	}
	return out
}

// auditTables are what an audit row changes: the log and its head.
var auditTables = []string{"audit_log", "meta"}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
