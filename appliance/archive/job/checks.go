package job

import (
	"context"
	"encoding/json"
	"fmt"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// runChecks reserves what the job needs and has its preflight run, or has it wait for the job that is in the way.
func (b *book) runChecks() error {
	names, err := b.wanted()
	if err != nil {
		return err
	}
	holder, err := reserve(b.tx, b.row.No, names)
	if err != nil {
		return err
	}
	words := ""
	if holder != 0 {
		other, err := b.tx.JobByNo(holder)
		if err != nil {
			return err
		}
		words = fmt.Sprintf("job %s holds the same content or destination", other.ID)
	} else if words, err = b.full(); err != nil {
		return err
	}
	if words != "" {
		if holder == 0 {
			if err := b.tx.JobRelease(b.row.No); err != nil {
				return err
			}
		}
		detail := &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BUSY, Retryable: true, Message: words}
		return b.advance(decide.ChecksFailed{Code: detail.Code, Wait: waitReserved},
			cause{what: words, detail: detail})
	}
	if err := b.joinAll(); err != nil {
		return err
	}
	e, no := b.e, b.row.No
	b.tx.Hint(func() { e.work.add(task{jobNo: no, kind: taskCheck}) })
	return nil
}

// full tells, when a daemon that is to take part has as many jobs as it can list at a registration, which (3.3 row 4).
func (b *book) full() (string, error) {
	for _, role := range archive.Roles(b.row.Operation) {
		no := b.daemonOf(role)
		if b.at(no) != nil {
			continue
		}
		if err := b.know(no); err != nil {
			return "", err
		}
		peer := b.peers[no]
		limits, err := parse(peer.Limits, &pb.Limits{})
		if err != nil {
			return "", err
		}
		n, err := b.tx.JobCountAt(no)
		if err != nil {
			return "", err
		}
		if most := int64(limits.GetMaxActiveCursors()); most > 0 && int64(n) >= most {
			return fmt.Sprintf("daemon %s takes part in %d jobs, which is all that it can", peer.Name, n), nil
		}
	}
	return "", nil
}

func (b *book) daemonOf(role pb.ParticipantRole) int64 {
	if role == roleSource {
		return b.row.SourceNo
	}
	return b.row.TargetNo
}

// joinAll makes the daemons participants. A daemon knows nothing of a new job: it is decided.
func (b *book) joinAll() error {
	for _, role := range archive.Roles(b.row.Operation) {
		if b.part(role) != nil {
			continue
		}
		p, err := b.join(b.daemonOf(role), role)
		if err != nil {
			return err
		}
		p.Decided = b.peers[p.DaemonNo].Generation
		if err := b.tx.JobUpdateParticipant(p); err != nil {
			return err
		}
	}
	return b.refresh()
}

// check runs the preflight of a job in PREFLIGHT and moves the job by its outcome. Nothing happens to a job that has moved
// meanwhile.
func (e *Engine) check(ctx context.Context, jobNo int64) error {
	var c Check
	ready := false
	err := e.st.View(ctx, func(tx ReadTx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.State != statePreflight {
			return err
		}
		ready = true
		c = Check{JobNo: row.No, JobID: row.ID}
		if err := json.Unmarshal([]byte(row.Request), &c.Request); err != nil {
			return fault.Wrap(fault.Internal, err, "the request of job %s cannot be read", row.ID)
		}
		preview, ok, err := tx.JobPreviewOf(row.No)
		if err != nil {
			return err
		}
		if ok {
			c.PreviewNo, c.PreviewID = preview.No, preview.ID
		}
		if row.ParentNo != 0 {
			c.Parent, c.Commit, err = parentOf(tx, row.ParentNo)
		}
		return err
	})
	if err != nil || !ready {
		return err
	}
	out, failed := e.preflight.Check(ctx, c)
	if ctx.Err() != nil {
		return nil // the process ends; the next one checks again
	}
	if failed == nil && (out.Definition == nil) == (out.Error == nil) {
		failed = fault.New(fault.Internal, "a preflight must end with a definition or an error")
	}
	if failed != nil {
		e.observer.Failed("preflight", failed)
		out = Outcome{Wait: waitBackoff, Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true,
			Message: "the preflight could not be made: " + fault.Message(failed)}}
	}
	return e.checked(ctx, jobNo, out)
}

