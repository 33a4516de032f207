package agentconn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/transport/session"
	"signalbox/transport/wire"
)

// Bounds of what one transaction takes from a connection, and of what a connection may keep waiting in memory beside
// the configured number of frames. Bytes are of memory, the parsed form included. One frame always fits.
const (
	maxGroupFrames = 512
	maxGroupBytes  = 4 << 20
	maxQueuedBytes = 16 << 20
)

// featureRetry is the capability token that an engine of a session must list to be sent the retry family (B.5).
const featureRetry = "retry_by_reference_v1"

// wsConn is one connected worker slot. The session's reader goroutine verifies and queues; a second goroutine, alive
// only while frames wait, takes them in order to the router and sends the acknowledgements.
type wsConn struct {
	ws           *WebSocket
	session      *session.Session
	peer         agent.Peer
	role         string
	retryEngines []string
	verifier     *wire.Verifier
	connectedAt  time.Time
	rowAt        time.Time    // latest connect time in the slot's row that we answer for; see succeed
	lastFrame    atomic.Int64 // nanoseconds
	proven       atomic.Bool  // a frame verified: the agent holds the right secret; or it had its time

	signing sync.Mutex // a frame is sent in the order it was signed
	signer  *wire.Signer

	mu      sync.Mutex // guards all below
	queue   []wire.Frame
	bytes   int
	working bool
	space   chan struct{}            // receives when the worker has taken frames
	idle    chan struct{}            // closed when the worker ends; non-nil while it works
	unacked map[string]agent.Claimed // redeliverable commands handed over and not acked, by frame id
}

func newWSConn(w *WebSocket, s *session.Session, id agent.Identity, h *wire.Hello, sessionID uuid.UUID) *wsConn {
	c := &wsConn{ws: w, session: s, space: make(chan struct{}, 1)}
	worker := ""
	if h.WorkerID != nil {
		worker = *h.WorkerID
	}
	if h.WorkerRole != nil {
		c.role = *h.WorkerRole
	}
	c.peer = peerOf(id, agent.WebSocket, sessionID.String(), worker)
	for engine, tokens := range h.Capabilities {
		if slices.Contains(tokens, featureRetry) {
			c.retryEngines = append(c.retryEngines, engine)
		}
	}
	slices.Sort(c.retryEngines)
	b := binding(w.opts.ProjectSecret, id, c.peer.Session)
	c.verifier, c.signer = wire.NewVerifier(b), wire.NewSigner(b)
	c.lastFrame.Store(w.clock.Now().UnixNano())
	return c
}

// succeed makes next answer for the slot's row: of two connections, the one that wrote the row last may be registered
// first. It runs under the lock of the slots.
func (c *wsConn) succeed(next *wsConn) {
	if c.rowAt.After(next.rowAt) {
		next.rowAt = c.rowAt
	}
}

// closing tells whether the session takes nothing more.
func (c *wsConn) closing() bool { return c.session.Reason() != session.None }

func (c *wsConn) info() agent.SessionInfo {
	return agent.SessionInfo{Transport: agent.WebSocket, Session: c.peer.Session, Worker: c.peer.Worker, WorkerRole: c.role,
		Remote: c.session.Peer(), ConnectedAt: c.connectedAt, LastFrameAt: time.Unix(0, c.lastFrame.Load()).UTC(),
		RetryEngines: c.retryEngines}
}

// OnMessage verifies one frame and queues it (agent protocol B.6). A full queue stops the reading, and with it the
// peer; nothing is dropped.
func (c *wsConn) OnMessage(ctx context.Context, _ session.MessageType, data []byte) error {
	f, err := wire.ParseFrame(slices.Clone(data)) // the frame outlives this call
	if err != nil {
		return session.Fail(session.Protocol, err)
	}
	now := c.ws.clock.Now()
	c.lastFrame.Store(now.UnixNano())
	if f.Unsigned() { // a further hello: no liveness, no answer
		f.Release()
		return nil
	}
	if err := c.verifier.Verify(&f, now); err != nil {
		f.Release()
		if wire.IsSignatureClass(err) {
			c.ws.metrics.verifyFailures.WithLabelValues(string(agent.WebSocket)).Inc()
			return session.Fail(session.Signature, err)
		}
		return session.Fail(session.Protocol, err)
	}
	c.prove()
	return c.enqueue(ctx, f)
}

func (c *wsConn) enqueue(ctx context.Context, f wire.Frame) error {
	size := f.Size()
	for {
		c.mu.Lock()
		if len(c.queue) == 0 || (len(c.queue) < c.ws.opts.IngestQueue && c.bytes+size <= maxQueuedBytes) {
			c.queue = append(c.queue, f)
			c.bytes += size
			if !c.working {
				c.working = true
				c.idle = make(chan struct{})
				go c.work()
			}
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-c.space:
		case <-ctx.Done():
			f.Release()
			return context.Cause(ctx)
		}
	}
}

// take removes the next group, or ends the worker when nothing waits.
func (c *wsConn) take() []wire.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < len(c.queue) && n < maxGroupFrames {
		size += c.queue[n].Size()
		if n > 0 && size > maxGroupBytes {
			size -= c.queue[n].Size()
			break
		}
		n++
	}
	if n == 0 {
		c.queue, c.working = nil, false // an idle connection keeps no queue
		close(c.idle)
		return nil
	}
	group := slices.Clone(c.queue[:n])
	c.queue = slices.Delete(c.queue, 0, n)
	c.bytes -= size
	select {
	case c.space <- struct{}{}:
	default:
	}
	return group
}

