package bulkretry

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// runner is the state of Run.
type runner struct {
	s     *Service
	again chan struct{}
	open  map[int64]Open        // by number
	watch map[int64]*wake.Watch // of agents coming online, by project
	look  time.Time             // when all are looked at again, whatever is hinted until then
}

func newRunner(s *Service) *runner {
	return &runner{s: s, again: make(chan struct{}, 1), open: map[int64]Open{}, watch: map[int64]*wake.Watch{}}
}

// Run carries open bulk retries on until ctx ends: it issues the next children when a child ends or an agent that can
// take them comes online, and ends parents. While a bulk retry is open it looks at all of them at the scan interval
// besides, for a hint that got lost; while none is, it does nothing.
func (s *Service) Run(ctx context.Context) error {
	r := newRunner(s)
	changed := s.hub.Watch(Changed{})
	defer changed.Stop()
	defer r.stopWatching()
	timer := s.opts.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-changed.C():
		case <-r.again:
		case <-timer.C():
			s.markAll()
		case <-ctx.Done():
			return nil
		}
		if r.overdue() {
			s.markAll()
		}
		err := r.turn(ctx)
		if err != nil && ctx.Err() == nil {
			s.opts.Trouble("carry on bulk retries", err)
			s.markAll()
		}
		switch {
		case err == nil && len(r.open) == 0:
			timer.Stop()
		default:
			timer.ResetAt(r.next())
		}
	}
}

// overdue tells whether it is time to look at all. A time that lies further ahead than the interval was set by a clock that was
// ahead.
func (r *runner) overdue() bool {
	now := r.s.opts.Clock.Now()
	return len(r.open) > 0 && (!now.Before(r.look) || r.look.After(now.Add(r.s.opts.Scan)))
}

// next is until when Run may sleep: the next deadline, and not beyond the next look at all.
func (r *runner) next() time.Time {
	now := r.s.opts.Clock.Now()
	wait := min(max(r.look.Sub(now), 0), r.s.opts.Scan)
	for _, o := range r.open {
		wait = min(wait, max(o.Deadline.Sub(now), 0)+time.Microsecond)
	}
	return now.Add(wait)
}

func (r *runner) stopWatching() {
	for _, w := range r.watch {
		w.Stop()
	}
}

// turn looks at what was marked.
func (r *runner) turn(ctx context.Context) error {
	s := r.s
	for {
		s.mu.Lock()
		dirty, all := s.dirty, s.all
		s.dirty, s.all = map[int64]bool{}, false
		s.mu.Unlock()
		if all {
			if err := r.scan(ctx, dirty); err != nil {
				return err
			}
		}
		if len(dirty) == 0 {
			r.rewatch()
			return nil
		}
		for no := range dirty {
			b, err := s.advance(ctx, no)
			if err != nil {
				return fmt.Errorf("bulk retry %d: %w", no, err)
			}
			delete(r.open, no)
			if b.IsOpen {
				r.open[no] = Open{No: no, ProjectNo: b.ProjectNo, Deadline: b.Parent.TimeoutAt}
				r.watchProject(b.ProjectNo)
			}
		}
	}
}

// scan marks every open bulk retry.
func (r *runner) scan(ctx context.Context, dirty map[int64]bool) error {
	r.look = r.s.opts.Clock.Now().Add(r.s.opts.Scan)
	clear(r.open)
	for above := int64(0); ; {
		var list []Open
		if err := r.s.st.View(ctx, func(tx ReadTx) (err error) {
			list, err = tx.BulkRetriesOpen(above, r.s.opts.ScanBatch)
			return err
		}); err != nil {
			return err
		}
		for _, o := range list {
			dirty[o.No] = true
			above = o.No
		}
		if len(list) < r.s.opts.ScanBatch {
			return nil
		}
	}
}

// watchProject follows agents of a project coming online.
func (r *runner) watchProject(no int64) {
	if r.watch[no] != nil {
		return
	}
	r.watch[no] = r.s.hub.Notify(agent.AgentsOnline(no), func() {
		r.s.markAll()
		select {
		case r.again <- struct{}{}:
		default:
		}
	})
	r.s.markAll() // an agent may have come between the look and the watch
}

// rewatch leaves the projects that have nothing open.
func (r *runner) rewatch() {
	still := map[int64]bool{}
	for _, o := range r.open {
		still[o.ProjectNo] = true
	}
	for no, w := range r.watch {
		if !still[no] {
			w.Stop()
			delete(r.watch, no)
		}
	}
}

