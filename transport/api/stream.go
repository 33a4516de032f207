package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/transport"
)

const (
	// heartbeat is the longest silence of a followed stream, and how often its caller's right is checked again.
	heartbeat = 15 * time.Second
	// streamPage is how many records are in memory at once: what a stream costs, however far behind its reader is.
	streamPage = 50
	// streamBuffer is what is gathered before it is written.
	streamBuffer = 32 << 10
)

// cursorHeader tells where a stream begins: whoever asked for new records only can go on from there when the connection
// is lost before the first.
const cursorHeader = "X-Signalbox-Cursor"

// Reasons of a gap: records between the position asked for and the next record may be missing.
const (
	gapEpoch  = "epoch"     // the cursor is of another database, or of this one before it was restored
	gapAhead  = "ahead"     // the cursor lies beyond the head
	gapPruned = "retention" // retention removed records after the cursor
)

type gapRecord struct {
	Type   string `json:"type"` // gap
	Cursor string `json:"cursor"`
	Reason string `json:"reason"`
}

// logPage is a stretch of a project's log.
type logPage struct {
	records []any // as they are written
	next    int64 // position to go on from
	more    bool
	gap     bool
	resumed int64 // where the log went on, when there is a gap
	pruned  int64 // highest position that retention removed
	head    int64
}

// logReader reads one log with one filter.
type logReader struct {
	key  any // of the wake hub
	head func(context.Context) (int64, error)
	read func(ctx context.Context, after int64) (logPage, error)
}

// stream writes one log to one client. It keeps a position and one page, never a backlog.
type stream struct {
	api    *API
	call   *call
	log    logReader
	follow bool

	w      http.ResponseWriter
	rc     *http.ResponseController
	buf    bytes.Buffer
	enc    *json.Encoder
	pos    int64
	known  int64 // the client has been told of everything that retention removed up to here
	reason string
	timer  clock.Timer
	proved time.Time // when the caller's right was last checked
}

// serveStream answers with the log from the position that the query names, as NDJSON (one record a line).
func (a *API) serveStream(w http.ResponseWriter, c *call, at position, follow bool, log logReader) error {
	done, err := a.streams.take(c.who.ID)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := transport.Parked(c.Context())
	defer cancel()
	watch := a.Hub.Watch(log.key)
	defer watch.Stop()
	follow = follow && c.Method != http.MethodHead // it would wait for a body that nobody reads
	s := &stream{api: a, call: c, log: log, follow: follow, w: w, rc: http.NewResponseController(w),
		proved: a.opts.Clock.Now()}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	page, err := s.first(ctx, at)
	if err != nil {
		if errors.Is(context.Cause(ctx), transport.ErrDraining) {
			return &fault.Error{Code: fault.Unavailable, Msg: "the server is draining", Retry: time.Second}
		}
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(cursorHeader, a.streamCursor(s.pos))
	w.WriteHeader(http.StatusOK)
	if err := s.run(ctx, watch, page); err != nil && ctx.Err() == nil {
		a.cutOff(c, err)
	}
	return nil
}

// first reads the page at the position, before anything is answered.
func (s *stream) first(ctx context.Context, at position) (logPage, error) {
	s.pos = at.seq
	switch {
	case at.head:
		head, err := s.log.head(ctx)
		if err != nil {
			return logPage{}, err
		}
		s.pos = head
	case at.other:
		s.pos, s.reason = 0, gapEpoch
	}
	page, err := s.log.read(ctx, s.pos)
	if err != nil {
		return page, err
	}
	switch {
	case s.pos > page.head:
		s.reason = gapAhead
	case page.gap && s.pos > 0:
		s.reason = gapPruned
	}
	s.known = page.pruned
	if page.resumed > s.pos || s.reason == gapAhead {
		s.pos = page.resumed
	}
	return page, nil
}

// run writes pages until the stream ends: at the head that the first page saw, or when ctx does.
func (s *stream) run(ctx context.Context, watch *wake.Watch, page logPage) (err error) {
	end := page.head
	s.timer = s.api.opts.Clock.NewTimer(heartbeat)
	defer s.timer.Stop()
	for {
		if err := s.write(page); err != nil {
			return err
		}
		if !s.follow && s.pos >= end {
			return nil
		}
		if !page.more {
			if !s.follow { // the head fell back: nothing more comes
				return nil
			}
			if err := s.wait(ctx, watch.C()); err != nil {
				return err
			}
		}
		if err := s.prove(ctx); err != nil {
			return err
		}
		if page, err = s.log.read(ctx, s.pos); err != nil {
			return err
		}
		if page.gap && page.pruned > s.known {
			s.reason, s.known = gapPruned, page.pruned
		}
	}
}

// write sends a page and moves on behind it.
func (s *stream) write(page logPage) error {
	s.buf.Reset()
	if s.reason != "" {
		if err := s.enc.Encode(gapRecord{"gap", s.api.streamCursor(max(s.pos, page.resumed)), s.reason}); err != nil {
			return err
		}
		s.reason = ""
	}
	for _, r := range page.records {
		if err := s.enc.Encode(r); err != nil {
			return err
		}
		if s.buf.Len() >= streamBuffer {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	s.pos = page.next
	return s.flush()
}

// flush sends what is gathered; the response's header when there is nothing.
func (s *stream) flush() error {
	if s.buf.Len() > 0 {
		if _, err := s.w.Write(s.buf.Bytes()); err != nil {
			return err
		}
		s.buf.Reset()
		if s.buf.Cap() > 8*streamBuffer { // one large record must not stay for the life of the stream
			s.buf = bytes.Buffer{}
		}
		if s.timer != nil {
			s.timer.Reset(heartbeat)
		}
	}
	if err := s.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// wait returns when the log may have grown, keeping the connection alive meanwhile.
func (s *stream) wait(ctx context.Context, hint <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-hint:
			return nil
		case <-s.timer.C():
			s.timer.Reset(heartbeat)
			if err := s.prove(ctx); err != nil {
				return err
			}
			s.buf.WriteByte('\n')
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
}

// prove checks once a heartbeat that the caller may still read: keys are revoked and projects archived meanwhile.
func (s *stream) prove(ctx context.Context) error {
	now := s.api.opts.Clock.Now()
	if now.Sub(s.proved) < heartbeat {
		return nil
	}
	s.proved = now
	if _, err := s.api.admit(s.call.route, s.call.WithContext(ctx)); err != nil {
		return err
	}
	return nil
}
