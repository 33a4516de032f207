package bulkretry

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// Sizes of the work: tasks read in one snapshot, tasks written in one transaction, tasks that a plan shows.
const (
	readSlice  = 1000
	writeSlice = 500
	planShown  = 20
)

// Plan is what a request would retry.
type Plan struct {
	Engine       string // "" when there is nothing to retry
	Count        int
	More         bool   // the filter matches more than max: the oldest are taken
	Tasks        []Task // the first 20
	MustConfirm  bool   // a start needs confirm_count
	RejectedKeys []string
	LeftOut      int       // tasks that match too and are left out: see Task.Retried
	Until        time.Time // tasks first heard of at or after it do not match
	WaitReason   string    // why nothing could be issued now; "": nothing keeps it
}

// Started is the answer to a request: the bulk retry, or for a dry run the plan alone.
type Started struct {
	BulkRetry BulkRetry
	Plan      Plan
	Replayed  bool // found under its idempotency key, not started
}

// Start resolves a request's filter to tasks and starts to retry them. A dry run writes nothing at all. It returns once the
// bulk retry is stored: its tasks are written in slices of 500, and with the last of them it appears as a whole; a crash
// before that leaves nothing that anybody sees, and Recover removes it.
//
// What is retried is what matches at the moment of the start, but for tasks whose retry by another bulk retry is under way or
// has succeeded: these are left out until they fail again.
//
// Errors: Forbidden below operator; Invalid naming filter or a part of it for a filter that matches nothing, for tasks of
// several engines and for task ids that are unknown or in another state (audited as command.bulk_retry.refused);
// NotFound for the agent named; Conflict for an engine that cannot retry by reference, for a confirm_count that is missing
// or differs ("count" in the details), for an idempotency key in use, and for tasks that another start took meanwhile.
func (s *Service) Start(ctx context.Context, p agent.Principal, r Request) (Started, error) {
	if p.Role != agent.Operator && p.Role != agent.Admin {
		return Started{}, fault.New(fault.Forbidden, "bulk_retry needs the role operator")
	}
	if r.IdempotencyKey != nil && !r.DryRun {
		if found, ok, err := s.repeated(ctx, r); err != nil || ok {
			return found, err
		}
	}
	if err := agent.CheckKey(r.IdempotencyKey); err != nil {
		return Started{}, err
	}
	if r.until = r.Filter.Until; r.until.IsZero() {
		r.until = s.opts.Clock.Now().Truncate(time.Microsecond).Add(time.Microsecond)
	}
	target, err := s.named(ctx, r)
	if err != nil {
		return Started{}, err
	}
	found, err := s.resolve(ctx, r)
	tasks := found.tasks
	if err == nil {
		err = s.admit(found, target, r)
	}
	if err != nil {
		return Started{}, s.refused(ctx, p, r, err)
	}
	plan := Plan{Count: len(tasks), More: found.more, Tasks: tasks[:min(len(tasks), planShown)], MustConfirm: len(tasks) > s.opts.ConfirmAbove,
		RejectedKeys: r.RejectedKeys, LeftOut: found.leftOut, Until: r.until}
	if len(tasks) > 0 {
		plan.Engine = tasks[0].Engine
		b := BulkRetry{ProjectNo: r.ProjectNo, Engine: plan.Engine}
		if target != nil {
			b.AgentNo = target.No
		}
		if _, plan.WaitReason, err = s.targets(ctx, &b); err != nil {
			return Started{}, err
		}
	}
	if r.DryRun {
		return Started{Plan: plan}, nil
	}
	if n := r.ConfirmCount; n != nil && *n != plan.Count || n == nil && plan.MustConfirm {
		return Started{}, fault.New(fault.Conflict, "the filter matches %d tasks: say so with confirm_count to retry them", plan.Count).
			With("error", "confirm_count_required").With("count", plan.Count)
	}
	b, replayed, err := s.write(ctx, p, r, tasks, target, plan.WaitReason)
	if err != nil {
		return Started{}, err
	}
	return Started{BulkRetry: b, Plan: plan, Replayed: replayed}, nil
}

