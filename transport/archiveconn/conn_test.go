package archiveconn_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/fault"
	"signalbox/store"
)

const (
	started  = pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED
	progress = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
)

func TestEveryPayloadReachesItsService(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	sent := c.send(heartbeat(1))
	if e := c.read(); e.GetHeartbeatAck().GetSequence() != 1 || e.CorrelationId != sent.EnvelopeId || e.GetHeartbeatAck().ServerTime == nil {
		t.Errorf("%v", e)
	}
	c.send(event(started, 1)) // taken, but not acknowledged
	sent = c.send(event(progress, 2))
	if e := c.read(); e.GetJobEventAck().GetPersistedThrough() != 2 || e.CorrelationId != sent.EnvelopeId {
		t.Errorf("%v", e)
	}
	c.send(func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_JobSnapshot{JobSnapshot: &pb.JobSnapshot{CommandId: uuid.NewString(), SnapshotId: uuid.NewString(),
			LastPart: true, StateEpoch: uuid.NewString(), Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND}}}
	})
	c.send(func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_InventoryChunk{InventoryChunk: &pb.InventoryChunk{QueryId: uuid.NewString(), CommandId: uuid.NewString(),
			SnapshotId: uuid.NewString(), LastChunk: true, Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND}}}
	})
	c.send(func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_ProtocolError{ProtocolError: &pb.ProtocolError{Error: &pb.ErrorDetail{
			Code: pb.ErrorCode_ERROR_CODE_INTERNAL, Message: "said in confidence"}}}
	})
	sent = c.send(func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_RouteUpdate{RouteUpdate: &pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: uuid.NewString(),
			CreationCommandId: uuid.NewString(), Sequence: 7, Side: pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE,
			State: pb.RouteState_ROUTE_STATE_PROBING}}
	})
	if e := c.read(); e.GetRouteUpdateAck().GetPersistedThrough() != 7 || e.CorrelationId != sent.EnvelopeId {
		t.Errorf("%v", e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != 2 || len(r.took) != 3 {
		t.Errorf("%d events, %d others", len(r.events), len(r.took))
	}
	if text := r.logs.text(); strings.Contains(text, "in confidence") || !strings.Contains(text, `"code":"internal"`) {
		t.Errorf("log: %s", text)
	}
	for _, series := range []string{"heartbeat", "job_event", "job_snapshot", "inventory_chunk", "route_update", "register_request"} {
		if r.metric("signalbox_archive_frames_total", "direction=in", "payload="+series) == 0 {
			t.Errorf("%s is not counted", series)
		}
	}
	if n := r.metric("signalbox_archive_frames_total", "direction=out", "payload=job_event_ack"); n != 1 {
		t.Errorf("%v acknowledgements counted", n)
	}
}

func TestViolationsAfterRegistration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	json := func(change func(string) string, payload ...func(*pb.Envelope)) func(*client) []byte {
		return func(c *client) []byte { return []byte(change(string(c.frame(c.envelope(payload...))))) }
	}
	same := func(s string) string { return s }
	for name, data := range map[string]func(*client) []byte{
		"no JSON":          text("{"),
		"deep nesting":     text(strings.Repeat(`[`, 20_000)),
		"a key twice":      json(swap(`"heartbeat":`, `"heartbeat":{"sequence":"1"},"heartbeat":`), heartbeat(1)),
		"a fraction NaN":   json(swap(`"fractionComplete":0.5`, `"fractionComplete":"NaN"`), event(progress, 1)),
		"an unknown field": json(swap(`"sequence":"1"`, `"sequence":"1","novelty":{}`), heartbeat(1)),
		"sequence 0":       json(same, heartbeat(0)),
		"sequence 5":       json(same, heartbeat(5)),
		"another client":   json(same, heartbeat(1), func(e *pb.Envelope) { e.ClientId = uuid.NewString() }),
		"another minor":    json(same, heartbeat(1), func(e *pb.Envelope) { e.Version.Minor = 1 }),
		"wrong direction": json(same, func(e *pb.Envelope) {
			e.Payload = &pb.Envelope_JobEventAck{JobEventAck: &pb.JobEventAck{JobId: uuid.NewString(), PersistedThrough: 1}}
		}),
		"a second registration": func(c *client) []byte {
			return c.frame(c.envelope(func(e *pb.Envelope) { e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: c.request()} }))
		},
		"a second registration of an older generation": func(c *client) []byte {
			return c.frame(c.envelope(func(e *pb.Envelope) {
				e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: c.request()}
				e.ConnectionGeneration = 0
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := r.dial()
			c.t = t
			c.register()
			c.raw(websocket.TextMessage, data(c))
			c.wantViolation("")
		})
	}
	t.Run("another major", func(t *testing.T) {
		t.Parallel()
		c := r.dial()
		c.t = t
		c.register().send(heartbeat(1), func(e *pb.Envelope) { e.Version.Major = 3 })
		if p := c.read().GetProtocolError(); p.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH || !p.Fatal {
			t.Errorf("%v", p)
		}
		c.wantClose(4406)
	})
	t.Run("binary", func(t *testing.T) {
		t.Parallel()
		c := r.dial()
		c.t = t
		c.register().raw(websocket.BinaryMessage, []byte("x"))
		c.wantClose(4400)
	})
	t.Run("over the negotiated limit", func(t *testing.T) {
		t.Parallel()
		c := r.dial()
		c.t = t
		c.register() // 64 KiB
		data := c.frame(c.envelope(heartbeat(1)))
		c.raw(websocket.TextMessage, append(data, strings.Repeat(" ", 64<<10-len(data))...))
		c.read() // just within
		c.raw(websocket.TextMessage, []byte(strings.Repeat(" ", 64<<10+1)))
		c.wantClose(1009)
	})
	t.Run("10 MB", func(t *testing.T) {
		t.Parallel()
		c := r.dial()
		c.t = t
		c.register()
		// The peer may be told, or cut off, before it has written everything.
		_ = c.ws.WriteMessage(websocket.TextMessage, []byte(strings.Repeat(" ", 10<<20)))
		c.wantClose(1009)
	})
}

func TestStaleGenerationIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	c.send(event(progress, 1), func(e *pb.Envelope) { e.ConnectionGeneration = 99 })
	c.send(heartbeat(1))
	if e := c.read(); e.GetHeartbeatAck() == nil {
		t.Errorf("%v", e)
	}
	if len(r.events) != 0 || r.metric("signalbox_archive_stale_messages_total") != 1 {
		t.Errorf("%d events", len(r.events))
	}
}

// A message that was read from the old socket before the takeover, and is handled after it, changes nothing (failure
// table, row 7).
func TestTakeoverWhileTheOldSocketDelivers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old := r.dial().register()
	read, goOn := make(chan struct{}), make(chan struct{})
	fenced := make(chan error, 1)
	r.mu.Lock()
	r.onEvent = func(link archive.Link) error {
		close(read)
		<-goOn
		err := r.db.Update(ctx, "test", func(tx *store.Tx) error { return r.registry.Fence(tx, link) })
		fenced <- err
		return err
	}
	r.mu.Unlock()
	old.send(event(progress, 1))
	<-read
	fresh := r.dialAs(old.id, old.epoch).register()
	if fresh.generation != old.generation+1 {
		t.Errorf("generation %d after %d", fresh.generation, old.generation)
	}
	old.wantClose(4409)
	close(goOn)
	if err := <-fenced; !fault.Is(err, fault.Stale) {
		t.Errorf("fence: %v", err)
	}
	if link := <-r.detached; link.Generation != int64(old.generation) {
		t.Errorf("detached %+v", link)
	}
	fresh.send(heartbeat(1))
	fresh.read()
	if len(r.events) != 0 || !r.registry.Attached(1) || r.metric("signalbox_archive_takeovers_total") != 1 {
		t.Errorf("%d events, attached %v", len(r.events), r.registry.Attached(1))
	}
}

// What a service makes of a message decides over the connection.
func TestErrorsOfServices(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		err   error
		close int // 0: stays open
	}{
		"stale":           {fault.New(fault.Stale, "no longer current"), 4409},
		"busy":            {fault.New(fault.Unavailable, "busy"), 0},
		"unknown outcome": {fault.New(fault.OutcomeUnknown, "unknown"), 0},
		"ours":            {fmt.Errorf("a bug"), 1011},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c := r.dial().register()
			r.setErr(f.err)
			c.send(event(progress, 1))
			if f.close != 0 {
				c.wantClose(f.close)
				return
			}
			c.send(heartbeat(1))
			if e := c.read(); e.GetHeartbeatAck() == nil || r.metric("signalbox_archive_dropped_messages_total") != 1 {
				t.Errorf("%v", e)
			}
		})
	}
	t.Run("invalid", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		c := r.dial().register()
		r.setErr(fault.Field("job_event.sequence", "must be contiguous"))
		c.wantViolation(c.send(event(progress, 1)).EnvelopeId)
	})
}

// A daemon that sends and does not read is cut off; what is stored stays (failure table, row 45).
func TestSlowReader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	c.send(heartbeat(1))
	c.read()
	gate := r.conns.latest().hold()
	for i := range uint64(70) { // 64 answers may wait
		c.send(heartbeat(2 + i))
	}
	<-gate.entered
	<-r.group.Sessions()[0].Context().Done() // the queue has overflown
	close(gate.open)
	for {
		_, _, err := c.ws.ReadMessage()
		if err == nil {
			continue
		}
		if ce, ok := err.(*websocket.CloseError); !ok || ce.Code != 4429 {
			t.Fatalf("closed for %v", err)
		}
		break
	}
	<-r.detached
	d, err := r.registry.Daemon(ctx, c.id)
	if err != nil || !d.Online || d.Attached {
		t.Errorf("%+v, %v", d, err)
	}
	again := r.dialAs(c.id, c.epoch).register()
	again.send(heartbeat(1))
	again.read()
}

// Silence ends the ownership, and then the socket.
func TestSilence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	c := r.dial().register()
	c.send(heartbeat(1))
	c.read()
	r.clock.BlockUntil(1)
	r.clock.Advance(44 * time.Second)
	c.send(heartbeat(2))
	c.read()
	r.clock.Advance(44 * time.Second)
	c.send(event(progress, 1)) // no other traffic counts
	c.read()
	r.clock.BlockUntil(1)
	r.clock.Advance(time.Second)
	c.wantClose(1000)
	d, err := r.registry.Daemon(ctx, c.id)
	if err != nil || d.Online || r.metric("signalbox_archive_offline_total") != 1 {
		t.Errorf("%+v, %v", d, err)
	}
}

func answer(c *client, row command.Row, status pb.AckStatus) {
	c.send(func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_CommandAck{CommandAck: &pb.CommandAck{CommandId: row.ID.String(), Status: status,
			PayloadSha256: row.SHA256}}
	})
}

func TestCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	c := r.dial().register()
	row := r.enqueue(c, 10) // wakes the connection
	e := c.read()
	if m := e.GetCommand(); m.GetCommandId() != row.ID.String() || m.Attempt != 1 || m.ClientId != c.id.String() {
		t.Fatalf("%v", e)
	}
	answer(c, row, pb.AckStatus_ACK_STATUS_ACCEPTED)
	c.send(heartbeat(1))
	c.read()
	if got := r.row(row.No); got.State != command.Accepted || len(r.answered) != 1 {
		t.Errorf("%+v", got)
	}
}

