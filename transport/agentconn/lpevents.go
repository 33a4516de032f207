package agentconn

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/transport/wire"
)

// Limits of an upload (agent protocol F.5).
const (
	maxUploadFrames = 500
	maxUploadFrame  = 1 << 20
	maxUploadErrors = 10

	// maxUploadValues bounds the JSON values of a body: the frames and a little for keys that a later agent may add.
	maxUploadValues = 4096
)

// touchEvery is how often the liveness of one long-poll session is written while it keeps uploading: far below the
// offline timeout, far above the rate of uploads under load.
const touchEvery = time.Second

// upload is the answer to POST /agent/events (agent protocol F.5).
type upload struct {
	accepted, rejected int
	errors             []string
	upgrade            bool
}

func (u *upload) count(verdict agent.Verdict, message string) {
	switch verdict {
	case agent.Durable, agent.Drop:
		u.accepted++
	default:
		u.rejected++
		if verdict == agent.UpgradeRequired {
			u.upgrade = true
		}
	}
	if message != "" && len(u.errors) < maxUploadErrors {
		u.errors = append(u.errors, message)
	}
}

func (u *upload) body() []byte {
	b := append([]byte(nil), `{"accepted":`...)
	b = appendInt(b, u.accepted)
	b = append(b, `,"rejected":`...)
	b = appendInt(b, u.rejected)
	b = append(b, `,"errors":[`...)
	for i, e := range u.errors {
		if i > 0 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, e)
	}
	if u.upgrade {
		return append(b, `],"error_code":"scheduler_upgrade_required"}`...)
	}
	return append(b, `],"error_code":null}`...)
}

// serveEvents is POST /api/v1/agent/events. The 200 is the acknowledgement: everything it counts as accepted is
// committed, or would be refused again if it came again.
func (l *LongPoll) serveEvents(w http.ResponseWriter, r *http.Request) error {
	id, err := l.authenticate(r) // before the body: strangers do not get to fill our memory
	if err != nil {
		return err
	}
	done, err := l.room.take(id.Agent.ID, r.ContentLength)
	if err != nil {
		return err
	}
	defer done()
	frames, err := readUpload(r)
	if err != nil {
		return err
	}
	s, err := l.lease(id, r, false)
	if err != nil {
		return err
	}
	defer l.registry.release(s)
	var answer upload
	if err := l.ingest(r.Context(), id, s, frames, &answer); err != nil {
		return err
	}
	l.identify(w, id)
	writeJSON(w, answer.body())
	return nil
}

// readUpload reads and checks the body; a refused one creates no session. It returns the texts of the frames.
func readUpload(r *http.Request) ([][]byte, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	doc, err := rawjson.ParseAtMost(body, maxUploadValues)
	if err != nil {
		return nil, bodyError("json_invalid", []any{"body"}, err.Error())
	}
	defer doc.Release()
	return uploadFrames(doc.Root())
}

func uploadFrames(root rawjson.Value) ([][]byte, error) {
	if root.Kind() != rawjson.Object {
		return nil, bodyError("model_attributes_type", []any{"body"}, "the body must be a JSON object")
	}
	list := root.Get("frames")
	switch {
	case list.Kind() == rawjson.Missing:
		return nil, bodyError("missing", []any{"body", "frames"}, "frames: field required")
	case list.Kind() != rawjson.Array:
		return nil, bodyError("list_type", []any{"body", "frames"}, "frames: must be a list")
	case list.Len() < 1:
		return nil, bodyError("too_short", []any{"body", "frames"}, "frames: must hold at least 1 frame")
	case list.Len() > maxUploadFrames:
		return nil, bodyError("too_long", []any{"body", "frames"}, "frames: must hold at most 500 frames")
	}
	frames := make([][]byte, 0, list.Len())
	for i, v := range list.Each() {
		if v.Kind() != rawjson.String {
			return nil, bodyError("string_type", []any{"body", "frames", i}, "frames: every frame must be a string")
		}
		text, _ := v.AppendStr(nil) // a string
		if len(text) > maxUploadFrame {
			return nil, bodyError("string_too_long", []any{"body", "frames", i}, "frames: a frame must be at most 1048576 bytes")
		}
		frames = append(frames, text)
	}
	return frames, nil
}

