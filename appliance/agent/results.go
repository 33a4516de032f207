package agent

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// maxResultError is the longest error text of a command_result frame (agent protocol D.3).
const maxResultError = 8192

// lookup finds the command an ack or result speaks of; ok is false when the id is not a UUID or names no command of
// this agent and project, which is a durable no-op (agent protocol E.4).
func lookupOwn(tx CommandTx, p Peer, frameID string) (cmd Command, ok bool, err error) {
	id, err := uuid.Parse(frameID)
	if err != nil {
		return Command{}, false, nil
	}
	cmd, err = tx.CommandOfAgent(p.ProjectNo, p.AgentNo, id)
	if fault.Is(err, fault.NotFound) {
		return Command{}, false, nil
	}
	return cmd, err == nil, err
}

// ApplyAck records that the agent accepted a command (agent protocol E.3, E.4), inside the Router's transaction. An ack
// of a foreign, unknown or terminal command, and a repeated one, change nothing. Errors are the store's.
func (c *Commands) ApplyAck(tx CommandTx, p Peer, frameID string, _ rawjson.Value) error {
	cmd, ok, err := lookupOwn(tx, p, frameID)
	if err != nil || !ok {
		return err
	}
	now := tx.Now()
	next, changed := cmd.Ack(now)
	if cmd.Status.Terminal() {
		return nil
	}
	// A redelivered command is acked again: its newest attempt has not been.
	if err := tx.AckDeliveries(cmd.No, now); err != nil {
		return err
	}
	if !changed {
		return nil
	}
	return c.put(tx, cmd, next, EventAcked, nil)
}

// resultFrame is a checked command_result payload.
type resultFrame struct {
	success bool
	result  rawjson.Value
	err     *string
}

// parseResult reads a command_result payload (agent protocol D.3). The status must be known; a result or error that is not
// what it should be reads as null, and a longer error is cut: the agent sends its result once, and what it says must not be
// lost over a detail (agent protocol C.7).
func parseResult(payload rawjson.Value) (r resultFrame, err error) {
	status := payload.Get("status")
	switch {
	case status.StrEqual("success"):
		r.success = true
	case status.StrEqual("failed"):
	default:
		return r, fault.Field("status", "must be success or failed")
	}
	if v := payload.Get("result"); v.Kind() == rawjson.Object {
		r.result = v
	}
	if text, ok := payload.Get("error").Str(); ok {
		text = cutRunes(text, maxResultError)
		r.err = &text
	}
	return r, nil
}

// ApplyResult ends a command with the agent's result (agent protocol E.3, E.4), inside the Router's transaction. A
// result of a foreign or unknown command changes nothing; one of a terminal command changes nothing and is counted.
// Errors: Invalid for a payload that breaks the rules of command_result, otherwise the store's.
func (c *Commands) ApplyResult(tx CommandTx, p Peer, frameID string, payload rawjson.Value) error {
	r, err := parseResult(payload)
	if err != nil {
		return err
	}
	cmd, ok, err := lookupOwn(tx, p, frameID)
	if err != nil || !ok {
		return err
	}
	if err := c.answered(tx, cmd, r.success, r.err); err != nil {
		return err
	}
	if cmd.Status.Terminal() {
		tx.AfterCommit(func() { c.opts.Observer.CommandLateResult(cmd.Status) })
		return nil
	}
	now := tx.Now()
	var body []byte
	if !r.result.IsAbsent() {
		body = append(body, r.result.Raw()...)
	}
	if !r.success {
		next, err := cmd.Fail(r.err, body, now)
		if err != nil {
			return err
		}
		return c.finish(tx, cmd, next, DeliveryFailed, next.Error)
	}
	next, err := cmd.Complete(body, now)
	if err != nil {
		return err
	}
	if err := c.finish(tx, cmd, next, DeliverySuccess, nil); err != nil {
		return err
	}
	return c.reconcile(tx, next, r.result)
}

// finish stores the end of a command that its receiver or a failed signature brought: row, ledger, timeline, audit.
func (c *Commands) finish(tx CommandTx, before, after Command, outcome DeliveryOutcome, reason *string) error {
	if err := tx.FinishDeliveries(after.No, tx.Now(), outcome, reason); err != nil {
		return err
	}
	event, result, auditOutcome := EventCompleted, audit.Success, audit.Allow
	if after.Status == Failed {
		event, result, auditOutcome = EventFailed, audit.Failed, audit.Failure
	}
	if err := c.put(tx, before, after, event, reason); err != nil {
		return err
	}
	id := after.ID.String()
	meta := []byte(`{"action":`)
	meta = rawjson.AppendString(meta, after.Action)
	meta = append(meta, `,"agent_id":`...)
	meta = appendAgentID(meta, after)
	if after.Error != nil {
		meta = append(meta, `,"error":`...)
		meta = rawjson.AppendString(meta, *after.Error)
	}
	meta = append(meta, '}')
	return c.log.Append(tx, audit.Entry{ProjectNo: after.ProjectNo, Action: "command." + string(after.Status),
		TargetType: "command", TargetID: &id, Result: result, Outcome: auditOutcome, Metadata: meta})
}

// reconcileStates maps engine_state of a reconcile_task result to the state of a task. What is missing corrects
// nothing (agent protocol E.2).
var reconcileStates = map[string]string{"pending": "pending", "started": "started", "success": "success", "failure": "failure"}

// reconcile corrects the stored task with what a reconcile_task result says, and audits the correction.
func (c *Commands) reconcile(tx CommandTx, cmd Command, result rawjson.Value) error {
	if cmd.Action != "reconcile_task" {
		return nil
	}
	engineState, _ := result.Get("engine_state").Str()
	state, known := reconcileStates[engineState]
	if !known || state == TaskStarted {
		key, now := OpenTarget(cmd.ProjectNo, textOf(cmd.TargetID)), tx.Now()
		tx.AfterCommit(func() { c.asked.answered(key, now) })
	}
	if !known {
		return nil
	}
	doc, err := rawjson.Parse(cmd.Payload)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "stored payload of command %s is not JSON", cmd.ID)
	}
	defer doc.Release()
	engine, _ := doc.Root().Get("engine").Str()
	taskID, _ := doc.Root().Get("task_id").Str()
	var finishedAt *time.Time
	if at, ok := result.Get("finished_at").Time(); ok {
		finishedAt = &at
	}
	var exception *string
	if text, ok := result.Get("exception").Str(); ok && state == "failure" {
		cut := cutRunes(text, maxResultError)
		exception = &cut
	}
	asked := cmd.IssuedAt
	if cmd.DispatchedAt != nil {
		asked = *cmd.DispatchedAt
	}
	from, changed, err := tx.CommandReconcileTask(cmd.ProjectNo, engine, taskID, state, asked, finishedAt, exception)
	if err != nil || !changed {
		return err
	}
	target := engine + ":" + taskID
	meta := []byte(`{"command_id":"` + cmd.ID.String() + `","from":`)
	meta = append(rawjson.AppendString(meta, from), `,"to":`...)
	meta = append(rawjson.AppendString(meta, state), '}')
	return c.log.Append(tx, audit.Entry{ProjectNo: cmd.ProjectNo, Action: "task.reconciled", TargetType: "task",
		TargetID: &target, Result: audit.Success, Outcome: audit.Allow, Metadata: meta})
}
