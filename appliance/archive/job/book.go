package job

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// book is one job inside one write transaction: its rows, and the view of them that decisions are made from. Whatever a
// method writes is in the rows and in the view when it returns.
type book struct {
	e     *Engine
	tx    Tx // nil in a read transaction
	rtx   ReadTx
	row   Job
	parts []Participant
	cmds  []command.Row
	peers map[int64]Peer
	def   *pb.JobDefinition // nil before ASSIGNING and in a placeholder
	hold  time.Time         // 4.6; zero: none
	view  decide.Job
	stale bool // the view is of before the last change: see current

	ends    []func() error // to be done when the rows are written, in order: further decisions of the same transaction
	touched bool           // the job's key is woken after the commit
	wakes   map[int64]bool // daemons to be woken
}

// load reads a job for a decision.
func (e *Engine) load(tx Tx, row Job) (*book, error) {
	b, err := e.read(tx, row)
	if err == nil {
		b.tx = tx
	}
	return b, err
}

// read is load for a read transaction.
func (e *Engine) read(tx ReadTx, row Job) (*book, error) {
	b := &book{e: e, rtx: tx, row: row, peers: map[int64]Peer{}, wakes: map[int64]bool{}}
	var err error
	if b.parts, err = tx.JobParticipants(row.No); err != nil {
		return nil, err
	}
	for _, p := range b.parts {
		if err := b.know(p.DaemonNo); err != nil {
			return nil, err
		}
	}
	for _, no := range []int64{row.SourceNo, row.TargetNo} {
		if no != 0 {
			if err := b.know(no); err != nil {
				return nil, err
			}
		}
	}
	if b.hold, err = tx.JobHold(); err != nil {
		return nil, err
	}
	if row.Definition != nil {
		if b.def, err = e.defs.get(row.Digest, row.Definition); err != nil {
			return nil, err
		}
	}
	return b, b.refresh()
}

func (b *book) know(daemonNo int64) error {
	if _, ok := b.peers[daemonNo]; ok {
		return nil
	}
	p, err := b.rtx.JobPeer(daemonNo)
	if err == nil {
		b.peers[daemonNo] = p
	}
	return err
}

// part returns the participant of a role, nil when there is none.
func (b *book) part(role pb.ParticipantRole) *Participant {
	for i := range b.parts {
		if b.parts[i].Role == role {
			return &b.parts[i]
		}
	}
	return nil
}

// at returns the participant that a daemon is, nil when it is none.
func (b *book) at(daemonNo int64) *Participant {
	for i := range b.parts {
		if b.parts[i].DaemonNo == daemonNo {
			return &b.parts[i]
		}
	}
	return nil
}

// cmd returns a command row of the job.
func (b *book) cmd(id uuid.UUID) (command.Row, error) {
	for _, c := range b.cmds {
		if c.ID == id {
			return c, nil
		}
	}
	return command.Row{}, fault.New(fault.Internal, "job %s has no command %s", b.row.ID, id)
}

// current makes the view one of the rows as they are now, where it is not.
func (b *book) current() error {
	if !b.stale {
		return nil
	}
	return b.refresh()
}

// refresh reads the command rows and makes the view anew.
func (b *book) refresh() (err error) {
	if b.row.No != 0 {
		if b.cmds, err = b.e.commands.OfJob(b.rtx, b.row.No); err != nil {
			return err
		}
	}
	j, v := &b.row, decide.Job{}
	v.ID, v.Operation, v.Placeholder, v.Definition = j.ID, j.Operation, j.Placeholder, j.Digest
	v.Cleanup = b.def.GetPolicies().GetCleanup()
	v.State, v.Kept, v.Wait, v.Outcome = j.State, j.Kept, j.Wait, j.Outcome
	if len(j.Error) > 0 {
		detail, err := parse(j.Error, &pb.ErrorDetail{})
		if err != nil {
			return err
		}
		v.Code = detail.GetCode()
	}
	v.Position = decide.Position{Revision: uint64(j.Revision), Sequence: uint64(j.Sequence)}
	v.Completed, v.StepAttempt, v.Failures, v.Allowance = j.Position, uint32(j.Attempt), uint32(j.Failures), uint32(j.Allowance)
	v.Committed, v.Undone, v.EndedByPerson = j.Committed, j.Undone, j.ByPerson
	v.OldCopy = !b.hold.IsZero()
	if v.Carrier, err = b.carrier(); err != nil {
		return err
	}
	if err := b.lookUp(&v); err != nil {
		return err
	}
	for i := range b.parts {
		p := &b.parts[i]
		if p.Role != roleSource && p.Role != roleTarget {
			return fault.New(fault.Internal, "a participant has no role")
		}
		if v.Parties[p.Role-1], err = b.party(p); err != nil {
			return err
		}
	}
	for _, c := range b.cmds {
		d, err := b.decideCommand(c)
		if err != nil {
			return err
		}
		v.Commands = append(v.Commands, d)
	}
	b.view, b.stale = v, false
	return nil
}

func (b *book) carrier() (pb.ParticipantRole, error) {
	if b.row.RouteNo == 0 {
		return roleNone, nil
	}
	kind, err := b.rtx.JobRouteKind(b.row.RouteNo)
	return archive.Carrier(kind), err
}

// lookUp sets what does not follow from the rows of the job: whether its route is ready, and what depends on time, which is
// of control's own clock.
func (b *book) lookUp(v *decide.Job) error {
	if s := v.Step(); (s == pb.JobStep_JOB_STEP_STAGE || s == pb.JobStep_JOB_STEP_TRANSFER) && b.row.RouteNo != 0 && b.def != nil && !isTerminal(b.row.State) {
		ready, _, err := b.e.routes.Ready(b.rtx, b.row.RouteNo)
		if v.RouteDown = !ready; err != nil {
			return err
		}
	}
	if b.row.Operation != pb.JobOperation_JOB_OPERATION_EVICT || b.def == nil {
		return nil
	}
	now := b.rtx.Now()
	v.RetentionOver = !b.row.RetainUntil.IsZero() && !now.Before(b.row.RetainUntil)
	verified, ok, err := b.rtx.JobProof(b.row.No, int32(pb.JobStep_JOB_STEP_VERIFY))
	age := now.Sub(verified.At)
	v.VerifyFresh = ok && age >= 0 && age < verifyAge(b.def) // of the future: by a clock that was set back since
	return err
}

// verifyAge is how long the verification before a RELEASE counts.
func verifyAge(def *pb.JobDefinition) time.Duration {
	if d := def.GetEviction().GetMaxVerifyAge(); d != nil {
		return d.AsDuration()
	}
	return archive.DefaultMaxVerifyAge
}

// retention is how long released content stays.
func retention(def *pb.JobDefinition) time.Duration {
	if d := def.GetPolicies().GetTrashRetention(); d != nil {
		return d.AsDuration()
	}
	return archive.DefaultTrashRetention
}

func (b *book) party(p *Participant) (decide.Participant, error) {
	peer := b.peers[p.DaemonNo]
	out := decide.Participant{Role: p.Role, Online: peer.Online,
		Position: decide.Position{Revision: uint64(p.Revision), Sequence: uint64(p.Sequence)}, State: p.State,
		Committed: p.Committed, CommitEvidence: p.CommitDigest, Assigned: p.Assigned,
		Decided: p.Decided != 0 && p.Decided == peer.Generation, Absent: p.Absent, WoundDown: p.WoundDown, Closed: p.Closed,
		Expecting: p.Expecting, Resuming: p.Resuming, Registered: b.hold.IsZero() || !peer.RegisteredAt.Before(b.hold)}
	if len(p.Reported) > 0 {
		c, err := parse(p.Reported, &pb.JobCursor{})
		if err != nil {
			return out, err
		}
		out.Reported, err = cursorOf(c)
		return out, err
	}
	return out, nil
}

func (b *book) decideCommand(c command.Row) (decide.Command, error) {
	out := decide.Command{ID: c.ID, Kind: c.Kind, Step: c.Step, Attempt: c.StepAttempt, Status: decide.Status(c.State),
		EverSent: c.EverSent(), Lease: c.Lease, Payload: c.SHA256, Code: c.Ack.GetError().GetCode(),
		Expected: decide.Position{Revision: c.ExpectedRevision, Sequence: c.ExpectedSequence}}
	if p := b.at(c.Daemon.No); p != nil {
		out.Role = p.Role
	}
	if c.Kind != archive.ReconcileJob && c.Kind != archive.CloseJob {
		return out, nil
	}
	m, err := c.Command()
	if err != nil {
		return out, err
	}
	if r := m.GetReconcileJob(); r != nil {
		out.Disposition, out.Final = r.GetDisposition(), r.GetAuthoritative().GetState()
		out.Position = decide.Position{Revision: r.GetAuthoritative().GetRevision(),
			Sequence: r.GetAuthoritative().GetLastEventSequence()}
		for _, id := range r.GetRetireCommandIds() {
			out.Retires = append(out.Retires, idOf(id))
		}
	} else {
		out.Final = m.GetCloseJob().GetFinalState()
	}
	return out, nil
}

// cursorOf reads a cursor that was validated.
func cursorOf(m *pb.JobCursor) (*decide.Cursor, error) {
	c, err := decide.ParseCursor(m)
	return &c, err
}

// entry adds a line to the job's story.
func (b *book) entry(event string, daemonNo, commandNo int64, detail map[string]any) error {
	raw, err := json.Marshal(detail)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode an entry of a job's story")
	}
	if detail == nil {
		raw = []byte(`{}`)
	}
	b.touched = true
	return b.tx.JobInsertEntry(&Entry{JobNo: b.row.No, DaemonNo: daemonNo, CommandNo: commandNo, At: b.tx.Now(), Event: event,
		State: b.row.State, Detail: raw})
}

// writeRows stores the job and those participants that differ from before.
func (b *book) writeRows(before []Participant) error {
	if err := b.tx.JobUpdate(&b.row); err != nil {
		return err
	}
	for i := range b.parts {
		p := &b.parts[i]
		if at := slices.IndexFunc(before, func(q Participant) bool { return q.DaemonNo == p.DaemonNo && q.Role == p.Role }); at >= 0 &&
			reflect.DeepEqual(before[at], *p) {
			continue
		}
		if err := b.tx.JobUpdateParticipant(p); err != nil {
			return err
		}
	}
	b.touched = true
	return nil
}

// done makes the hints that follow the commit.
func (b *book) done() {
	e, no, touched := b.e, b.row.No, b.touched
	wakes, timed := b.wakes, !b.row.RetryAt.IsZero()
	if !touched && len(wakes) == 0 {
		return
	}
	b.tx.Hint(func() {
		if timed {
			e.timer.poke()
		}
		if touched {
			e.hub.Wake(archive.JobKey(no))
			e.hub.Wake(archive.JobsKey{})
		}
		for daemonNo := range wakes {
			e.hub.Wake(archive.DaemonKey(daemonNo))
		}
	})
}