// ingest verifies the frames in order, dispatches what is authentic, and counts. Verification of one session is
// serialised; a signature failure ends the batch after what came before it has been dispatched.
func (l *LongPoll) ingest(ctx context.Context, id agent.Identity, s *lpSession[*lpState], frames [][]byte, answer *upload) error {
	verified, failure := l.verify(s, frames, answer)
	defer closeFrames(verified)
	if errors.Is(failure, errInvalidated) {
		return failure
	}
	if failure != nil {
		// The marker comes first: whatever happens next, no later frame of this session is accepted.
		l.registry.invalidate(id.Agent.ID, s)
	}
	if len(verified) > 0 {
		if err := l.dispatch(ctx, id, s, verified, answer); err != nil {
			return err
		}
	}
	if failure != nil {
		l.metrics.verifyFailures.WithLabelValues(string(agent.LongPoll)).Inc()
		return fault.Wrap(fault.Stale, failure, "frame verification failed; reconnect with a fresh nonce and the connect probe")
	}
	return nil
}

// verify authenticates frames under the session's lock until one fails for good. Frames that are not to be dispatched
// are counted at once.
func (l *LongPoll) verify(s *lpSession[*lpState], frames [][]byte, answer *upload) (verified []held, failure error) {
	s.State.verifying.Lock()
	defer s.State.verifying.Unlock()
	if !s.Valid() {
		return nil, errInvalidated
	}
	now := l.clock.Now()
	size := 0
	for _, text := range frames {
		f, err := wire.ParseFrame(text)
		if err == nil && f.Unsigned() {
			f.Release()
			answer.count(agent.Drop, "")
			continue
		}
		if err == nil {
			if err = s.State.verifier.Verify(&f, now); err != nil {
				f.Release()
			}
		}
		switch {
		case err == nil:
			if size += f.Size(); size > maxOpenFrames {
				f.Release()
				verified = append(verified, held{text: text})
				continue
			}
			verified = append(verified, held{text: text, frame: f, open: true})
		case wire.IsSignatureClass(err):
			return verified, err
		case errors.Is(err, wire.ErrVersionSkew):
			answer.count(agent.Transient, err.Error())
		default:
			answer.count(agent.Drop, err.Error())
		}
	}
	return verified, nil
}

// dispatch hands authentic frames to the router and refreshes the agent's liveness, whatever became of them.
func (l *LongPoll) dispatch(ctx context.Context, id agent.Identity, s *lpSession[*lpState], verified []held, answer *upload) error {
	peer := s.State.peer
	for len(verified) > 0 {
		group, err := openFrames(verified)
		if err != nil {
			return err
		}
		for _, o := range l.route(ctx, peer, group) {
			if o.Verdict == agent.Revoked {
				l.registry.drop(id.Agent.ID)
				if o.Archived {
					return projectInactive(id)
				}
				return errBadToken
			}
			answer.count(o.Verdict, o.Message)
		}
		closeFrames(verified[:len(group)])
		verified = verified[len(group):]
	}
	if s.State.touchDue(l.clock.Now()) {
		if err := l.directory.TouchLongPoll(ctx, peer); err != nil {
			s.State.touchFailed()
			l.log.Warn().Err(err).Str(fieldAgent, id.Agent.ID.String()).Msg("liveness of a long-poll agent not written")
		}
	}
	return nil
}

// route is the router's Dispatch. Frames whose handling crashes count as rejected, so that they come again (agent protocol
// F.5).
func (l *LongPoll) route(ctx context.Context, peer agent.Peer, verified []wire.Frame) (outcomes []agent.Outcome) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		l.log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Str(fieldAgent, peer.AgentID.String()).
			Msg("panic while frames were dispatched")
		outcomes = make([]agent.Outcome, len(verified))
		for i := range outcomes {
			outcomes[i] = agent.Outcome{Verdict: agent.Transient, Message: string(verified[i].Type) + ": internal error"}
		}
	}()
	return l.router.Dispatch(ctx, peer, domainFrames(verified))
}
