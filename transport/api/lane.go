package api

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
)

// lane lets one search at a time read the database. A filter that few rows pass reads a project's whole history, and the
// store has few readers, which agents need to connect and to poll: whatever operators search for, one reader is left.
type lane chan struct{}

func newLane() lane { return make(lane, 1) }

// search runs read when its turn has come; Canceled when ctx ends before.
func search[R any](ctx context.Context, l lane, read func() (R, error)) (r R, err error) {
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return r, fault.Wrap(fault.Canceled, context.Cause(ctx), "the request was given up before it was read")
	}
	defer func() { <-l }()
	if ctx.Err() != nil { // gone while it waited: its turn is the next one's
		return r, fault.Wrap(fault.Canceled, context.Cause(ctx), "the request was given up before it was read")
	}
	return read()
}

// inLane puts the searches of the services into one lane.
func (s Services) inLane(l lane) Services {
	s.BulkRetries = bulkRetriesInLane{s.BulkRetries, l}
	s.Commands, s.Records, s.Audit = commandsInLane{s.Commands, l}, recordsInLane{s.Records, l}, auditInLane{s.Audit, l}
	s.Schedules, s.Fires = schedulesInLane{s.Schedules, l}, firesInLane{s.Fires, l}
	return s
}

type commandsInLane struct {
	Commands
	lane lane
}

func (c commandsInLane) List(ctx context.Context, projectNo int64, f agent.CommandFilter, page agent.Page) ([]agent.Command, error) {
	return search(ctx, c.lane, func() ([]agent.Command, error) { return c.Commands.List(ctx, projectNo, f, page) })
}

func (c commandsInLane) StreamSince(ctx context.Context, projectNo, after int64, f agent.StreamFilter, limit int) (agent.StreamPage, error) {
	return search(ctx, c.lane, func() (agent.StreamPage, error) {
		return c.Commands.StreamSince(ctx, projectNo, after, f, limit)
	})
}

type recordsInLane struct {
	Records
	lane lane
}

func (r recordsInLane) ListEvents(ctx context.Context, projectNo int64, f agent.EventFilter, page agent.Page) ([]agent.Event, error) {
	return search(ctx, r.lane, func() ([]agent.Event, error) { return r.Records.ListEvents(ctx, projectNo, f, page) })
}

func (r recordsInLane) StreamEvents(ctx context.Context, projectNo, after int64, f agent.EventFilter, limit int) (agent.EventStream, error) {
	return search(ctx, r.lane, func() (agent.EventStream, error) {
		return r.Records.StreamEvents(ctx, projectNo, after, f, limit)
	})
}

func (r recordsInLane) ListTasks(ctx context.Context, projectNo int64, f agent.TaskFilter, page agent.Page) ([]agent.Task, error) {
	return search(ctx, r.lane, func() ([]agent.Task, error) { return r.Records.ListTasks(ctx, projectNo, f, page) })
}

func (r recordsInLane) TaskTree(ctx context.Context, projectNo int64, engine, taskID string) (agent.TaskTree, error) {
	return search(ctx, r.lane, func() (agent.TaskTree, error) { return r.Records.TaskTree(ctx, projectNo, engine, taskID) })
}

func (r recordsInLane) BulkDeleteTasks(ctx context.Context, projectNo int64, d agent.BulkDelete) (int, error) {
	if len(d.IDs) > 0 { // nothing to search for
		return r.Records.BulkDeleteTasks(ctx, projectNo, d)
	}
	return search(ctx, r.lane, func() (int, error) { return r.Records.BulkDeleteTasks(ctx, projectNo, d) })
}

type schedulesInLane struct {
	Schedules
	lane lane
}

func (s schedulesInLane) List(ctx context.Context, projectNo int64, f schedule.Filter, page schedule.Page) ([]schedule.Shown, error) {
	return search(ctx, s.lane, func() ([]schedule.Shown, error) { return s.Schedules.List(ctx, projectNo, f, page) })
}

type firesInLane struct {
	Fires
	lane lane
}

func (f firesInLane) List(ctx context.Context, projectNo int64, filter fire.Filter, page agent.Page) ([]fire.Fire, error) {
	return search(ctx, f.lane, func() ([]fire.Fire, error) { return f.Fires.List(ctx, projectNo, filter, page) })
}

func (f firesInLane) Runs(ctx context.Context, projectNo int64, perSchedule int) ([]fire.Fire, error) {
	return search(ctx, f.lane, func() ([]fire.Fire, error) { return f.Fires.Runs(ctx, projectNo, perSchedule) })
}

type auditInLane struct {
	AuditLog
	lane lane
}

func (a auditInLane) List(ctx context.Context, f audit.Filter, before int64, limit int) ([]audit.Record, error) {
	return search(ctx, a.lane, func() ([]audit.Record, error) { return a.AuditLog.List(ctx, f, before, limit) })
}

type bulkRetriesInLane struct {
	BulkRetries
	lane lane
}

func (b bulkRetriesInLane) Start(ctx context.Context, who agent.Principal, r bulkretry.Request) (bulkretry.Started, error) {
	return search(ctx, b.lane, func() (bulkretry.Started, error) { return b.BulkRetries.Start(ctx, who, r) })
}

func (b bulkRetriesInLane) Tasks(ctx context.Context, projectNo int64, id uuid.UUID, status bulkretry.TaskStatus, after, limit int) ([]bulkretry.TaskRow, error) {
	return search(ctx, b.lane, func() ([]bulkretry.TaskRow, error) {
		return b.BulkRetries.Tasks(ctx, projectNo, id, status, after, limit)
	})
}
