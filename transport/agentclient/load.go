package agentclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/uuid"

	"signalbox/transport/wire"
)

// Load describes what one session sends until its context ends.
type Load struct {
	Batch  int    // events in one event_batch
	Window int    // WebSocket: batches sent and not acknowledged; long-poll: batches in one upload
	Data   string // JSON object of every event
	Engine string
}

// Recorder collects what many sessions measured. Safe for concurrent use.
type Recorder struct {
	Acked      atomic.Int64 // events in acknowledged batches
	Accepted   atomic.Int64 // of them, new to the server
	Duplicates atomic.Int64

	mu     sync.Mutex
	waited *hdrhistogram.Histogram // microseconds from send to acknowledgement
}

// Latencies recorded, in microseconds: 1 us to 2 minutes with three digits.
const maxLatency = int64(2 * time.Minute / time.Microsecond)

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{waited: NewHistogram()}
}

// NewHistogram returns an empty histogram of latencies in microseconds.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, maxLatency, 3) }

// Waited returns a copy of the latencies from send to acknowledgement.
func (r *Recorder) Waited() *hdrhistogram.Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	return hdrhistogram.Import(r.waited.Export())
}

func (r *Recorder) wait(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.waited.RecordValue(min(max(d.Microseconds(), 1), maxLatency)) // in range by construction
}

// source makes events of tasks that live through received, started and succeeded, one second apart, so that every event
// has an identity of its own and the projection has something to do.
type source struct {
	load Load
	now  func() time.Time
	task string
	step int
	seq  uint64
}

var taskKinds = [...]string{"task.received", "task.started", "task.succeeded"}

func (s *source) batch() (id string, payload []byte) {
	events := make([]Event, s.load.Batch)
	for i := range events {
		if s.step == 0 {
			s.task = uuid.NewString()
		}
		events[i] = Event{ID: uuid.New(), Kind: taskKinds[s.step], Engine: s.load.Engine, TaskID: s.task,
			OccurredAt: s.now(), Data: s.load.Data}
		s.step = (s.step + 1) % len(taskKinds)
	}
	s.seq++
	return BatchID(s.seq), AppendEventBatch(nil, events)
}

// DefaultData is an event's data as a Celery worker sends it, already canonical.
const DefaultData = `{"args":"[1, 2, 3]","kwargs":"{\"user_id\": 42}","queue":"default","runtime_ms":12,"task_name":"app.tasks.send_email","worker":"celery@bench"}`

// RunWS sends event batches on the session, keeping a window of them unacknowledged, until ctx ends; then it waits for
// the acknowledgements that are still due. Commands that arrive meanwhile are ignored.
func (l Load) RunWS(ctx context.Context, w *WS, rec *Recorder) error {
	src := &source{load: l, now: w.cfg.now}
	var mu sync.Mutex
	sent := map[string]time.Time{}
	slots := make(chan struct{}, l.Window)
	failed := make(chan error, 1)
	go func() { failed <- l.readAcks(w, rec, &mu, sent, slots) }()
	for {
		select {
		case slots <- struct{}{}:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return l.finishWS(w, slots, failed)
		}
		if ctx.Err() != nil {
			<-slots
			return l.finishWS(w, slots, failed)
		}
		id, payload := src.batch()
		mu.Lock()
		sent[id] = time.Now()
		mu.Unlock()
		if err := w.Send(wire.TypeEventBatch, id, payload); err != nil {
			return err
		}
	}
}

// drainWait bounds the wait for the last acknowledgements.
const drainWait = 30 * time.Second

// finishWS waits until the whole window is free again, then ends the reader by closing the session.
func (l Load) finishWS(w *WS, slots chan struct{}, failed <-chan error) error {
	timeout := time.NewTimer(drainWait)
	defer timeout.Stop()
	for range l.Window {
		select {
		case slots <- struct{}{}:
		case err := <-failed:
			return err
		case <-timeout.C:
			return errors.New("last acknowledgements did not come")
		}
	}
	err := w.Close()
	<-failed
	return err
}

func (l Load) readAcks(w *WS, rec *Recorder, mu *sync.Mutex, sent map[string]time.Time, slots <-chan struct{}) error {
	for {
		f, err := w.Receive()
		if err != nil {
			return err
		}
		if f.Type != wire.TypeEventBatchAck {
			f.Release()
			continue
		}
		ack := ReadAck(&f)
		f.Release()
		mu.Lock()
		at, ok := sent[ack.ID]
		delete(sent, ack.ID)
		mu.Unlock()
		if !ok {
			return fmt.Errorf("acknowledgement of %q, which was not sent", ack.ID)
		}
		rec.wait(time.Since(at))
		rec.Acked.Add(ack.Received)
		rec.Accepted.Add(ack.Accepted)
		rec.Duplicates.Add(ack.Rejected)
		<-slots
	}
}

// RunLP uploads Window batches at a time until ctx ends.
func (l Load) RunLP(ctx context.Context, lp *LP, rec *Recorder) error {
	src := &source{load: l, now: lp.cfg.now}
	for ctx.Err() == nil {
		frames := make([]string, l.Window)
		for i := range frames {
			id, payload := src.batch()
			frames[i] = string(lp.signer.Sign(lp.cfg.now(), wire.TypeEventBatch, id, payload))
		}
		at := time.Now()
		// Not under ctx: an upload that was cut off would have an unknown outcome.
		up, err := lp.UploadRaw(context.WithoutCancel(ctx), frames...)
		if err != nil {
			return err
		}
		if up.Accepted != len(frames) {
			return fmt.Errorf("upload: %d of %d frames accepted: %v", up.Accepted, len(frames), up.Errors)
		}
		rec.wait(time.Since(at))
		rec.Acked.Add(int64(len(frames) * l.Batch))
		rec.Accepted.Add(int64(len(frames) * l.Batch))
	}
	return nil
}
