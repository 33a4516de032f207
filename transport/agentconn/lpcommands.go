package agentconn

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/transport"
	"signalbox/transport/wire"
)

// Ranges of a poll (agent protocol F.6).
const (
	maxWait       = 60 // seconds
	defaultWait   = 30
	maxPollFrames = 500
	defaultFrames = 50
)

// poll is the checked query of GET /agent/commands.
type poll struct {
	wait     time.Duration
	max      int
	features []string
	hasFeat  bool
	retry    []string // engines whose retry contract the request states
}

func (p *poll) probe() bool { return p.max == 0 }

func readPoll(r *http.Request) (poll, error) {
	q := r.URL.Query()
	wait, err := queryInt(q, "wait", defaultWait, 0, maxWait)
	if err != nil {
		return poll{}, err
	}
	limit, err := queryInt(q, "max_frames", defaultFrames, 0, maxPollFrames)
	if err != nil {
		return poll{}, err
	}
	p := poll{wait: time.Duration(wait) * time.Second, max: limit}
	if p.probe() {
		p.features, p.hasFeat = runtimeFeatures(r.Header)
	} else {
		p.retry = retryContracts(r.Header)
	}
	return p, nil
}

// serveCommands is GET /api/v1/agent/commands.
func (l *LongPoll) serveCommands(w http.ResponseWriter, r *http.Request) error {
	p, err := readPoll(r)
	if err != nil {
		return err
	}
	id, err := l.authenticate(r)
	if err != nil {
		return err
	}
	s, err := l.lease(id, r, p.probe())
	if err != nil {
		return err
	}
	defer l.registry.release(s)
	if p.probe() {
		if p.hasFeat {
			if err := l.directory.StoreRuntimeFeatures(r.Context(), s.State.peer, p.features); err != nil {
				return err
			}
		}
		l.identify(w, id)
		writeJSON(w, []byte(`{"frames":[]}`))
		return nil
	}
	ctx, cancel := transport.Parked(r.Context())
	defer cancel()
	frames, sent, err := l.pull(ctx, id, s, p)
	if err != nil {
		return err
	}
	l.identify(w, id)
	writeFrames(w, frames)
	if len(sent) > 0 {
		l.markSent(sent)
	}
	return nil
}

// pull claims what the session may take, parking until something may be there, the wait is over, the session or the
// agent is no longer welcome, the client is gone, or the process drains. The watch is set before the first look, so no
// commit can fall between a look and the wait, and a parked poll asks the database nothing.
func (l *LongPoll) pull(ctx context.Context, id agent.Identity, s *lpSession[*lpState], p poll) (frames [][]byte, sent []int64, err error) {
	s.State.setRetry(p.retry)
	l.registry.polling(s, 1)
	defer l.registry.polling(s, -1)
	watch := l.hub.Watch(agent.AgentKey(id.Agent.No))
	defer watch.Stop()
	over := l.clock.NewTimer(p.wait)
	defer over.Stop()
	due := l.clock.NewTimer(p.wait + time.Hour) // reset whenever a redispatch is known to come due
	defer due.Stop()
	for last := p.wait == 0; ; {
		if !s.Valid() {
			return nil, nil, errInvalidated
		}
		got, err := l.commands.ClaimPending(ctx, s.State.peer,
			agent.ClaimRequest{Limit: p.max, RetryEngines: p.retry, Redispatch: true, Stop: s.Gone()})
		if len(got.Claimed) > 0 { // whatever came after them, what was claimed is delivered
			frames, sent = l.sign(s, got.Claimed)
			return frames, sent, nil
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, nil, interrupted(ctx)
		case err != nil:
			return nil, nil, err
		case !s.Valid():
			return nil, nil, errInvalidated
		case got.Revoked:
			l.registry.drop(id.Agent.ID)
			return nil, nil, errBadToken
		case got.Archived:
			return nil, nil, projectInactive(id)
		case last:
			return nil, nil, nil
		}
		if got.NextDue != nil {
			due.ResetAt(*got.NextDue)
		}
		select {
		case <-watch.C():
		case <-due.C():
		case <-s.Gone():
		case <-over.C():
			last = true // one more look, so that what became due with the wait is not missed
		case <-ctx.Done():
			return nil, nil, interrupted(ctx)
		}
	}
}

// interrupted is a poll cut short: by the client, to whom nothing can be said, or by the process going down, when an
// empty answer sends the agent to poll again.
func interrupted(ctx context.Context) error {
	if draining(ctx) {
		return nil
	}
	return fault.Wrap(fault.Canceled, context.Cause(ctx), "the client went away")
}

// sign makes the frames of claimed commands. A command that cannot be signed ends as failed, so that the trouble is
// visible instead of a timeout.
func (l *LongPoll) sign(s *lpSession[*lpState], claimed []agent.Claimed) (frames [][]byte, sent []int64) {
	now := l.clock.Now()
	for _, c := range claimed {
		payload, err := agent.WirePayload(c.Command, c.TimeoutSeconds)
		if err != nil {
			l.signFailed(c, err)
			continue
		}
		frames = append(frames, s.State.signer.Sign(now, wire.TypeCommand, c.Command.ID.String(), payload))
		sent = append(sent, c.DeliveryNo)
	}
	return frames, sent
}

func (l *LongPoll) signFailed(c agent.Claimed, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	l.log.Error().Err(cause).Str(fieldCommand, c.Command.ID.String()).Msg("command could not be signed")
	if err := l.commands.SignFailed(ctx, c); err != nil {
		l.log.Error().Err(err).Str(fieldCommand, c.Command.ID.String()).Msg("failed signature not recorded")
	}
}

// markSent stamps the ledger after the response was written. The claim is durable already, so this may fail.
func (l *LongPoll) markSent(deliveries []int64) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := l.commands.MarkSent(ctx, deliveries...); err != nil {
		l.log.Warn().Err(err).Msg("delivery not stamped as sent")
	}
}

// writeFrames writes {"frames":[…]}: each frame as a JSON string.
func writeFrames(w http.ResponseWriter, frames [][]byte) {
	size := 16
	for _, f := range frames {
		size += len(f) + len(f)/8 + 8
	}
	b := append(make([]byte, 0, size), `{"frames":[`...)
	for i, f := range frames {
		if i > 0 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, string(f))
	}
	writeJSON(w, append(b, `]}`...))
}

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }
