package job

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
)

// Detail is everything that control knows of one job.
type Detail struct {
	Listed
	Definition   *pb.JobDefinition // nil before ASSIGNING and in a placeholder
	Error        *pb.ErrorDetail   // why it failed, waits or is held; nil: nothing
	Progress     *pb.Progress      // nil before the first
	Preview      uuid.UUID         // uuid.Nil: none
	Participants []Side
	Steps        []Step
	Commands     []Sent // oldest first
	Reservations []Reservation
	Alerts       []registry.Alert // open ones
	Explanation  Explanation
}

// Side is one participant.
type Side struct {
	Participant
	Peer     Peer
	Reported *pb.JobCursor // what the daemon said last; nil: it does not have the job, or said nothing yet
}

// StepState is how far a step is.
type StepState string

// The states of a step.
const (
	StepDone    StepState = "done"
	StepActive  StepState = "active"
	StepPending StepState = "pending"
)

// Step is one step of the plan.
type Step struct {
	Step     pb.JobStep
	Weight   uint32 // ‰ of the job
	State    StepState
	Role     pb.ParticipantRole // who executes it
	Daemon   string             // its name
	Attempts int                // ExecuteStep commands so far
	Evidence *Proven            // nil: not completed
}

// Proven is the evidence of a completed step.
type Proven struct {
	Proof
	Message *pb.StepEvidence
}

// Sent is one command with its attempts.
type Sent struct {
	command.Row
	Deliveries []command.Delivery
	Held       string // why it is not sent now; empty: it is, or nothing is to be sent
}

// Show returns one job.
func (e *Engine) Show(ctx context.Context, id uuid.UUID) (d Detail, err error) {
	err = e.st.View(ctx, func(tx ReadTx) error {
		row, err := find(tx, id)
		if err != nil {
			return err
		}
		d, err = e.detail(tx, row)
		return err
	})
	if err != nil {
		return d, err
	}
	d.Alerts, err = e.daemons.Alerts(ctx, registry.AlertFilter{JobNo: d.No})
	return d, err
}

func (e *Engine) detail(tx ReadTx, row Job) (d Detail, err error) {
	if d.Listed, err = listed(tx, row); err != nil {
		return d, err
	}
	b, err := e.read(tx, row)
	if err != nil {
		return d, err
	}
	d.Definition = b.def
	if len(row.Error) > 0 && (row.State >= stateWaiting || row.Failures > 0) {
		// A job that goes on shows its last failure only while that counts against the step.
		if d.Error, err = parse(row.Error, &pb.ErrorDetail{}); err != nil {
			return d, err
		}
	}
	if len(row.Progress) > 0 {
		if d.Progress, err = parse(row.Progress, &pb.Progress{}); err != nil {
			return d, err
		}
	}
	preview, ok, err := tx.JobPreviewOf(row.No)
	if err != nil {
		return d, err
	}
	if ok {
		d.Preview = preview.ID
	}
	for _, p := range b.parts {
		s := Side{Participant: p, Peer: b.peers[p.DaemonNo]}
		if len(p.Reported) > 0 {
			if s.Reported, err = parse(p.Reported, &pb.JobCursor{}); err != nil {
				return d, err
			}
		}
		d.Participants = append(d.Participants, s)
	}
	if d.Steps, err = b.steps(); err != nil {
		return d, err
	}
	for _, c := range b.cmds {
		s := Sent{Row: c}
		if s.Deliveries, err = tx.DaemonDeliveries(c.No); err != nil {
			return d, err
		}
		if c.State == command.Pending || c.State == command.Sent {
			if s.Held, err = e.held(tx, c); err != nil {
				return d, err
			}
		}
		d.Commands = append(d.Commands, s)
	}
	if d.Reservations, err = tx.JobReservations(row.No); err != nil {
		return d, err
	}
	d.Explanation, err = b.explain(d)
	return d, err
}

// steps lists the plan with what has become of it.
func (b *book) steps() ([]Step, error) {
	proofs, err := b.rtx.JobProofs(b.row.No)
	if err != nil {
		return nil, err
	}
	var out []Step
	for i, planned := range archive.Plan(b.row.Operation) {
		s := Step{Step: planned.Step, Weight: planned.Weight, State: StepPending, Role: b.executor(planned.Step)}
		switch {
		case i < b.row.Position:
			s.State = StepDone
		case i == b.row.Position && b.row.Definition != nil && !isTerminal(b.row.State):
			s.State = StepActive
		}
		if no := b.daemonOf(s.Role); no != 0 && s.Role != roleNone {
			s.Daemon = b.peers[no].Name
		}
		for _, c := range b.cmds {
			if c.Kind == archive.ExecuteStep && c.Step == s.Step {
				s.Attempts++
			}
		}
		for _, p := range proofs {
			if p.Step == s.Step {
				m, err := parse(p.Evidence, &pb.StepEvidence{})
				if err != nil {
					return nil, err
				}
				s.Evidence = &Proven{Proof: p, Message: m}
			}
		}
		out = append(out, s)
	}
	return out, nil
}

func (b *book) executor(step pb.JobStep) pb.ParticipantRole {
	if step == pb.JobStep_JOB_STEP_TRANSFER {
		return b.view.Carrier
	}
	return archive.Executor(step, 0)
}

// Explanation is a job in plain words.
type Explanation struct {
	Summary    string   // one sentence
	Sentences  []string // reasons, most important first
	WaitsFor   string   // who or what must act next: "daemon nas", "time", "a person", "nothing"
	NextAction string   // what an operator can do, or what happens by itself
}