// advance issues what is due of one bulk retry, or ends it, and returns it as it then stands.
func (s *Service) advance(ctx context.Context, no int64) (b BulkRetry, err error) {
	if b, err = s.read(ctx, no); err != nil || !b.IsOpen {
		if fault.Is(err, fault.NotFound) {
			return BulkRetry{}, nil
		}
		return b, err
	}
	now := s.opts.Clock.Now()
	switch {
	case b.Waiting() == 0 && b.InFlight == 0:
		return s.settle(ctx, no, s.finish)
	case b.Parent.TimeoutAt.Before(now):
		return s.settle(ctx, no, s.expire)
	case b.Parent.TimeoutAt.After(now.Add(s.opts.ParentTimeout)): // a clock that was set back since
		return s.settle(ctx, no, func(tx Tx, b BulkRetry) error {
			return tx.TouchBulkRetry(b.CommandNo, tx.Now().Add(s.opts.ParentTimeout))
		})
	case b.Waiting() == 0 || b.InFlight >= s.opts.MaxInFlight:
		return b, nil
	}
	targets, reason, err := s.targets(ctx, &b)
	if err != nil {
		return b, err
	}
	if len(targets) == 0 {
		if reason == b.WaitReason {
			return b, nil
		}
		return s.settle(ctx, no, func(tx Tx, b BulkRetry) error { return tx.SetBulkRetryWait(no, reason) })
	}
	return s.settle(ctx, no, func(tx Tx, b BulkRetry) error { return s.issue(tx, b, targets) })
}

// settle changes an open bulk retry in one transaction and returns it as it then stands.
func (s *Service) settle(ctx context.Context, no int64, change func(Tx, BulkRetry) error) (b BulkRetry, err error) {
	err = s.st.Update(ctx, "carry on bulk retry", func(tx Tx) error {
		if b, err = withParent(tx, no); err != nil || !b.IsOpen {
			return err
		}
		if err := change(tx, b); err != nil {
			return err
		}
		b, err = withParent(tx, no)
		return err
	})
	return b, err
}

func (s *Service) read(ctx context.Context, no int64) (b BulkRetry, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		b, err = withParent(tx, no)
		return err
	})
	return b, err
}

func withParent(tx ReadTx, no int64) (BulkRetry, error) {
	b, err := tx.BulkRetryByNo(no)
	if err != nil || b.CommandNo == 0 {
		return b, err
	}
	b.Parent, err = tx.CommandByNo(b.CommandNo)
	return b, err
}

// targets are the agents that the next children may go to: the one named, or the best of those that can (agent protocol
// E.5, F.8). reason says why there is none.
func (s *Service) targets(ctx context.Context, b *BulkRetry) (targets []agent.Standing, reason string, err error) {
	active := false
	err = s.st.View(ctx, func(tx ReadTx) error {
		project, err := tx.CommandProject(b.ProjectNo, "")
		active = project.Active
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if !active {
		return nil, "the project is archived", nil
	}
	list, err := s.commands.Able(ctx, b.ProjectNo, "retry_task", b.Engine)
	if err != nil {
		return nil, "", err
	}
	if b.AgentNo == 0 {
		if targets = agent.Best(list); len(targets) > 0 {
			return targets, "", nil
		}
		reason = "the project has no agent"
		if len(list) > 0 {
			reason = "no agent can retry tasks of " + b.Engine + " now: " + list[0].Reason
		}
		return nil, cut(reason, 500), nil
	}
	for _, a := range list {
		if a.No == b.AgentNo {
			if a.Able {
				return []agent.Standing{a}, "", nil
			}
			return nil, cut("the agent that was named cannot take it now: "+a.Reason, 500), nil
		}
	}
	return nil, "the agent that was named is revoked", nil
}

// issue stores the next children of a bulk retry, and with each what says that it is there.
func (s *Service) issue(tx Tx, b BulkRetry, targets []agent.Standing) error {
	rows, err := tx.BulkRetryTasks(b.No, Waiting, 0, s.opts.MaxInFlight-b.InFlight)
	if err != nil {
		return err
	}
	// Children are due to whoever started the bulk retry.
	by := agent.Principal{Kind: "bulk_retry", Role: agent.Operator}
	if b.Parent.IssuedBy != nil {
		by.ID = *b.Parent.IssuedBy
	}
	if b.Parent.SourceIP != nil {
		by.SourceIP = *b.Parent.SourceIP
	}
	issued := 0
	for _, row := range rows {
		target := targets[row.Position%len(targets)]
		req := childRequest(&b, &row, target)
		if taken, err := keyTaken(tx, &b, *req.IdempotencyKey); err != nil {
			return err
		} else if taken {
			req.IdempotencyKey = nil
		}
		child, err := s.commands.IssueIn(tx, by, req)
		switch {
		case err == nil:
			row.Status, row.CommandNo, row.Error = Issued, child.Command.No, nil
			issued++
		case fault.Is(err, fault.NotFound): // the agent was revoked since, or the project archived: the next look tells
			return nil
		case fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict):
			text := cut(fault.Message(err), maxError)
			row.Status, row.Error = Refused, &text
			if err := tx.CountBulkRetryTask(b.No, Refused); err != nil {
				return err
			}
			no := b.No
			tx.Hint(func() { s.mark(no) })
		default:
			return err
		}
		if err := tx.UpdateBulkRetryTask(row); err != nil {
			return err
		}
	}
	if err := tx.SetBulkRetryWait(b.No, ""); err != nil {
		return err
	}
	if issued == 0 || b.Parent.Status != agent.Pending {
		return nil
	}
	next, now := b.Parent, tx.Now()
	next.Status, next.DispatchedAt, next.AckedAt, next.TimeoutAt = agent.Dispatched, &now, &now, now.Add(s.opts.ParentTimeout)
	detail := "its first children are issued"
	return s.commands.PutParent(tx, b.Parent, next, agent.EventClaimed, &detail)
}

// childRequest asks for the child of a task. Its key is made of parent and position, and of the child before when nobody
// had taken that one.
func childRequest(b *BulkRetry, row *TaskRow, target agent.Standing) agent.IssueRequest {
	key := agent.ReservedKeyPrefix + b.Parent.ID.String() + ":" + strconv.Itoa(row.Position)
	if row.CommandNo != 0 {
		key += ":after:" + strconv.FormatInt(row.CommandNo, 10)
	}
	return agent.IssueRequest{ProjectNo: b.ProjectNo, AgentID: target.ID, Action: "retry_task", IdempotencyKey: &key,
		Payload: retryPayload(b.Engine, row.TaskID), ParentNo: b.CommandNo}
}

// keyTaken tells whether a command that is no child of the bulk retry has the key: one from before these keys were kept for
// children. The child does without then.
func keyTaken(tx ReadTx, b *BulkRetry, key string) (bool, error) {
	cmd, err := tx.CommandByKey(b.ProjectNo, key)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil && cmd.ParentNo != b.CommandNo, err
}

// finish ends a parent whose tasks have all ended: completed when every one was retried, failed otherwise.
func (s *Service) finish(tx Tx, b BulkRetry) error {
	if b.Waiting() > 0 || b.InFlight > 0 {
		return nil
	}
	before, now := b.Parent, tx.Now()
	if b.Completed == b.Total {
		next, err := before.Complete(b.result(), now)
		if err != nil {
			return nil // it has ended
		}
		return s.commands.PutParent(tx, before, next, agent.EventCompleted, nil)
	}
	text := fmt.Sprintf("%d of %s were not retried: %d failed, %d timed out, %d refused, %d cancelled", b.Total-b.Completed,
		countOf(b.Total, "task"), b.Failed, b.TimedOut, b.Refused, b.Cancelled)
	next, err := before.Fail(&text, b.result(), now)
	if err != nil {
		return nil
	}
	return s.commands.PutParent(tx, before, next, agent.EventFailed, &text)
}

// expire ends a parent none of whose children ended for the whole of its time.
func (s *Service) expire(tx Tx, b BulkRetry) error {
	next, err := b.Parent.Expire(tx.Now())
	if err != nil {
		return nil // it has ended, or its time has been moved
	}
	text := "no task was answered for within " + s.opts.ParentTimeout.String()
	if b.WaitReason != "" {
		text += ": " + b.WaitReason
	}
	text = cut(text, maxError)
	next.Error = &text
	return s.commands.PutParent(tx, b.Parent, next, agent.EventTimedOut, &text)
}
