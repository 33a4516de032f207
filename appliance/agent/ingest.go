package agent

import (
	"strings"
	"time"

	"github.com/google/uuid"
)

// ingest applies the jobs of one group inside its transaction. Task rows are read and written once per transaction,
// however many of their events it holds; so are worker and queue rows.
type ingest struct {
	r       *Router
	tx      RouterTx
	g       *group
	now     time.Time
	tasks   map[taskKey]*taskRow
	order   []*taskRow // in the order first touched: new rows are numbered in it
	nextNo  int64      // of the next new task; 0: not asked for yet
	workers map[rowKey]WorkerTouch
	queues  map[rowKey]struct{}
	touched []noted
	written []*taskRow
	counts  map[countKey]int
	ended   []endedTask
	failed  []FailedTask
}

type taskKey struct{ engine, id string }

type rowKey struct{ engine, name string }

type countKey struct{ engine, kind string }

type endedTask struct {
	name, kind string
	runtime    time.Duration
}

func newIngest(r *Router, tx RouterTx, g *group) *ingest {
	return &ingest{r: r, tx: tx, g: g, now: tx.Now(), tasks: map[taskKey]*taskRow{}, counts: map[countKey]int{}}
}

// apply runs the group's jobs in order.
func (w *ingest) apply() error {
	live := false
	for i := range w.g.jobs {
		j := &w.g.jobs[i]
		j.out.Accepted = 0
		var err error
		switch j.do {
		case doEvents:
			live = true
			err = w.events(j)
		case doHeartbeat:
			live = true
			err = w.heartbeat(&j.heartbeat)
		case doStatus:
			err = w.status(j)
		case doAck:
			if err = w.flushTasks(); err == nil {
				err = w.r.cmds.ApplyAck(w.tx, w.g.peer, j.frame.ID, j.frame.Payload)
			}
		case doResult:
			if err = w.flushTasks(); err == nil {
				err = w.r.cmds.ApplyResult(w.tx, w.g.peer, j.frame.ID, j.frame.Payload)
			}
		}
		if err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	// Over long-poll liveness belongs to the upload, not to its frames (agent protocol F.5).
	if live && w.g.peer.Transport == WebSocket {
		if err := w.seen(); err != nil {
			return err
		}
	}
	w.afterCommit()
	return nil
}

// afterCommit registers what follows once the group is durable.
func (w *ingest) afterCommit() {
	project, added, touched, written, r := w.g.peer.ProjectNo, len(w.counts) > 0, w.touched, w.written, w.r
	if !added && len(touched) == 0 {
		return
	}
	w.tx.AfterCommit(func() {
		r.notes.remember(touched)
		r.hints.put(project, written)
	})
	if added {
		w.tx.Hint(func() { r.hub.Wake(ProjectEvents(project)) })
	}
}

// events stores the events of one event_batch.
func (w *ingest) events(j *job) error {
	for i := range j.events {
		added, err := w.event(&j.events[i])
		if err != nil {
			return err
		}
		if added {
			j.out.Accepted++
		}
	}
	return nil
}

// event stores one event and, when it is new, applies what it says. A replay says nothing that its first copy did not.
func (w *ingest) event(ev *ingestEvent) (added bool, err error) {
	var row *taskRow
	if ev.TaskID == "" {
		added, err = w.tx.InsertEvent(&ev.NewEvent)
	} else {
		row, added, err = w.eventOfTask(ev)
	}
	if err != nil || !added {
		return false, err
	}
	w.counts[countKey{ev.Engine, ev.Kind}]++
	if row != nil && ev.known {
		w.project(row, &ev.task)
		w.noteEnd(row, ev)
		if ev.Kind == kindFailed && w.r.failed != nil {
			w.noteFailure(row, ev)
		}
	}
	w.touch(ev)
	return true, nil
}

// noteFailure keeps what the hook is told of a task.failed event.
func (w *ingest) noteFailure(row *taskRow, ev *ingestEvent) {
	name := row.task.Name
	if !isTaskName(name) {
		if name = ev.task.Name; !isTaskName(name) {
			name = ""
		}
	}
	w.failed = append(w.failed, FailedTask{ProjectNo: ev.ProjectNo, ProjectID: w.g.peer.ProjectID, AgentNo: ev.AgentNo,
		EventNo: ev.No, EventID: ev.ID, Engine: ev.Engine, TaskID: ev.TaskID, TaskName: name, Queue: ev.queue,
		Exception: withMessage(textOf(ev.task.Exception), textOf(ev.task.Message)),
		Traceback: textOf(ev.task.Traceback), OccurredAt: ev.OccurredAt, ReceivedAt: w.now})
}

// isTaskName tells a name from what stands in place of one: ours, or that of an agent that was not told it, which has a part
// of the task's id in it.
func isTaskName(s string) bool {
	return s != "" && s != unknownName && !(strings.HasPrefix(s, "<unknown:") && strings.HasSuffix(s, ">"))
}

// withMessage joins class and message of an exception for agents that report them apart.
func withMessage(exception, message string) string {
	switch {
	case message == "" || message == exception:
		return exception
	case strings.HasPrefix(message, exception): // the message is what repr gives
		return message
	}
	return cutChars(exception+": "+message, maxFailureChars)
}

// textOf is "" for nil.
func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (w *ingest) noteEnd(row *taskRow, ev *ingestEvent) {
	if !TaskTerminal(taskStateOf(ev.Kind)) {
		return
	}
	name := ev.task.Name
	if name == "" {
		name = row.task.Name
	}
	runtime := time.Duration(-1)
	if ms := ev.task.RuntimeMS; ms != nil && *ms < int64(1<<63-1)/int64(time.Millisecond) {
		runtime = time.Duration(*ms) * time.Millisecond
	}
	w.ended = append(w.ended, endedTask{name: name, kind: ev.Kind, runtime: runtime})
}

// touch notes the worker and the queue that an event names. The newest event of the transaction decides the worker's
// state.
func (w *ingest) touch(ev *ingestEvent) {
	if ev.queue != "" {
		if w.queues == nil {
			w.queues = map[rowKey]struct{}{}
		}
		w.queues[rowKey{ev.Engine, ev.queue}] = struct{}{}
	}
	if ev.wrk == "" {
		return
	}
	if w.workers == nil {
		w.workers = map[rowKey]WorkerTouch{}
	}
	key := rowKey{ev.Engine, ev.wrk}
	t, ok := w.workers[key]
	if ok && ev.at.Before(t.At) {
		return
	}
	t = WorkerTouch{Engine: ev.Engine, Name: ev.wrk, State: "online", At: ev.at}
	if ev.Kind == kindWorkerOffline {
		t.State = "offline"
	}
	w.workers[key] = t
}

// flush writes what was collected.
func (w *ingest) flush() error {
	if err := w.flushTasks(); err != nil {
		return err
	}
	project := w.g.peer.ProjectNo
	for key, t := range w.workers {
		n := noted{touchKey{project, true, key.engine, key.name}, touchNote{at: t.At, state: t.State}}
		if w.r.notes.fresh(n) {
			continue
		}
		if err := w.tx.TouchWorker(project, uuid.New(), t); err != nil {
			return err
		}
		w.touched = append(w.touched, n)
	}
	for key := range w.queues {
		n := noted{touchKey{project, false, key.engine, key.name}, touchNote{at: w.now}}
		if w.r.notes.fresh(n) {
			continue
		}
		if err := w.tx.TouchQueue(project, uuid.New(), key.engine, key.name, nil); err != nil {
			return err
		}
		w.touched = append(w.touched, n)
	}
	if len(w.failed) == 0 {
		return nil
	}
	return w.r.failed(w.tx, w.failed)
}

// heartbeat stores the gauges of a heartbeat (agent protocol D.3).
func (w *ingest) heartbeat(h *Heartbeat) error {
	project := w.g.peer.ProjectNo
	for i := range h.Depths {
		d := &h.Depths[i]
		if err := w.tx.TouchQueue(project, uuid.New(), d.Engine, d.Queue, &d.Depth); err != nil {
			return err
		}
	}
	for i := range h.Workers {
		if err := w.tx.SetWorkerDetails(project, uuid.New(), &h.Workers[i]); err != nil {
			return err
		}
	}
	if h.Loss != nil {
		return w.tx.SetTelemetryLoss(w.g.peer.AgentNo, h.Loss)
	}
	return nil
}

// status appends to the history of an agent.
func (w *ingest) status(j *job) error {
	if j.loss != nil {
		if err := w.tx.SetTelemetryLoss(w.g.peer.AgentNo, j.loss); err != nil {
			return err
		}
	}
	captured := j.frame.At
	if captured.IsZero() {
		captured = w.now
	}
	return w.tx.AddAgentStatus(AgentStatusSample{AgentNo: w.g.peer.AgentNo, CapturedAt: captured, ReceivedAt: w.now,
		Payload: j.status})
}

// seen refreshes the peer's liveness (agent protocol B.7, L20): always when it was not online, else at most about once a
// second.
func (w *ingest) seen() error {
	p, st := w.g.peer, w.g.standing
	ago := w.now.Sub(st.LastSeenAt)
	stale := ago >= seenEvery || ago < 0 // the clock was set back
	if !st.Online || stale {
		if err := w.tx.PeerSeen(p.AgentNo); err != nil {
			return err
		}
		if !st.Online {
			w.tx.Hint(func() { w.r.hub.Wake(AgentsOnline(p.ProjectNo)) })
		}
	}
	n := noted{touchKey{p.AgentNo, true, "", p.Worker}, touchNote{at: w.now}}
	if st.Online && w.r.notes.fresh(n) {
		return nil
	}
	if err := w.tx.PeerWorkerSeen(p.AgentNo, p.Worker); err != nil {
		return err
	}
	w.touched = append(w.touched, n)
	return nil
}

// report tells the observer what was committed.
func (w *ingest) report(obs Observer) {
	project := w.g.peer.ProjectID
	for key, n := range w.counts {
		obs.EventsStored(project, key.engine, key.kind, n)
	}
	for _, e := range w.ended {
		obs.TaskEnded(project, e.name, e.kind, e.runtime)
	}
	for i := range w.g.jobs {
		for _, d := range w.g.jobs[i].heartbeat.Depths {
			obs.QueueDepth(project, d.Engine, d.Queue, d.Depth)
		}
	}
}
