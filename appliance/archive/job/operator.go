package job

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// Bounds of what an operator says.
const (
	maxReason   = 512 // bytes
	maxAttempts = 100
)

// Decision is how a person ends MANUAL.
type Decision string

// The decisions.
const (
	Resume   Decision = "resume"   // go on from control's cursor
	Complete Decision = "complete" // accept the job as completed
	Abandon  Decision = "abandon"  // end it as failed; files stay
)

// validate checks what the request says by itself.
func (r Request) validate() error {
	switch r.Operation {
	case pb.JobOperation_JOB_OPERATION_TRANSFER, pb.JobOperation_JOB_OPERATION_ADOPT, pb.JobOperation_JOB_OPERATION_EVICT:
	default:
		return fault.Field("operation", "must be transfer, adopt or evict")
	}
	transfer, evict := r.Operation == pb.JobOperation_JOB_OPERATION_TRANSFER, r.Operation == pb.JobOperation_JOB_OPERATION_EVICT
	switch {
	case r.Source == uuid.Nil:
		return fault.Field("source", "is required")
	case r.Target == uuid.Nil:
		return fault.Field("target", "is required")
	case r.Operation == pb.JobOperation_JOB_OPERATION_ADOPT && r.Source != r.Target:
		return fault.Field("source", "must be the target itself: ADOPT moves nothing between daemons")
	case r.Operation != pb.JobOperation_JOB_OPERATION_ADOPT && r.Source == r.Target:
		return fault.Field("target", "must be another daemon than the source")
	case r.ResourceID == "" || len(r.ResourceID) > 160:
		return fault.Field("resource_id", "must have 1 to 160 bytes")
	case transfer && r.Route == uuid.Nil:
		return fault.Field("route", "is required for TRANSFER")
	case !transfer && r.Route != uuid.Nil:
		return fault.Field("route", "is for TRANSFER only")
	case !evict && r.Destination.GetContentRootId() == "":
		return fault.Field("destination.content_root_id", "is required")
	case evict && r.Destination != nil:
		return fault.Field("destination", "is not for EVICT")
	case evict && r.Parent == uuid.Nil:
		return fault.Field("parent_job", "is required for EVICT: the completed job that made the copy which stays")
	case !evict && r.Parent != uuid.Nil:
		return fault.Field("parent_job", "is for EVICT only")
	case r.EvictAfter && !transfer:
		return fault.Field("evict_after", "is for TRANSFER only")
	case r.MaxVerifyAge < 0:
		return fault.Field("max_verify_age", "must not be negative")
	}
	return nil
}

// StartOptions change what a preview asked for.
type StartOptions struct {
	EvictAfter bool // make the TRANSFER a move
}

// Start makes a job of a preview that passed and begins it. Conflict: the preview is not done, did not pass, or was
// started before. The job reserves its content and destination, or waits for the job that has them.
func (e *Engine) Start(ctx context.Context, previewID uuid.UUID, o StartOptions, by By) (id uuid.UUID, err error) {
	err = e.update(ctx, "job_start", func(tx Tx) error {
		p, ok, err := tx.JobPreview(previewID)
		switch {
		case err != nil:
			return err
		case !ok:
			return fault.New(fault.NotFound, "no preview %s", previewID)
		case p.JobNo != 0:
			row, err := tx.JobByNo(p.JobNo)
			if err != nil {
				return err
			}
			return fault.New(fault.Conflict, "the preview was started before, as job %s", row.ID)
		case p.State == "running":
			return fault.New(fault.Conflict, "the preview is not done")
		case p.State != "passed" || len(p.Draft) == 0:
			return fault.New(fault.Conflict, "the preview did not pass")
		}
		n := newJob{by: by.Principal}
		if err := json.Unmarshal([]byte(p.Request), &n.request); err != nil {
			return fault.Wrap(fault.Internal, err, "the request of preview %s cannot be read", previewID)
		}
		if o.EvictAfter {
			n.request.EvictAfter = true
		}
		if err := n.request.validate(); err != nil {
			return err
		}
		draft, err := parse(p.Draft, &pb.JobDefinition{})
		if err != nil {
			return err
		}
		if n.title = draft.GetSource().GetIdentity().GetDisplayName(); n.title == "" {
			n.title = draft.GetSource().GetResourceId()
		}
		if err := n.find(tx); err != nil {
			return err
		}
		b, err := e.create(tx, n)
		if err != nil {
			return err
		}
		if err := tx.JobTakePreview(p.No, b.row.No); err != nil {
			return err
		}
		id = b.row.ID
		if err := b.advance(decide.OperatorStart{}, cause{what: "started", by: by}); err != nil {
			return err
		}
		b.done()
		return nil
	})
	return id, err
}