// repeated finds the bulk retry of an idempotency key.
func (s *Service) repeated(ctx context.Context, r Request) (found Started, ok bool, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		found.BulkRetry, ok, err = underKey(tx, r)
		return err
	})
	found.Replayed = ok
	return found, ok, err
}

func underKey(tx ReadTx, r Request) (b BulkRetry, ok bool, err error) {
	if r.IdempotencyKey == nil {
		return b, false, nil
	}
	cmd, err := tx.CommandByKey(r.ProjectNo, *r.IdempotencyKey)
	if fault.Is(err, fault.NotFound) {
		return b, false, nil
	}
	if err != nil {
		return b, false, err
	}
	b, err = tx.BulkRetryOf(cmd.No)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return b, false, err
	}
	if err != nil || !bytes.Equal(b.Request, r.digest()) {
		return b, false, fault.New(fault.Conflict, "idempotency_key already in use").With("command_id", cmd.ID.String())
	}
	b.Parent = cmd
	return b, true, nil
}

// named finds the agent that a request names; nil when it names none.
func (s *Service) named(ctx context.Context, r Request) (*agent.CommandAgent, error) {
	if r.AgentID == uuid.Nil {
		return nil, nil
	}
	var a agent.CommandAgent
	err := s.st.View(ctx, func(tx ReadTx) (err error) {
		a, err = tx.CommandAgent(r.ProjectNo, r.AgentID)
		return err
	})
	if fault.Is(err, fault.NotFound) || err == nil && a.RevokedAt != nil {
		return nil, fault.New(fault.NotFound, "agent not found")
	}
	return &a, err
}

// resolved are the tasks of a request, oldest first.
type resolved struct {
	tasks   []Task
	more    bool // further ones match
	leftOut int  // others match and are retried already
}

// add takes a task unless it is retried already; it is false when there is no room for it.
func (f *resolved) add(t Task, most int) bool {
	switch {
	case t.Retried:
		f.leftOut++
	case len(f.tasks) == most:
		f.more = true
		return false
	default:
		f.tasks = append(f.tasks, t)
	}
	return true
}

// resolve finds the tasks of a request.
func (s *Service) resolve(ctx context.Context, r Request) (found resolved, err error) {
	r.Filter.Until = r.until
	if len(r.Filter.TaskIDs) > 0 {
		tasks, err := s.resolveIDs(ctx, r)
		for _, t := range tasks {
			found.add(t, r.Max)
		}
		return found, err
	}
	for after := uuid.Nil; ; {
		var page []Task
		err := s.st.View(ctx, func(tx ReadTx) (err error) {
			page, err = tx.BulkRetryCandidates(r.ProjectNo, r.Filter, after, readSlice)
			return err
		})
		if err != nil {
			return resolved{}, err
		}
		for _, t := range page {
			if !found.add(t, r.Max) {
				return found, nil
			}
		}
		if len(page) < readSlice {
			return found, nil
		}
		after = page[len(page)-1].ID
	}
}

// unresolved collects task ids that name no task to retry, with the reason of the first.
type unresolved struct {
	ids    []string
	reason string
}

func (u *unresolved) add(id, reason string) {
	if len(u.ids) == 0 {
		u.reason = reason
	}
	u.ids = append(u.ids, id)
}

