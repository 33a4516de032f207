package agent

import (
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// group is the frames of one transaction.
type group struct {
	peer     Peer
	jobs     []job
	standing PeerStanding
}

func (g *group) revoked() bool { return g.standing.Revoked || g.standing.Archived }

func (g *group) writes() bool {
	for i := range g.jobs {
		if g.jobs[i].do != doNothing {
			return true
		}
	}
	return false
}

// mustPersist tells whether the group holds what its sender never sends again.
func (g *group) mustPersist() bool {
	if g.peer.Transport != WebSocket {
		return false
	}
	for i := range g.jobs {
		if d := g.jobs[i].do; d == doAck || d == doResult {
			return true
		}
	}
	return false
}

// work is what a frame asks the transaction to do.
type work uint8

const (
	doNothing work = iota // confirmed and ignored, for the log only, or refused already
	doEvents
	doHeartbeat
	doStatus
	doAck
	doResult
)

// job is one frame, read and redacted before the transaction begins.
type job struct {
	frame     *Frame
	do        work
	out       Outcome
	events    []ingestEvent
	heartbeat Heartbeat
	status    string
	loss      *TelemetryLoss
}

// fail settles the outcome of a job that was not stored.
func (j *job) fail(err error) {
	j.out.Accepted = 0
	j.out.Message = j.frame.Type + ": " + fault.Message(err)
	if j.do == doNothing {
		// Nothing of it was to be stored: the trouble of the others is not its own.
		j.out.Verdict, j.out.Message = Durable, ""
		return
	}
	j.out.Verdict = Drop
	if isTransient(err) {
		j.out.Verdict = Transient
	}
}

// prepare reads a frame: everything that needs no database.
func (r *Router) prepare(dec *eventDecoder, p Peer, f *Frame) job {
	j := job{frame: f, out: Outcome{Verdict: Durable}}
	switch f.Type {
	case FrameEventBatch:
		r.prepareEvents(dec, &j)
	case FrameHeartbeat:
		j.do = doHeartbeat
		j.heartbeat = readHeartbeat(f.Payload)
	case FrameAgentStatus:
		var ok bool
		if !r.status.allow(p, dec.now) {
			r.obs.StatusDropped(p)
		} else if j.status, j.loss, ok = readAgentStatus(f.Payload, r.redact); ok {
			j.do = doStatus
		} else {
			r.obs.StatusDropped(p)
		}
	case FrameCommandAck:
		j.do = doAck
	case FrameCommandResult:
		j.do = doResult
	case FrameRegistryDelta, FrameError:
		r.logFrame(p, *f)
	}
	return j
}

// logFrame hands a frame over for the log, without the secrets that its keys give away.
func (r *Router) logFrame(p Peer, f Frame) {
	if out, changed := r.redact.Append(nil, f.Payload); changed {
		doc, err := rawjson.Parse(out)
		if err != nil {
			return // made from a valid text by replacing whole values, so it is valid; if not, nothing is logged
		}
		defer doc.Release()
		f.Payload = doc.Root()
	}
	r.obs.FrameLogged(p, f)
}

// prepareEvents reads the events of an event_batch (agent protocol D.3). A missing list is an empty one and is
// acknowledged, as the sender waits for that; anything else than a list is refused for good.
func (r *Router) prepareEvents(dec *eventDecoder, j *job) {
	list := j.frame.Payload.Get("events")
	j.do = doEvents
	if list.IsAbsent() {
		return
	}
	if list.Kind() != rawjson.Array {
		j.do = doNothing
		j.out.Verdict = Drop
		j.out.Message = "event_batch: events is not a list"
		r.obs.FrameDropped(dec.peer, j.frame.Type, fault.Field("events", "must be a list"))
		return
	}
	j.out.Received = list.Len()
	j.events = make([]ingestEvent, 0, min(list.Len(), maxEventBatch))
	for i, v := range list.Each() {
		if i >= maxEventBatch {
			break
		}
		if ev, ok := dec.decode(v); ok {
			j.events = append(j.events, ev)
		}
	}
}