// newJob is a job to be made.
type newJob struct {
	request                      Request
	sourceNo, targetNo, parentNo int64
	routeNo                      int64
	title, by                    string
}

// find looks the names of a request up.
func (n *newJob) find(tx ReadTx) error {
	for _, d := range []struct {
		field string
		id    uuid.UUID
		no    *int64
	}{{"source", n.request.Source, &n.sourceNo}, {"target", n.request.Target, &n.targetNo}} {
		p, ok, err := tx.JobPeerByID(d.id)
		if err != nil {
			return err
		}
		if !ok {
			return fault.Field(d.field, "no daemon %s", d.id)
		}
		*d.no = p.No
	}
	if n.request.Route != uuid.Nil {
		no, ok, err := tx.JobRouteNo(n.request.Route)
		if err != nil {
			return err
		}
		if !ok {
			return fault.Field("route", "no route %s", n.request.Route)
		}
		n.routeNo = no
	}
	if n.request.Parent != uuid.Nil {
		parent, err := find(tx, n.request.Parent)
		if err != nil {
			return err
		}
		if parent.State != stateCompleted || parent.Operation == pb.JobOperation_JOB_OPERATION_EVICT {
			return fault.Field("parent_job", "must be a completed TRANSFER or ADOPT; job %s is %s", parent.ID,
				stateText(parent.State))
		}
		n.parentNo = parent.No
	}
	return nil
}

// create inserts a PENDING job.
func (e *Engine) create(tx Tx, n newJob) (*book, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a job id")
	}
	raw, err := json.Marshal(n.request)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a request")
	}
	row := Job{ID: id, Operation: n.request.Operation, ParentNo: n.parentNo, SourceNo: n.sourceNo, TargetNo: n.targetNo,
		RouteNo: n.routeNo, Title: archive.Clip(n.title, 512), Request: string(raw), State: statePending, Allowance: archive.StepAttempts,
		CreatedBy: n.by, CreatedAt: tx.Now()}
	if err := tx.JobInsert(&row); err != nil {
		return nil, err
	}
	b, err := e.load(tx, row)
	if err != nil {
		return nil, err
	}
	tx.AfterCommit(func() { e.observer.Moved(0, statePending) })
	return b, b.entry(EntryCreated, 0, 0, map[string]any{"operation": operationText(row.Operation), "title": row.Title,
		"by": n.by})
}

// Cancel ends a job that is not committed: nothing that it made stays, and the source is as it was. The job is CANCELLED
// when every daemon has undone its part. Conflict names the state that does not allow it.
func (e *Engine) Cancel(ctx context.Context, id uuid.UUID, reason string, by By) error {
	if len(reason) > maxReason {
		return fault.Field("reason", "must have at most %d bytes", maxReason)
	}
	return e.decision(ctx, id, decide.OperatorCancel{}, cause{what: "cancelled by an operator", reason: reason, by: by})
}

// Retry grants attempts: of the step, to a job that has used up its own (WAITING, OPERATOR_HOLD), or of sends, to one whose
// command got no answer (WAITING, COMMAND_UNACKED). 0 attempts means as many as a new job has. A job that is to be tried again
// later (NO_SPACE, RETRY_BACKOFF, BACKEND_UNAVAILABLE) is tried at once; what it has of attempts stays.
func (e *Engine) Retry(ctx context.Context, id uuid.UUID, attempts int, by By) error {
	if attempts == 0 {
		attempts = archive.StepAttempts
	}
	if attempts < 0 || attempts > maxAttempts {
		return fault.Field("attempts", "must be 1 to %d", maxAttempts)
	}
	return e.decision(ctx, id, decide.OperatorGrant{Attempts: uint32(attempts)}, cause{what: "an operator has it tried again",
		grant: uint32(attempts), by: by})
}

