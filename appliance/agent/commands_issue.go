package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// IssueRequest asks for a command.
type IssueRequest struct {
	ProjectNo   int64
	ProjectSlug string // used when ProjectNo is 0
	AgentID     uuid.UUID
	Action      string
	TargetType  string  // "" is the action's own
	TargetID    *string // nil: taken from the payload
	Payload     []byte  // JSON object
	// IdempotencyKey makes a repeat of the request return the stored command (agent protocol E.8).
	IdempotencyKey *string
	// ParentNo is the bulk_retry command that this one is a child of; 0: none. Children are claimed before anything else.
	ParentNo int64
}

// Issued is a command as it was stored, or found under its idempotency key.
type Issued struct {
	Command  Command
	Replayed bool // found, not stored
}

// Issue stores a command for an agent and wakes the agent's sessions (agent protocol E.5, E.8). Checks come in the
// order of E.5 and leave no row; the audit row command.issue.<action> is written with the command.
//
// Errors: Invalid for a request that breaks a rule of the actions table or that the agent's reported inventory cannot
// serve, Forbidden for a role below the action's, NotFound for an unknown or revoked agent, Conflict for a retry without
// arguments on an engine that needs them and for an idempotency key in use, AgentOffline when the command was stored
// but nobody is there to take it. Only AgentOffline returns the command beside the error.
func (c *Commands) Issue(ctx context.Context, p Principal, r IssueRequest) (Issued, error) {
	d, err := newDraft(r)
	if err != nil {
		return Issued{}, err
	}
	defer d.doc.Release()
	if p.Role.rank() < d.spec.Role.rank() {
		return Issued{}, fault.New(fault.Forbidden, "%s needs the role %s", d.spec.Name, d.spec.Role)
	}
	var out Issued
	var target CommandAgent
	err = c.st.Update(ctx, "issue command", func(tx CommandTx) error {
		out = Issued{}
		if target, err = c.admitted(tx, d); err != nil {
			return err
		}
		out, err = c.issue(tx, p, d, target)
		return err
	})
	if err != nil {
		return Issued{}, fmt.Errorf("issue %s: %w", d.spec.Name, err)
	}
	if !out.Replayed && target.State != Online && !c.connected(target.ID) {
		return out, fault.New(fault.AgentOffline, "agent %s is offline: the command stays pending until %s", target.Name,
			rawjson.FormatTime(out.Command.TimeoutAt)).
			With("agent_id", target.ID.String()).With("command_id", out.Command.ID.String())
	}
	return out, nil
}

// IssueIn is Issue inside the caller's transaction, for commands that are due to something else than a request: the rules
// and errors are those of Issue without Forbidden and AgentOffline, and the sessions are woken after the commit.
func (c *Commands) IssueIn(tx CommandTx, p Principal, r IssueRequest) (Issued, error) {
	d, err := newDraft(r)
	if err != nil {
		return Issued{}, err
	}
	defer d.doc.Release()
	target, err := c.admitted(tx, d)
	if err != nil {
		return Issued{}, err
	}
	return c.issue(tx, p, d, target)
}

// connected tells whether the agent holds a socket. A parked poll does not count: a long-poll agent is there when its
// uploads say so (agent protocol E.5).
func (c *Commands) connected(agentID uuid.UUID) bool {
	for _, s := range c.presence.Sessions(agentID) {
		if s.Transport == WebSocket {
			return true
		}
	}
	return false
}

// admitted finds project and agent and applies the 404, 422 and 409 checks.
func (c *Commands) admitted(tx CommandTx, d *draft) (CommandAgent, error) {
	project, err := tx.CommandProject(d.req.ProjectNo, d.req.ProjectSlug)
	if err == nil && !project.Active {
		err = fault.New(fault.NotFound, "project not found")
	}
	if err != nil {
		return CommandAgent{}, notFoundAs(err, "project not found")
	}
	target, err := tx.CommandAgent(project.No, d.req.AgentID)
	if err == nil && target.RevokedAt != nil {
		err = fault.New(fault.NotFound, "agent not found")
	}
	if err != nil {
		return CommandAgent{}, notFoundAs(err, "agent not found")
	}
	return target, admit(&target, d.spec, d.doc.Root())
}

// notFoundAs gives NotFound the words for strangers and leaves other errors alone.
func notFoundAs(err error, text string) error {
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "%s", text)
	}
	return err
}