// resolveIDs finds the tasks with the ids of the filter. Every one must be there and pass the rest of the filter.
func (s *Service) resolveIDs(ctx context.Context, r Request) (tasks []Task, err error) {
	var bad unresolved
	var engines []string
	for ids := r.Filter.TaskIDs; len(ids) > 0; {
		page := ids[:min(len(ids), readSlice)]
		ids = ids[len(page):]
		err := s.st.View(ctx, func(tx ReadTx) error {
			if engines == nil {
				if engines = []string{r.Filter.Engine}; r.Filter.Engine == "" {
					if engines, err = tx.TaskEngines(r.ProjectNo); err != nil {
						return err
					}
				}
			}
			for _, id := range page {
				t, reason, err := resolveID(tx, r, engines, id)
				if err != nil {
					return err
				}
				if reason != "" {
					bad.add(id, reason)
					continue
				}
				tasks = append(tasks, t)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if n := len(bad.ids); n > 0 {
		return nil, fault.Field("filter.task_ids", "%s cannot be retried; the first, %q, %s", countOf(n, "task"), cut(bad.ids[0], 64), bad.reason).
			With("error", "unresolved_task_ids").With("count", n).With("task_ids", bad.ids[:min(n, planShown)])
	}
	return tasks, nil
}

// resolveID finds one task; reason says why it is none of the request's.
func resolveID(tx ReadTx, r Request, engines []string, id string) (t Task, reason string, err error) {
	found := 0
	for _, engine := range engines {
		one, ok, err := tx.BulkRetryNamed(r.ProjectNo, engine, id)
		if err != nil {
			return t, "", err
		}
		if ok {
			t = one
			found++
		}
	}
	f := &r.Filter
	switch {
	case found == 0:
		return t, "is unknown", nil
	case found > 1:
		return t, "is a task of several engines: name the engine", nil
	case t.State != f.State:
		return t, "is in the state " + t.State + ", not " + f.State, nil
	case f.Queue != "" && t.Queue != f.Queue:
		return t, "is not of the queue " + f.Queue, nil
	case f.Name != "" && t.Name != f.Name:
		return t, "is not of the name " + f.Name, nil
	}
	if at := t.CreatedAt; !f.Since.IsZero() && at.Before(f.Since) || !f.Until.IsZero() && !at.Before(f.Until) {
		return t, "does not lie between since and until", nil
	}
	return t, "", nil
}

// admit checks what the tasks have in common and the agent named.
func (s *Service) admit(found resolved, target *agent.CommandAgent, r Request) error {
	tasks := found.tasks
	if len(tasks) == 0 {
		switch {
		case r.DryRun:
			return nil
		case found.leftOut > 0:
			return fault.Field("filter", "matches no task but %s whose retry is under way or has succeeded since it failed",
				countOf(found.leftOut, "task")).With("left_out", found.leftOut)
		}
		return fault.Field("filter", "matches no task")
	}
	for _, t := range tasks {
		if t.Engine != tasks[0].Engine {
			return fault.Field("filter.engine", "is required: tasks of %s and of %s match", tasks[0].Engine, t.Engine)
		}
	}
	return agent.AdmitRetry(target, tasks[0].Engine)
}

// refused audits a request that was refused for its tasks, and returns why it was. A dry run leaves no trace.
func (s *Service) refused(ctx context.Context, p agent.Principal, r Request, why error) error {
	field, _ := fault.Details(why)["field"].(string)
	if r.DryRun || !fault.Is(why, fault.Invalid) || field == "" {
		return why
	}
	meta := rawjson.AppendString([]byte(`{"field":`), field)
	meta = rawjson.AppendString(append(meta, `,"reason":`...), fault.Message(why))
	meta = append(meta, `,"task_ids":[`...)
	ids, _ := fault.Details(why)["task_ids"].([]string)
	for i, id := range ids {
		if i > 0 {
			meta = append(meta, ',')
		}
		meta = rawjson.AppendString(meta, id)
	}
	meta = append(meta, `]}`...)
	if err := s.st.Update(ctx, "refuse bulk retry", func(tx Tx) error {
		return s.commands.AuditRefusal(tx, p, r.ProjectNo, "command.bulk_retry.refused", "bulk", meta)
	}); err != nil {
		return err
	}
	return why
}

// write stores a bulk retry: its tasks in slices, its parent with the last of them.
func (s *Service) write(ctx context.Context, p agent.Principal, r Request, tasks []Task, target *agent.CommandAgent, waits string) (
	b BulkRetry, replayed bool, err error) {
	f := r.Filter
	f.Until = r.until
	b = BulkRetry{ProjectNo: r.ProjectNo, Engine: tasks[0].Engine, Filter: f.appendFilter(nil, false), Request: r.digest(),
		Total: len(tasks), WaitReason: waits}
	if target != nil {
		b.AgentNo, b.AgentID = target.No, target.ID
	}
	no := int64(0)
	for at := 0; at < len(tasks); at += s.slice {
		slice := tasks[at:min(at+s.slice, len(tasks))]
		last := at+len(slice) == len(tasks)
		made := no
		var found BulkRetry
		err = s.st.Update(ctx, "write bulk retry", func(tx Tx) (err error) {
			if replayed = false; last {
				if found, replayed, err = underKey(tx, r); err != nil || replayed {
					return err
				}
			}
			if made = no; made == 0 {
				if made, err = tx.InsertBulkRetry(b); err != nil {
					return err
				}
			}
			if err := tx.InsertBulkRetryTasks(made, at+1, slice); err != nil || !last {
				return err
			}
			return s.open(tx, p, r, &b, made)
		})
		if err != nil || replayed {
			s.discard(ctx, no)
			return found, replayed, wrapStart(err)
		}
		no = made
	}
	s.mark(no)
	return b, false, nil
}

func wrapStart(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("start bulk retry: %w", err)
}

// open gives a bulk retry its parent.
func (s *Service) open(tx Tx, p agent.Principal, r Request, b *BulkRetry, no int64) error {
	project, err := tx.CommandProject(r.ProjectNo, "")
	if err == nil && !project.Active {
		err = fault.New(fault.NotFound, "project not found")
	}
	if err != nil {
		return err
	}
	payload := append([]byte(`{"filter":`), b.Filter...)
	payload = strconv.AppendInt(append(payload, `,"max":`...), int64(r.Max), 10)
	payload = append(strconv.AppendInt(append(payload, `,"total":`...), int64(b.Total), 10), '}')
	cmd := agent.Command{ID: uuid.New(), ProjectNo: r.ProjectNo, ProjectID: project.ID, Payload: payload, RetryEngine: b.Engine,
		IdempotencyKey: r.IdempotencyKey, TimeoutAt: tx.Now().Add(s.opts.ParentTimeout)}
	if cmd, err = s.commands.InsertParent(tx, p, cmd, r.RejectedKeys); err != nil {
		return err
	}
	taken, err := tx.BulkRetryTaken(no)
	if err == nil && taken > 0 {
		err = fault.New(fault.Conflict, "another bulk retry took %s of these meanwhile: nothing is started", countOf(taken, "task")).
			With("error", "tasks_taken").With("count", taken)
	}
	if err != nil {
		return err
	}
	if err := tx.OpenBulkRetry(no, cmd.No); err != nil {
		return err
	}
	if err := tx.SetBulkRetryWait(no, b.WaitReason); err != nil {
		return err
	}
	b.No, b.CommandNo, b.IsOpen, b.CreatedAt, b.Parent = no, cmd.No, true, tx.Now(), cmd
	return nil
}

// discard removes what was written of a bulk retry that did not come to be; what it leaves, Recover removes.
func (s *Service) discard(ctx context.Context, no int64) {
	if no == 0 {
		return
	}
	if err := s.remove(context.WithoutCancel(ctx), no); err != nil {
		s.opts.Trouble("discard bulk retry", err)
	}
}

func (s *Service) remove(ctx context.Context, no int64) error {
	for done := false; !done; {
		err := s.st.Update(ctx, "remove bulk retry", func(tx Tx) (err error) {
			done, err = tx.RemoveBulkRetry(no, s.slice)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Recover removes, at start, what a run that was killed had begun to write. It is called before anything is served.
func (s *Service) Recover(ctx context.Context) (n int, err error) {
	for {
		var staged []int64
		if err := s.st.View(ctx, func(tx ReadTx) (err error) {
			staged, err = tx.BulkRetriesStaged(readSlice)
			return err
		}); err != nil || len(staged) == 0 {
			return n, err
		}
		for _, no := range staged {
			if err := s.remove(ctx, no); err != nil {
				return n, err
			}
			n++
		}
	}
}