// Resolve ends MANUAL by a decision of a person. The reason is kept in the audit log and is required: nobody else will know
// why.
func (e *Engine) Resolve(ctx context.Context, id uuid.UUID, d Decision, reason string, by By) error {
	switch {
	case reason == "":
		return fault.Field("reason", "is required")
	case len(reason) > maxReason:
		return fault.Field("reason", "must have at most %d bytes", maxReason)
	}
	var ev decide.Event
	switch d {
	case Resume:
		ev = decide.OperatorResume{}
	case Complete:
		ev = decide.OperatorAccept{}
	case Abandon:
		ev = decide.OperatorAbandon{}
	default:
		return fault.Field("decision", "must be resume, complete or abandon")
	}
	return e.decision(ctx, id, ev, cause{what: fmt.Sprintf("an operator decided: %s", d), reason: reason, by: by})
}

// decision carries a decision of a person out. What the job's state does not take is refused and changes nothing.
func (e *Engine) decision(ctx context.Context, id uuid.UUID, ev decide.Event, c cause) error {
	return e.update(ctx, "job_decision", func(tx Tx) error {
		row, err := find(tx, id)
		if err != nil {
			return err
		}
		b, err := e.load(tx, row)
		if err != nil {
			return err
		}
		if err := b.advance(ev, c); err != nil {
			return err
		}
		if row.State == stateManual && b.row.State != stateManual {
			if err := b.clearAlerts(); err != nil {
				return err
			}
		}
		b.done()
		return nil
	})
}

// alertsOfEnd closes the alerts of a job that has just ended: nobody has anything more to do about it. Those that its end
// itself is a reason for are raised after. A move whose source copy could not be given up is one until another eviction has.
func (b *book) alertsOfEnd(was Job) error {
	j := &b.row
	if !isTerminal(j.State) || isTerminal(was.State) || j.Placeholder {
		return nil
	}
	if err := b.clearAlerts(); err != nil {
		return err
	}
	if j.Operation != pb.JobOperation_JOB_OPERATION_EVICT || j.ParentNo == 0 || j.ByPerson && j.State != stateCompleted {
		return nil
	}
	if j.State == stateCompleted {
		return b.e.daemons.ClearAlert(b.tx, archive.AlertMoveUnfinished, j.SourceNo, j.ParentNo)
	}
	parent, err := b.tx.JobByNo(j.ParentNo)
	if err != nil || j.State != stateFailed {
		return err
	}
	if !parent.Asked().EvictAfter {
		return nil // a person asked for this one, and sees how it ends
	}
	why := ""
	if len(j.Error) > 0 {
		detail, err := parse(j.Error, &pb.ErrorDetail{})
		if err != nil {
			return err
		}
		why = ": " + strings.TrimSuffix(detail.GetMessage(), ".")
	}
	return b.e.daemons.RaiseAlert(b.tx, archive.AlertMoveUnfinished, j.SourceNo, j.ParentNo, fmt.Sprintf(
		"%s is copied and not given up: job %s failed%s. Put that right, then `signalbox jobs evict %s`", j.Title, j.ID, why, parent.ID))
}

// clearAlerts closes what the job's hold had raised: a person has looked at it.
func (b *book) clearAlerts() error {
	for _, kind := range []archive.AlertKind{archive.AlertManual, archive.AlertCommitConflict, archive.AlertStateLost,
		archive.AlertCommandConflict, archive.AlertPlaceholder, archive.AlertUndecided} {
		for no := range b.peers {
			if err := b.e.daemons.ClearAlert(b.tx, kind, no, b.row.No); err != nil {
				return err
			}
		}
		if err := b.e.daemons.ClearAlert(b.tx, kind, 0, b.row.No); err != nil {
			return err
		}
	}
	return nil
}