// Three sends without an answer, then none; the late answer counts (failure table, row 44).
func TestResendsAndLateAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	c := r.dial().register()
	row := r.enqueue(c, 10)
	beat := uint64(0)
	sync := func() { // what the writer had before is read
		t.Helper()
		beat++
		c.send(heartbeat(beat))
		if e := c.read(); e.GetHeartbeatAck().GetSequence() != beat {
			t.Fatalf("got %v", e)
		}
	}
	if m := c.read().GetCommand(); m.GetAttempt() != 1 {
		t.Fatal(m)
	}
	r.clock.BlockUntil(2) // registry and queue
	r.clock.Advance(15 * time.Second)
	if m := c.read().GetCommand(); m.GetAttempt() != 2 || m.CommandId != row.ID.String() {
		t.Fatal(m)
	}
	sync()
	if err := c.ws.Close(); err != nil {
		t.Fatal(err)
	}
	<-r.detached
	c = r.dialAs(c.id, c.epoch).register()
	beat = 0
	if m := c.read().GetCommand(); m.GetAttempt() != 3 || m.CommandId != row.ID.String() {
		t.Fatal(m)
	}
	sync()
	r.clock.BlockUntil(2)
	r.clock.Advance(15 * time.Second)
	<-r.exhausted
	sync()
	answer(c, row, pb.AckStatus_ACK_STATUS_ACCEPTED)
	sync()
	if got := r.row(row.No); got.State != command.Accepted || len(r.parked) != 1 || len(r.answered) != 1 {
		t.Errorf("%+v", got)
	}
}

// Bulk waits for answers, never the other way round: what is pulled comes a piece at a time, behind the queue.
func TestAnswersOvertakeCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	c.send(heartbeat(1))
	c.read()
	handled := make(chan struct{})
	r.mu.Lock()
	r.onEvent = func(archive.Link) error { close(handled); return nil }
	r.mu.Unlock()
	gate := r.conns.latest().hold()
	var rows []command.Row
	for range 3 {
		rows = append(rows, r.enqueue(c, 40<<10)) // one of them at a time
	}
	<-gate.entered // the first is being written
	c.send(heartbeat(2))
	c.send(event(started, 1)) // is handled when the answer to the heartbeat is queued
	<-handled
	close(gate.open)
	var got []string
	for range 4 {
		e := c.read()
		got = append(got, e.GetCommand().GetCommandId())
	}
	if want := []string{rows[0].ID.String(), "", rows[1].ID.String(), rows[2].ID.String()}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestGoAheadsComeBeforeCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.dial().register()
	if err := first.ws.Close(); err != nil {
		t.Fatal(err)
	}
	<-r.detached
	row := r.enqueue(first, 10)
	job := uuid.NewString()
	r.mu.Lock()
	r.acks = []*pb.JobEventAck{{JobId: job, PersistedThrough: 4, Revision: 2, GoAhead: true}}
	r.mu.Unlock()
	c := r.dialAs(first.id, first.epoch).register()
	if a := c.read().GetJobEventAck(); a.GetJobId() != job || !a.GoAhead {
		t.Errorf("%v", a)
	}
	if m := c.read().GetCommand(); m.GetCommandId() != row.ID.String() {
		t.Errorf("%v", m)
	}
}

func TestCommandAboveTheNegotiatedLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	huge := r.enqueue(c, 70<<10)
	small := r.enqueue(c, 10)
	if m := c.read().GetCommand(); m.GetCommandId() != small.ID.String() {
		t.Fatalf("%v", m.GetCommandId())
	}
	e, err := r.queue.Explain(ctx, huge.ID)
	if err != nil || e.Row.State != command.Parked || len(e.Deliveries) != 1 || e.Deliveries[0].Outcome != command.SendFailed ||
		!strings.Contains(e.Deliveries[0].Reason, "65536 were negotiated") || len(r.parked) != 1 {
		t.Errorf("%+v, %v", e, err)
	}
}
