package roomconn

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
	"signalbox/transport"
)

// Bounds of the long poll: the default of timeout is the protocol's (G.1), the most is what proxies let pass.
const (
	pollDefault = 10 * time.Second
	pollMost    = 55 * time.Second
)

// longPoll answers once with the events behind start_from, or 204 when none came in time (G.1). It has no connection: it
// claims and proves nothing, and reads what the agent is told of in all its rooms. Frames are those of the socket, a gap
// among them.
func (v *Server) longPoll(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	a, err := v.authenticate(ctx, callerOf(r))
	if err != nil {
		return err
	}
	q, err := parsePoll(r)
	if err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	reader := v.feed.NewReader(a.No, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer reader.Close()
	frames, err := v.poll(ctx, a, reader, wake, q)
	if err != nil {
		return err
	}
	if len(frames) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	transport.WriteJSON(w, r, http.StatusOK, struct {
		Events []json.RawMessage `json:"events"`
	}{frames})
	return nil
}

// pollQuery is what a long poll asks for.
type pollQuery struct {
	start   feed.Start
	filter  connection.Filter
	timeout time.Duration
}

func parsePoll(r *http.Request) (q pollQuery, err error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, fault.Wrap(fault.Invalid, err, "query: is not well formed")
	}
	if q.filter, err = parseFilter(values); err != nil {
		return q, err
	}
	if q.start.Head, q.start.After, err = parseStart(values, r.Header.Get("Last-Event-ID")); err != nil {
		return q, err
	}
	q.timeout = pollDefault
	if values.Has("timeout") {
		s, err := strconv.ParseFloat(values.Get("timeout"), 64)
		if err != nil || !(s >= 0) {
			return q, fault.Field("timeout", "must be a number of seconds, 0 or more, got %q", clipText(values.Get("timeout")))
		}
		q.timeout = min(time.Duration(min(s, pollMost.Seconds())*float64(time.Second)), pollMost)
	}
	return q, nil
}

// poll reads until there is something to tell, the time is over or the server goes down.
func (v *Server) poll(ctx context.Context, a room.Agent, reader *feed.Reader, wake <-chan struct{}, q pollQuery) ([]json.RawMessage, error) {
	o, err := reader.Open(ctx, q.start)
	if err != nil {
		return nil, failedOpen(err)
	}
	var frames []json.RawMessage
	add := func(g *feed.Gap) error {
		data := gapData{From: g.From, ResumedAt: g.ResumedAt, ResumedPosition: g.ResumedAt, Rooms: someRooms(g.Rooms),
			AllRooms: g.AllRooms, Reason: reasonRetained}
		if g.Reset {
			data.Reason = reasonReset
		}
		frame, err := socketFrames{}.control(frameGap, data)
		frames = append(frames, frame)
		v.metrics.Gap(g.Reset)
		return err
	}
	for i := range o.Gaps {
		if err := add(&o.Gaps[i]); err != nil {
			return nil, err
		}
	}
	timer := v.clock.NewTimer(q.timeout)
	defer timer.Stop()
	for cursor := o.Cursor; ; {
		read, err := reader.Next(ctx, cursor, readBatch)
		if err != nil {
			return nil, err
		}
		if read.Gap != nil {
			if err := add(read.Gap); err != nil {
				return nil, err
			}
			cursor = read.Gap.ResumedAt
		}
		for i := range read.Events {
			e := &read.Events[i]
			cursor = e.Sequence
			if q.filter == connection.FilterAll || e.Notifiable() {
				frames = append(frames, socketFrames{}.event(nil, e, nil))
			}
		}
		if len(frames) > 0 {

			return frames, nil
		}
		if len(read.Events) > 0 {
			continue
		}
		cursor = max(cursor, read.Head)
		select {
		case <-wake:
		case <-timer.C():
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}