// checked moves a job by the outcome of its preflight.
func (e *Engine) checked(ctx context.Context, jobNo int64, out Outcome) error {
	return e.update(ctx, "job_checked", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.State != statePreflight {
			return err
		}
		b, err := e.load(tx, row)
		if err != nil {
			return err
		}
		if out.Definition != nil {
			def := withIdentity(out.Definition, row.ID, tx.Now())
			if words := b.mismatch(def); words != "" {
				return fault.New(fault.Internal, "the definition of job %s: %s", row.ID, words)
			}
			b.view.Failures = 0 // they were of the checks: the first step has its own
			err = b.advance(decide.ChecksPassed{Definition: archive.DefinitionDigest(def)},
				cause{what: "the preflight passed", def: def})
		} else {
			wait := out.Wait
			if !out.Error.GetRetryable() {
				wait = waitNone
			} else if wait == waitNone {
				wait = waitBackoff
			}
			b.view.Failures++ // only for the growing delay: a preflight is tried again as long as it takes
			detail := out.Error
			err = b.advance(decide.ChecksFailed{Code: detail.GetCode(), Wait: wait},
				cause{what: "the preflight failed: " + detail.GetMessage(), detail: detail})
		}
		if err == nil {
			b.done()
		}
		return err
	})
}

// mismatch tells what of a definition is not of this job.
func (b *book) mismatch(def *pb.JobDefinition) string {
	source, target := b.peers[b.row.SourceNo].ID.String(), b.peers[b.row.TargetNo].ID.String()
	switch {
	case def.GetOperation() != b.row.Operation:
		return "it is of another operation"
	case def.GetSource().GetClientId() != source:
		return "its source is another daemon"
	case def.GetTargetClientId() != target:
		return "its target is another daemon"
	case def.GetPolicies() == nil:
		return "it has no policies"
	}
	return ""
}

// room looks at the storage for a job that waits for space, and lets it go on when there is some.
func (e *Engine) room(ctx context.Context, jobNo int64) error {
	var r RoomRequest
	ready := false
	err := e.st.View(ctx, func(tx ReadTx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.State != stateWaiting || row.Wait != waitSpace || row.Definition == nil {
			return err
		}
		def, err := parse(row.Definition, &pb.JobDefinition{})
		if err != nil {
			return err
		}
		r = RoomRequest{JobNo: row.No, Step: archive.StepAt(row.Operation, row.Position), Definition: def}
		if len(row.Error) > 0 {
			detail, err := parse(row.Error, &pb.ErrorDetail{})
			if err != nil {
				return err
			}
			r.Need = number(detail.GetDetails()["needed_bytes"])
		}
		no := row.TargetNo
		if row.RouteNo != 0 || r.Step != pb.JobStep_JOB_STEP_TRANSFER {
			kind := pb.RouteKind_ROUTE_KIND_UNSPECIFIED
			if row.RouteNo != 0 {
				if kind, err = tx.JobRouteKind(row.RouteNo); err != nil {
					return err
				}
			}
			if archive.Executor(r.Step, kind) == roleSource && r.Step != pb.JobStep_JOB_STEP_TRANSFER {
				no = row.SourceNo
			}
		}
		peer, err := tx.JobPeer(no)
		r.Daemon, ready = peer.ID, true
		return err
	})
	if err != nil || !ready {
		return err
	}
	ok, err := e.storage.Room(ctx, r)
	if err != nil || !ok || ctx.Err() != nil {
		return err
	}
	return e.clear(ctx, jobNo, waitSpace, "there is room again")
}
