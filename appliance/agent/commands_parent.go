package agent

import (
	"bytes"

	"signalbox/appliance/audit"
	"signalbox/appliance/rawjson"
)

// InsertParent stores the parent of a bulk retry: a bulk_retry command without an agent, which is handed to nobody and whose
// deadline the sweep leaves alone. It is audited as any command is, and the dropped filter keys with it.
func (c *Commands) InsertParent(tx CommandTx, p Principal, cmd Command, rejectedKeys []string) (Command, error) {
	spec, _ := LookupAction("bulk_retry")
	cmd.Action, cmd.TargetType, cmd.Status, cmd.AgentNo = spec.Name, spec.TargetType, Pending, 0
	cmd.IssuedBy, cmd.SourceIP, cmd.IssuedAt = textOrNil(cutRunes(p.ID, 64)), textOrNil(p.SourceIP), tx.Now()
	var err error
	if cmd.No, err = tx.InsertCommand(cmd); err != nil {
		return cmd, err
	}
	if err := c.auditIssue(tx, p, &draft{rejectedKeys: rejectedKeys}, cmd); err != nil {
		return cmd, err
	}
	if err := c.record(tx, cmd, EventIssued, nil); err != nil {
		return cmd, err
	}
	tx.AfterCommit(func() { c.opts.Observer.CommandIssued(cmd.ProjectID, cmd.Action) })
	return cmd, nil
}

// PutParent stores a transition of a parent with its timeline row, and audits its end.
func (c *Commands) PutParent(tx CommandTx, before, after Command, event string, detail *string) error {
	if after.Status == Completed || after.Status == Failed {
		return c.finish(tx, before, after, DeliverySuccess, detail)
	}
	return c.put(tx, before, after, event, detail)
}

// SetResult replaces the result of a command that has ended, and nothing else.
func (c *Commands) SetResult(tx CommandTx, cmd Command, result []byte) error {
	if bytes.Equal(cmd.Result, result) {
		return nil
	}
	after := cmd
	after.Result = result
	_, err := tx.UpdateCommand(cmd, after)
	return err
}

// CancelIn gives up a command inside the caller's transaction; one that has ended stays as it is.
func (c *Commands) CancelIn(tx CommandTx, no int64, detail string) error {
	before, err := tx.CommandByNo(no)
	if err != nil {
		return err
	}
	next, err := before.Cancel(tx.Now())
	if err != nil {
		return nil // it has ended
	}
	if err := tx.FinishDeliveries(no, tx.Now(), DeliverySuperseded, &detail); err != nil {
		return err
	}
	return c.put(tx, before, next, EventCancelled, &detail)
}

// AuditRefusal records that a request for commands was refused, with what the entry tells beside.
func (c *Commands) AuditRefusal(tx CommandTx, p Principal, projectNo int64, action, targetType string, metadata []byte) error {
	if metadata == nil {
		metadata = []byte("{}")
	}
	return c.log.Append(tx, audit.Entry{ProjectNo: projectNo, UserID: textOrNil(p.ID), Action: action, TargetType: targetType,
		Result: audit.Failed, Outcome: audit.Deny, Metadata: metadata, SourceIP: textOrNil(p.SourceIP), UserAgent: textOrNil(p.UserAgent)})
}

// appendAgentID appends the id of a command's agent as JSON, null for the parent of a bulk retry.
func appendAgentID(dst []byte, cmd Command) []byte {
	if cmd.AgentNo == 0 {
		return append(dst, "null"...)
	}
	return rawjson.AppendString(dst, cmd.AgentID.String())
}