// issue answers a repeat or stores a new command.
func (c *Commands) issue(tx CommandTx, p Principal, d *draft, target CommandAgent) (Issued, error) {
	payload, err := c.normalise(tx, d, &target)
	if err != nil {
		return Issued{}, err
	}
	if d.req.IdempotencyKey != nil {
		stored, err := tx.CommandByKey(target.ProjectNo, *d.req.IdempotencyKey)
		// A request is no repeat of a child, but may be one of a command that is older than the rule of CheckKey.
		if err == nil && (stored.ParentNo == 0 || d.req.ParentNo != 0) {
			return c.replay(tx, d, stored, payload, target)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return Issued{}, err
		}
		if d.req.ParentNo == 0 {
			if err := CheckKey(d.req.IdempotencyKey); err != nil {
				return Issued{}, err
			}
		}
	}
	now := tx.Now()
	cmd := Command{ID: uuid.New(), ProjectNo: target.ProjectNo, ProjectID: target.ProjectID, AgentNo: target.No,
		AgentID: target.ID, IssuedBy: textOrNil(cutRunes(p.ID, 64)), Action: d.spec.Name, TargetType: d.targetType,
		TargetID: d.targetID, Payload: payload, RetryEngine: d.retryEngine(), IdempotencyKey: d.req.IdempotencyKey,
		ParentNo: d.req.ParentNo, Status: Pending, IssuedAt: now, TimeoutAt: now.Add(c.opts.Timeout), SourceIP: textOrNil(p.SourceIP)}
	if cmd.No, err = tx.InsertCommand(cmd); err != nil {
		return Issued{}, err
	}
	if err := c.auditIssue(tx, p, d, cmd); err != nil {
		return Issued{}, err
	}
	if err := c.record(tx, cmd, EventIssued, nil); err != nil {
		return Issued{}, err
	}
	tx.AfterCommit(func() { c.opts.Observer.CommandIssued(cmd.ProjectID, cmd.Action) })
	return Issued{Command: cmd}, nil
}

func (c *Commands) auditIssue(tx CommandTx, p Principal, d *draft, cmd Command) error {
	meta := append(appendAgentID([]byte(`{"agent_id":`), cmd), `,"idempotency_key":`...)
	meta = appendOptional(meta, cmd.IdempotencyKey)
	meta = append(meta, `,"target_id":`...)
	meta = appendOptional(meta, cmd.TargetID)
	meta = append(meta, `,"target_type":`...)
	meta = append(rawjson.AppendString(meta, cmd.TargetType), '}')
	if err := c.auditBy(tx, p, cmd, "command.issue."+cmd.Action, meta); err != nil {
		return err
	}
	if len(d.rejectedKeys) == 0 {
		return nil
	}
	meta = []byte(`{"keys":[`)
	for i, key := range d.rejectedKeys {
		if i > 0 {
			meta = append(meta, ',')
		}
		meta = rawjson.AppendString(meta, key)
	}
	return c.auditBy(tx, p, cmd, "command.bulk_retry.filter_keys_rejected", append(meta, `]}`...))
}

// auditBy records what a principal did to a command.
func (c *Commands) auditBy(tx CommandTx, p Principal, cmd Command, action string, meta []byte) error {
	id := cmd.ID.String()
	return c.log.Append(tx, audit.Entry{ProjectNo: cmd.ProjectNo, UserID: textOrNil(p.ID), Action: action,
		TargetType: "command", TargetID: &id, Result: audit.Success, Outcome: audit.Allow, Metadata: meta,
		SourceIP: textOrNil(p.SourceIP), UserAgent: textOrNil(p.UserAgent)})
}

// replay answers a repeat of an idempotency key (agent protocol E.8, cases 1 to 6).
func (c *Commands) replay(tx CommandTx, d *draft, stored Command, payload []byte, target CommandAgent) (Issued, error) {
	same, err := d.matches(stored, payload, target)
	if err != nil {
		return Issued{}, err
	}
	if !same {
		return Issued{}, fault.New(fault.Conflict, "idempotency_key already in use").With("command_id", stored.ID.String())
	}
	switch replayOf(stored, tx.Now(), c.opts.RedispatchWindow) {
	case replayDeliver:
		agentNo := stored.AgentNo
		tx.Hint(func() { c.hub.Wake(AgentKey(agentNo)) })
	case replayRevert:
		next, err := stored.Revert(tx.Now(), c.opts.Timeout)
		if err != nil {
			return Issued{}, err
		}
		next.AgentNo, next.AgentID = target.No, target.ID
		reason := "the request was repeated under its idempotency key"
		if err := tx.FinishDeliveries(stored.No, tx.Now(), DeliverySuperseded, &reason); err != nil {
			return Issued{}, err
		}
		if err := c.put(tx, stored, next, EventReverted, &reason); err != nil {
			return Issued{}, err
		}
		stored = next
	}
	return Issued{Command: stored, Replayed: true}, nil
}

// replayAction is what a repeat does beside returning the stored command.
type replayAction uint8

const (
	replayReturn replayAction = iota
	replayDeliver
	replayRevert
)

// replayOf decides cases 2 to 6 of agent protocol E.8.
func replayOf(stored Command, now time.Time, window time.Duration) replayAction {
	switch stored.Status {
	case Pending:
		return replayDeliver
	case Dispatched:
		if stored.DispatchedAt.After(now.Add(-window)) {
			return replayReturn // in flight
		}
	case TimedOut:
	default:
		return replayReturn
	}
	if Redeliverable(stored.Action) {
		return replayRevert
	}
	return replayReturn
}