// work is the worker goroutine. It does not end with the session: results are sent once only, so what was received
// whole is stored, whoever has gone.
func (c *wsConn) work() {
	for {
		group := c.take()
		if group == nil {
			return
		}
		c.dispatch(group)
	}
}

func (c *wsConn) dispatch(group []wire.Frame) {
	defer func() {
		for i := range group {
			group[i].Release()
		}
	}()
	defer func() { // a panic in a frame's handling ends this session, nothing else
		if v := recover(); v != nil {
			c.ws.log.Error().Interface("panic", v).Str(fieldAgent, c.peer.AgentID.String()).Msg("panic while frames were dispatched")
			c.session.CloseErr(session.Fail(session.Panic, fmt.Errorf("panic: %v", v)))
		}
	}()
	outcomes := c.ws.router.Dispatch(context.Background(), c.peer, domainFrames(group))
	for i, o := range outcomes {
		c.answer(&group[i], o)
	}
}

// answer does for one frame what agent protocol D.2 says of its outcome.
func (c *wsConn) answer(f *wire.Frame, o agent.Outcome) {
	switch {
	case o.Verdict == agent.Revoked:
		c.session.Close(session.Revoked)
	case f.Type == wire.TypeCommandAck || f.Type == wire.TypeCommandResult:
		c.mu.Lock()
		delete(c.unacked, f.ID)
		c.mu.Unlock()
	case f.Type != wire.TypeEventBatch:
	case o.Verdict == agent.Durable || o.Verdict == agent.Drop:
		_ = c.send(wire.TypeEventBatchAck, wire.EventBatchAckID(f.ID),
			wire.AppendEventBatchAck(nil, f.ID, o.Received, o.Accepted))
	case o.Verdict == agent.UpgradeRequired:
		_ = c.send(wire.TypeError, wire.ErrorID(f.ID),
			wire.AppendError(nil, "scheduler_upgrade_required", o.Message, true))
	}
}

// provenAfter is how long a session that sends nothing waits for its first command. An agent whose secret is stale, after
// a rotation, connects with a token that is still good and fails with its first frame, which it sends at once: a command
// handed over before that would be spent on a peer that cannot read it. One whose heartbeat is switched off may send
// nothing for long, and gets its commands all the same.
const provenAfter = time.Second

// prove opens the session for commands.
func (c *wsConn) prove() {
	if c.proven.CompareAndSwap(false, true) {
		c.ws.feeds.kick(c.peer.AgentNo)
	}
}

// awaitProof opens the session for commands when its time is over. It ends with the session.
func (c *wsConn) awaitProof() {
	t := c.ws.clock.NewTimer(provenAfter)
	defer t.Stop()
	select {
	case <-t.C():
		c.prove()
	case <-c.session.Context().Done():
	}
}

// send signs and queues one frame. Its error is session.ErrClosed or session.ErrSlow: the frame was not queued.
func (c *wsConn) send(typ wire.Type, id string, payload []byte) error {
	c.signing.Lock()
	defer c.signing.Unlock()
	return c.session.Send(c.signer.Sign(c.ws.clock.Now(), typ, id, payload))
}

// pruneUnacked is after how many unacknowledged commands those whose time is over are forgotten.
const pruneUnacked = 256

// over tells whether the command's deadline has passed: it has timed out, and is not given back after that.
func (c *wsConn) over(cmd agent.Claimed) bool {
	return cmd.Command.TimeoutAt.Before(c.ws.clock.Now())
}

// sendCommand sends a claimed command and remembers it until it is acknowledged if it may be handed over again.
func (c *wsConn) sendCommand(cmd agent.Claimed, payload []byte) error {
	id := cmd.Command.ID.String()
	if agent.Redeliverable(cmd.Command.Action) {
		c.mu.Lock()
		if c.unacked == nil {
			c.unacked = map[string]agent.Claimed{}
		}
		if len(c.unacked)%pruneUnacked == pruneUnacked-1 { // a peer that never acknowledges must not fill the memory
			maps.DeleteFunc(c.unacked, func(_ string, cmd agent.Claimed) bool { return c.over(cmd) })
		}
		c.unacked[id] = cmd
		c.mu.Unlock()
	}
	if err := c.send(wire.TypeCommand, id, payload); err != nil {
		c.mu.Lock()
		delete(c.unacked, id)
		c.mu.Unlock()
		return err
	}
	return nil
}

// OnClose waits for what was received to be stored, leaves the slot, and gives back the commands that the peer never
// acknowledged, that may be handed over again and whose time is not over.
func (c *wsConn) OnClose(ctx context.Context, closed session.Closed) {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	c.ws.leave(c)
	c.mu.Lock()
	unacked := c.unacked
	c.unacked = nil
	c.mu.Unlock()
	for id, cmd := range unacked {
		if c.over(cmd) {
			continue
		}
		if err := c.ws.commands.SendFailed(ctx, cmd, "connection ended before the agent acknowledged: "+closed.Reason.String()); err != nil {
			c.ws.log.Warn().Err(err).Str(fieldCommand, id).Msg("unacknowledged command not given back")
		}
	}
}
