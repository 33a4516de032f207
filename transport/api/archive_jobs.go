package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
)

func (a *API) listJobs(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := job.Filter{Open: q.flag("open", false), Daemon: q.id("daemon"),
		Operation: pb.JobOperation(enumValue(pb.JobOperation(0).Descriptor(), q.oneOf("operation", enumWords(pb.JobOperation(0).Descriptor())...)))}
	if word := q.oneOf("state", enumWords(pb.JobState(0).Descriptor())...); word != "" {
		f.States = []pb.JobState{pb.JobState(enumValue(pb.JobState(0).Descriptor(), word))}
		if f.Open {
			q.bad("open", "is not for use beside state")
		}
	}
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	page, err := s.Jobs.List(c.Context(), f, q.values.Get("cursor"), int(min(limit, int64(a.opts.MaxPage))))
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, list[jobPublic]{each(page.Jobs, showJob), orNull(page.Next)})
}

// onJob calls fn with the job of the path.
func (a *API) onJob(c *call, fn func(s *Archive, id uuid.UUID) error) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	return fn(s, id)
}

// replyJob answers with the job as it is now.
func replyJob(w http.ResponseWriter, c *call, status int, s *Archive, id uuid.UUID) error {
	d, err := s.Jobs.Show(c.Context(), id)
	if err != nil {
		return err
	}
	return reply(w, c, status, showDetail(&d))
}

func (a *API) getJob(w http.ResponseWriter, c *call) error {
	return a.onJob(c, func(s *Archive, id uuid.UUID) error { return replyJob(w, c, http.StatusOK, s, id) })
}

func (a *API) explainJob(w http.ResponseWriter, c *call) error {
	return a.onJob(c, func(s *Archive, id uuid.UUID) error {
		d, err := s.Jobs.Show(c.Context(), id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, jobExplained{showExplained(&d.Explanation), showCommands(&d)})
	})
}

func (a *API) jobTimeline(w http.ResponseWriter, c *call) error {
	q := c.query()
	at := a.pageCursor(q)
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	if err := q.err(); err != nil {
		return err
	}
	limit = min(limit, int64(a.opts.MaxPage))
	return a.onJob(c, func(s *Archive, id uuid.UUID) error {
		entries, _, err := s.Jobs.Timeline(c.Context(), id, at, int(limit))
		if err != nil {
			return err
		}
		out := list[entryPublic]{Items: each(entries, a.showEntry)}
		if len(entries) > 0 && len(entries) == int(limit) {
			out.NextCursor = &out.Items[len(entries)-1].Cursor
		}
		return reply(w, c, http.StatusOK, out)
	})
}

// pageCursor reads the cursor of a page of a job's story, which is one of its stream; absent is the beginning.
func (a *API) pageCursor(q *query) string {
	at, err := a.parseStreamCursor(q.values.Get("cursor"))
	if err != nil || at.other {
		q.bad("cursor", "must be one that a page or the stream gave")
	}
	return strconv.FormatInt(at.seq, 10)
}

func (a *API) startJob(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("preview_id", "evict_after")
	b.required("preview_id")
	preview, after := b.id("preview_id"), b.flag("evict_after")
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	id, err := s.Jobs.Start(c.Context(), *preview, job.StartOptions{EvictAfter: after != nil && *after}, by(c))
	if err != nil {
		return err
	}
	return replyJob(w, c, http.StatusCreated, s, id)
}

func (a *API) cancelJob(w http.ResponseWriter, c *call) error {
	return a.decide(w, c, []string{"reason"}, func(b *body) decision {
		reason := orEmpty(b.text("reason"))
		return func(s *Archive, id uuid.UUID) error { return s.Jobs.Cancel(c.Context(), id, reason, by(c)) }
	})
}

func (a *API) retryJob(w http.ResponseWriter, c *call) error {
	return a.decide(w, c, []string{"attempts"}, func(b *body) decision {
		attempts := 0
		if n := b.int("attempts"); n != nil {
			if attempts = *n; attempts < 1 {
				b.bad("attempts", "must be at least 1")
			}
		}
		return func(s *Archive, id uuid.UUID) error { return s.Jobs.Retry(c.Context(), id, attempts, by(c)) }
	})
}

var decisions = []string{string(job.Resume), string(job.Complete), string(job.Abandon)}

func (a *API) resolveJob(w http.ResponseWriter, c *call) error {
	return a.decide(w, c, []string{"decision", "reason"}, func(b *body) decision {
		word, reason := oneWord(b, "decision", decisions), strings.TrimSpace(b.required("reason"))
		return func(s *Archive, id uuid.UUID) error {
			return s.Jobs.Resolve(c.Context(), id, job.Decision(word), reason, by(c))
		}
	})
}

// oneWord is a required word of a list.
func oneWord(b *body, name string, words []string) string {
	s := b.required(name)
	for _, w := range words {
		if s == w {
			return s
		}
	}
	if s != "" {
		b.bad(name, "must be one of %s", strings.Join(words, ", "))
	}
	return ""
}

// decision is what a person decided about a job.
type decision func(s *Archive, id uuid.UUID) error

// decide reads a decision, carries it out and answers with the job. The body may be absent where nothing is required.
func (a *API) decide(w http.ResponseWriter, c *call, fields []string, read func(*body) decision) error {
	b, err := c.bodyOr("{}")
	if err != nil {
		return err
	}
	defer b.release()
	b.only(fields...)
	act := read(b)
	if err := b.err(); err != nil {
		return err
	}
	return a.onJob(c, func(s *Archive, id uuid.UUID) error {
		if err := act(s, id); err != nil {
			return err
		}
		return replyJob(w, c, http.StatusOK, s, id)
	})
}
