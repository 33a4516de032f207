package agentconn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/transport/session"
)

// claimBatch is how many commands one transaction claims for a WebSocket session.
const claimBatch = 100

// maxBacklogBytes is what may wait for a socket when more commands are claimed for it. A backlog beyond stays in the
// database, where a connection that breaks cannot lose it, and where a slow peer is no reason to close the session.
const maxBacklogBytes = 1 << 20

// errBacklog is a session that has not taken yet what was claimed for it.
var errBacklog = errors.New("commands are still waiting for the socket")

// feedRetry is the pause after a failed claim, and backlogRetry that before a slow peer is given more: the hint is spent,
// the command still waits.
const (
	feedRetry    = time.Second
	backlogRetry = 100 * time.Millisecond
)

// feeds hand committed commands to the WebSocket sessions of their agents. An agent with a session has a feed; a feed
// has a goroutine only while there is something to look at, so thousands of idle agents cost a map entry each.
type feeds struct {
	ws   *WebSocket
	hub  *wake.Hub
	stop func()          // ends retries
	over <-chan struct{} // closed by stop
	wg   sync.WaitGroup  // of the looks under way

	mu     sync.Mutex
	agents map[int64]*feed
}

// feed serves one agent.
type feed struct {
	feeds *feeds
	no    int64
	id    uuid.UUID
	watch *wake.Watch
	refs  int // sessions of the agent; under feeds.mu

	mu      sync.Mutex
	running bool
	again   bool
}

func newFeeds(ws *WebSocket, hub *wake.Hub) *feeds {
	over := make(chan struct{})
	return &feeds{ws: ws, hub: hub, over: over, stop: sync.OnceFunc(func() { close(over) }), agents: map[int64]*feed{}}
}

// enter counts a session in.
func (f *feeds) enter(p agent.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agents[p.AgentNo]
	if a == nil {
		a = &feed{feeds: f, no: p.AgentNo, id: p.AgentID}
		a.watch = f.hub.Notify(agent.AgentKey(p.AgentNo), a.kick)
		f.agents[p.AgentNo] = a
	}
	a.refs++
	f.ws.commands.Connected(p)
}

// leave counts a session out.
func (f *feeds) leave(p agent.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ws.commands.Disconnected(p)
	a := f.agents[p.AgentNo]
	if a.refs--; a.refs == 0 {
		a.watch.Stop()
		delete(f.agents, p.AgentNo)
	}
}

// close ends retries and waits for the looks that are under way. Every session must have left, so no new one begins.
func (f *feeds) close() {
	f.stop()
	f.wg.Wait()
}

// kick makes the agent's feed look, if it has one.
func (f *feeds) kick(agentNo int64) {
	f.mu.Lock()
	a := f.agents[agentNo]
	f.mu.Unlock()
	if a != nil {
		a.kick()
	}
}

// kick starts a look, or has the running one look again. It never blocks: the hub calls it under its lock.
func (a *feed) kick() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running {
		a.again = true
		return
	}
	a.running = true
	a.feeds.wg.Go(a.run)
}

func (a *feed) run() {
	for {
		if retry := a.look(); retry > 0 && a.pause(retry) {
			continue
		}
		a.mu.Lock()
		if !a.again {
			a.running = false
			a.mu.Unlock()
			return
		}
		a.again = false
		a.mu.Unlock()
	}
}

// pause waits before another try, and reports whether the agent still has a session to try for.
func (a *feed) pause(d time.Duration) bool {
	t := a.feeds.ws.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-a.feeds.over:
		return false
	}
	return len(a.feeds.ws.slots.newestFirst(a.id)) > 0
}

// look offers what waits to the sessions, the newest first; an older one is asked only when it states a retry contract
// that no newer one does. A session that is closing takes nothing: the next newest stands in for it. It returns the
// pause before another look when one is due without a hint, else 0.
func (a *feed) look() (retry time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	served := false
	stated := map[string]bool{} // engines whose contract a served session states
	for _, c := range a.feeds.ws.slots.newestFirst(a.id) {
		news := !served || slices.ContainsFunc(c.retryEngines, func(engine string) bool { return !stated[engine] })
		if !news || c.closing() {
			continue
		}
		if !c.proven.Load() { // its proof kicks this feed again
			a.expel(ctx, c)
			continue
		}
		welcome, err := a.offer(ctx, c)
		switch {
		case errors.Is(err, errBacklog):
			return backlogRetry
		case err != nil:
			a.feeds.ws.log.Warn().Err(err).Str(fieldAgent, a.id.String()).Msg("commands not claimed")
			if fault.Is(err, fault.Corrupt) {
				return 0
			}
			return feedRetry
		}
		if !welcome {
			for _, c := range a.feeds.ws.slots.newestFirst(a.id) {
				c.session.Close(session.Revoked)
			}
			return 0
		}
		if c.closing() { // it went meanwhile
			continue
		}
		served = true
		for _, engine := range c.retryEngines {
			stated[engine] = true
		}
	}
	return 0
}

// expel closes a session that is not offered anything yet when it is no longer welcome.
func (a *feed) expel(ctx context.Context, c *wsConn) {
	err := a.feeds.ws.directory.CheckAlive(ctx, a.no)
	if fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.ProjectInactive) {
		c.session.Close(session.Revoked)
	}
}

// offer claims for one session until nothing is left that it may take. It returns false when the agent is revoked or
// its project archived, and errBacklog when the session must take first what it has.
func (a *feed) offer(ctx context.Context, c *wsConn) (welcome bool, err error) {
	commands := a.feeds.ws.commands
	for {
		if c.session.QueuedBytes() > maxBacklogBytes {
			return true, errBacklog
		}
		got, err := commands.ClaimPending(ctx, c.peer, agent.ClaimRequest{Limit: claimBatch, RetryEngines: c.retryEngines})
		if err != nil {
			return true, err
		}
		if got.Revoked || got.Archived {
			return false, nil
		}
		if len(got.Claimed) == 0 {
			return true, nil
		}
		sent := make([]int64, 0, len(got.Claimed))
		for _, cmd := range got.Claimed {
			if a.handOver(ctx, c, cmd) {
				sent = append(sent, cmd.DeliveryNo)
			}
		}
		if len(sent) > 0 {
			if err := commands.MarkSent(ctx, sent...); err != nil {
				a.feeds.ws.log.Warn().Err(err).Msg("delivery not stamped as sent")
			}
		}
		if c.closing() {
			return true, nil
		}
	}
}

// handOver sends a claimed command and reports whether it was queued for the socket. A command whose frame cannot be
// made ends as failed: given back, it would come again and again.
func (a *feed) handOver(ctx context.Context, c *wsConn, cmd agent.Claimed) (queued bool) {
	ws := a.feeds.ws
	payload, err := agent.WirePayload(cmd.Command, cmd.TimeoutSeconds)
	if err != nil {
		ws.log.Error().Err(err).Str(fieldCommand, cmd.Command.ID.String()).Msg("command could not be signed")
		err = ws.commands.SignFailed(ctx, cmd)
	} else if err = c.sendCommand(cmd, payload); err != nil {
		err = ws.commands.SendFailed(ctx, cmd, "the connection was closing: "+err.Error())
	} else {
		return true
	}
	if err != nil {
		ws.log.Warn().Err(err).Str(fieldCommand, cmd.Command.ID.String()).Msg("failed hand-over not recorded")
	}
	return false
}
