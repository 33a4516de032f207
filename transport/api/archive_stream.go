package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive/job"
	"signalbox/appliance/fault"
	"signalbox/transport"
)

// jobRecord is one change of a job, with the job as it is now.
type jobRecord struct {
	Type   string       `json:"type"` // job, or end for the last: the job has ended
	Cursor string       `json:"cursor"`
	Entry  *entryPublic `json:"entry"` // null: progress, or the job as the stream found it
	Job    jobPublic    `json:"job"`
	More   bool         `json:"more"` // another record follows at once
}

// jobStream follows one job until it ends. It keeps a cursor and one page of its story.
type jobStream struct {
	stream
	jobs ArchiveJobs
	id   uuid.UUID
	last []byte // the job as it was written last
}

// streamJob answers with the changes of a job: those of its story, and of its progress, until it has ended.
func (a *API) streamJob(w http.ResponseWriter, c *call) error {
	q := c.query()
	at, follow := a.streamQuery(q)
	if err := q.err(); err != nil {
		return err
	}
	return a.onJob(c, func(s *Archive, id uuid.UUID) error {
		done, err := a.streams.take(c.who.ID)
		if err != nil {
			return err
		}
		defer done()
		ctx, cancel := transport.Parked(c.Context())
		defer cancel()
		js := &jobStream{jobs: s.Jobs, id: id, stream: stream{api: a, call: c, w: w, rc: http.NewResponseController(w),
			follow: follow && c.Method != http.MethodHead, proved: a.opts.Clock.Now()}}
		js.enc = json.NewEncoder(&js.buf)
		js.enc.SetEscapeHTML(false)
		watch, change, err := js.begin(ctx, at)
		if err != nil {
			if errors.Is(context.Cause(ctx), transport.ErrDraining) {
				return &fault.Error{Code: fault.Unavailable, Msg: "the server is draining", Retry: time.Second}
			}
			return err
		}
		defer watch.Stop()
		h := w.Header()
		h.Set("Content-Type", "application/x-ndjson")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set(cursorHeader, a.streamCursor(js.pos))
		w.WriteHeader(http.StatusOK)
		if err := js.run(ctx, watch, change); err != nil && ctx.Err() == nil {
			a.cutOff(c, err)
		}
		return nil
	})
}

// begin finds the place in the job's story and reads from there.
func (s *jobStream) begin(ctx context.Context, at position) (*job.Watch, job.Change, error) {
	s.pos = at.seq
	if at.other {
		s.pos, s.reason = 0, gapEpoch
	}
	watch, err := s.jobs.Watch(ctx, s.id, strconv.FormatInt(s.pos, 10))
	if fault.Is(err, fault.Stale) {
		// Beyond the last entry: go on from there.
		s.reason, at.head = gapAhead, true
		watch, err = s.jobs.Watch(ctx, s.id, "0")
	}
	if err != nil {
		return nil, job.Change{}, err
	}
	change, err := watch.Next(ctx)
	for err == nil && at.head && change.More {
		change, err = watch.Next(ctx)
	}
	if err != nil {
		watch.Stop()
		return nil, change, err
	}
	if at.head {
		change.Entries = nil
		s.pos = cursorNo(change.Cursor)
	}
	return watch, change, nil
}

// cursorNo is the number in a cursor of the job engine.
func cursorNo(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // it is the engine's own
	return n
}

// run writes changes until the job has ended, ctx has, or, without follow, all that is there was written.
func (s *jobStream) run(ctx context.Context, watch *job.Watch, change job.Change) (err error) {
	s.timer = s.api.opts.Clock.NewTimer(heartbeat)
	defer s.timer.Stop()
	for {
		over := !change.More && ended(change.Job.State)
		if err := s.write(change, over); err != nil || over {
			return err
		}
		if !change.More {
			if !s.follow {
				return nil
			}
			if err := s.wait(ctx, watch.C()); err != nil {
				return err
			}
		}
		if err := s.prove(ctx); err != nil {
			return err
		}
		if change, err = watch.Next(ctx); err != nil {
			return err
		}
	}
}

// write sends what changed; nothing when that is nothing.
func (s *jobStream) write(c job.Change, over bool) error {
	s.buf.Reset()
	shown := showJob(&c.Job)
	now, err := json.Marshal(shown)
	if err != nil {
		return err
	}
	if s.reason != "" {
		if err := s.enc.Encode(gapRecord{"gap", s.api.streamCursor(s.pos), s.reason}); err != nil {
			return err
		}
		s.reason = ""
	}
	for i := range c.Entries {
		e := s.api.showEntry(&c.Entries[i])
		if err := s.enc.Encode(jobRecord{"job", e.Cursor, &e, shown, over || c.More || i < len(c.Entries)-1}); err != nil {
			return err
		}
		if s.buf.Len() >= streamBuffer {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	s.pos = cursorNo(c.Cursor)
	switch {
	case over:
		err = s.enc.Encode(jobRecord{"end", s.api.streamCursor(s.pos), nil, shown, false})
	case len(c.Entries) == 0 && !bytes.Equal(now, s.last):
		err = s.enc.Encode(jobRecord{"job", s.api.streamCursor(s.pos), nil, shown, false})
	}
	if err != nil {
		return err
	}
	s.last = now
	return s.flush()
}
