package job

import (
	"context"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"

	"signalbox/appliance/archive/decide"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// tell adds to the story what a decision changed, and counts it once it is durable.
func (b *book) tell(was Job, out decide.Outcome, c cause) error {
	j := &b.row
	if was.State == j.State && was.Wait == j.Wait && was.Kept == j.Kept && was.Outcome == j.Outcome {
		return nil
	}
	e, from, to := b.e, was.State, j.State
	if from != to {
		b.tx.AfterCommit(func() { e.observer.Moved(from, to) })
	}
	detail := map[string]any{"from": stateText(was.State), "to": stateText(j.State)}
	if c.what != "" {
		detail["because"] = c.what
	}
	if out.Row != "" {
		detail["rule"] = string(out.Row)
	}
	if len(j.Error) > 0 && (j.State == stateWaiting || j.State == stateCancelling || j.State == stateManual || isTerminal(j.State)) {
		raw, err := errorJSON(j.Error)
		if err != nil {
			return err
		}
		detail["error"] = raw
	}
	event := EntryState
	switch {
	case j.State == stateWaiting:
		event = EntryWaiting
		detail["reason"], detail["returns_to"] = waitReason(j.Wait), stateText(j.Kept)
		if j.WaitDetail != "" {
			detail["detail"] = j.WaitDetail
		}
		if !j.RetryAt.IsZero() {
			detail["until"] = j.RetryAt
		}
	case j.State == stateCancelling:
		detail["outcome"] = stateText(j.Outcome)
	case j.State == stateManual:
		event = EntryManual
		if err := b.tellManual(detail, c); err != nil {
			return err
		}
	}
	return b.entry(event, 0, 0, detail)
}

// tellManual keeps what a person needs to decide: the cursors of both sides as they were when the job was held.
func (b *book) tellManual(detail map[string]any, c cause) error {
	sides := []map[string]any{}
	for i := range b.parts {
		p := &b.parts[i]
		side := map[string]any{"role": roleText(p.Role), "daemon": b.peers[p.DaemonNo].Name,
			"control": map[string]any{"revision": p.Revision, "sequence": p.Sequence, "state": stateText(p.State),
				"committed": p.Committed, "commit_evidence_sha256": p.CommitDigest, "assigned": p.Assigned}}
		if len(p.Reported) > 0 {
			raw, err := cursorJSON(p.Reported)
			if err != nil {
				return err
			}
			side["reported"], side["reported_at"] = raw, p.ReportedAt
		}
		sides = append(sides, side)
	}
	detail["participants"] = sides
	detail["job"] = map[string]any{"revision": b.row.Revision, "sequence": b.row.Sequence, "committed": b.row.Committed,
		"completed_steps": b.row.Position}
	if in := c.input; in != nil {
		what := map[string]any{"role": roleText(in.Role), "registration": in.Registration, "new_epoch": in.NewEpoch,
			"rolled_back": in.RolledBack}
		if in.K != nil {
			raw, err := protojson.Marshal(in.K.Message())
			if err != nil {
				return fault.Wrap(fault.Internal, err, "encode a cursor")
			}
			what["cursor"] = json.RawMessage(raw)
		}
		if r := in.Refused; r != nil {
			what["refused"] = map[string]any{"command": r.Kind.String(), "code": codeText(r.Code)}
		}
		detail["input"] = what
	}
	return nil
}

func errorJSON(raw []byte) (json.RawMessage, error) {
	m, err := parse(raw, &pb.ErrorDetail{})
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"code": codeText(m.GetCode()), "retryable": m.GetRetryable(), "message": m.GetMessage(),
		"details": m.GetDetails()})
}

func cursorJSON(raw []byte) (json.RawMessage, error) {
	m, err := parse(raw, &pb.JobCursor{})
	if err != nil {
		return nil, err
	}
	out, err := protojson.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a cursor")
	}
	return out, nil
}

// By is who makes a decision.
type By struct {
	Principal string // who a credential proves; empty: the appliance itself
	SourceIP  string
	UserAgent string
}

// record adds a decision to the audit log and to the story, in the transaction that carries it out.
func (b *book) record(action string, c cause) error {
	meta := map[string]any{"job_state": stateText(b.row.State), "title": b.row.Title}
	if c.reason != "" {
		meta["reason"] = c.reason
	}
	if c.grant != 0 {
		meta["attempts"] = c.grant
	}
	if c.what != "" {
		meta["because"] = c.what
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode audit metadata of %s", action)
	}
	target := b.row.ID.String()
	entry := audit.Entry{UserID: orNil(c.by.Principal), Action: "archive." + action, TargetType: "archive_job", TargetID: &target,
		Result: audit.Success, Outcome: audit.Allow, Metadata: raw, SourceIP: orNil(c.by.SourceIP), UserAgent: orNil(c.by.UserAgent)}
	if err := b.e.audit.Append(b.tx, entry); err != nil {
		return err
	}
	detail := map[string]any{"decision": action}
	if c.by.Principal != "" {
		detail["by"] = c.by.Principal
	}
	if c.reason != "" {
		detail["reason"] = c.reason
	}
	return b.entry(EntryDecision, 0, 0, detail)
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// update runs a write transaction of the engine.
func (e *Engine) update(ctx context.Context, op string, fn func(Tx) error) error {
	return e.st.Update(ctx, "archive."+op, fn)
}
