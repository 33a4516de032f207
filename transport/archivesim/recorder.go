package archivesim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	pb "signalbox/appliance/archive/archivepb"
)

// Recorder counts and times what simulated daemons do. It may be shared; its zero value is ready.
type Recorder struct {
	// Commands were answered with ACCEPTED.
	Commands atomic.Int64
	// Events were acknowledged, which control does after their commit; Terminal of them ended a step.
	Events, Terminal atomic.Int64
	// Sent is the number of events sent, EventBytes their size in binary form.
	Sent, EventBytes atomic.Int64
	// Entries were sent in chunks; EntryBytes is their size in binary form.
	Entries, EntryBytes atomic.Int64
	// Trouble is what should not have come: events that control refused, commands that reconcile.
	Trouble atomic.Int64
	// OnEvent, set before the first daemon connects, is told how many events are acknowledged; it must not block.
	OnEvent func(total int64)

	mu       sync.Mutex
	acks     *hdrhistogram.Histogram
	steps    *hdrhistogram.Histogram
	finished map[string]time.Time // by job: when the last step was told to be completed
}

// NewHistogram returns a histogram of microseconds up to ten minutes.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600_000_000, 3) }

func record(h **hdrhistogram.Histogram, d time.Duration) {
	if *h == nil {
		*h = NewHistogram()
	}
	_ = (*h).RecordValue(min(max(d.Microseconds(), 1), (*h).HighestTrackableValue()))
}

func copied(h *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	out := NewHistogram()
	if h != nil {
		out.Merge(h)
	}
	return out
}

// Acknowledged is the time from the sending of an event to its acknowledgement.
func (r *Recorder) Acknowledged() *hdrhistogram.Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	return copied(r.acks)
}

// NextStep is the time from the sending of a STEP_COMPLETED to the receipt of the command of the job's next step, at
// whichever daemon that is: the commit of the event with the command, the commit of the attempt, and both ways.
func (r *Recorder) NextStep() *hdrhistogram.Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	return copied(r.steps)
}

func (r *Recorder) acknowledged(kind pb.JobEventKind, d time.Duration) {
	total := r.Events.Add(1)
	if r.OnEvent != nil {
		defer r.OnEvent(total)
	}
	if terminal(kind) {
		r.Terminal.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	record(&r.acks, d)
}

// completed notes that a step of the job is told to be done.
func (r *Recorder) completed(job string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished == nil {
		r.finished = map[string]time.Time{}
	}
	r.finished[job] = at
}

// begun notes that a command for a step of the job came.
func (r *Recorder) begun(job string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since, ok := r.finished[job]; ok {
		record(&r.steps, at.Sub(since))
		delete(r.finished, job)
	}
}

// over forgets the job.
func (r *Recorder) over(job string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.finished, job)
}
