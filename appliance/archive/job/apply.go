package job

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// cause is what a decision came from: what its actions need beside it.
type cause struct {
	what   string          // one phrase for the story
	detail *pb.ErrorDetail // the error that came with it, if any
	event  *pb.JobEvent    // the accepted event
	from   command.Row     // the command that the event or acknowledgement belongs to
	input  *decide.Input   // of a decision of 4.2
	k      *decide.Cursor  // that came with the message
	def    *pb.JobDefinition
	by     By     // for decisions of a person
	reason string // a person's words
	grant  uint32
}

// apply writes an outcome: the rows, then its actions in their order, then what they ask to be decided at once.
func (b *book) apply(out decide.Outcome, c cause) error {
	before, was := slices.Clone(b.parts), b.row
	for i := range before {
		before[i].Reported = slices.Clone(before[i].Reported)
	}
	if err := b.take(out.Job, c); err != nil {
		return err
	}
	if has[decide.MakePlaceholder](out.Actions) {
		if err := b.makePlaceholder(); err != nil {
			return err
		}
		before = nil
	}
	if err := b.timeOf(was, c); err != nil {
		return err
	}
	if err := b.alertsOfEnd(was); err != nil {
		return err
	}
	if has[decide.StoreDefinition](out.Actions) {
		if err := b.storeDefinition(c.def); err != nil {
			return err
		}
	}
	if err := b.tell(was, out, c); err != nil {
		return err
	}
	for _, a := range out.Actions {
		if err := b.act(a, c); err != nil {
			return err
		}
	}
	if err := b.writeRows(before); err != nil {
		return err
	}
	b.stale = true
	ends := b.ends
	b.ends = nil
	for _, fn := range ends {
		if err := b.current(); err != nil {
			return err
		}
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

func has[A decide.Action](actions []decide.Action) bool {
	return slices.ContainsFunc(actions, func(a decide.Action) bool { _, ok := a.(A); return ok })
}

// take copies the decided job into the rows.
func (b *book) take(v decide.Job, c cause) error {
	j := &b.row
	j.Operation, j.Placeholder, j.Digest = v.Operation, v.Placeholder, v.Definition
	j.State, j.Kept, j.Wait, j.Outcome = v.State, v.Kept, v.Wait, v.Outcome
	j.Revision, j.Sequence = int64(v.Revision), int64(v.Sequence)
	j.Position, j.Attempt, j.Failures, j.Allowance = v.Completed, int(v.StepAttempt), int(v.Failures), int(v.Allowance)
	j.Committed, j.Undone, j.ByPerson = v.Committed, v.Undone, v.EndedByPerson
	switch {
	case v.Code == codeNone:
		j.Error = nil
	case v.Code != b.view.Code || len(j.Error) == 0 || c.detail.GetCode() == v.Code:
		detail := c.detail
		if detail.GetCode() != v.Code {
			detail = &pb.ErrorDetail{Code: v.Code, Retryable: archive.Retryable(v.Code), Message: explainCode(v.Code)}
		}
		raw, err := marshal(detail)
		if err != nil {
			return err
		}
		j.Error = raw
	}
	for _, role := range roles {
		d := v.Party(role)
		p := b.part(role)
		if d == nil || p == nil {
			continue
		}
		p.Revision, p.Sequence = int64(d.Revision), int64(d.Sequence)
		p.State, p.Committed, p.CommitDigest = d.State, d.Committed, d.CommitEvidence
		p.Assigned, p.Absent, p.WoundDown, p.Closed, p.Expecting = d.Assigned, d.Absent, d.WoundDown, d.Closed, d.Expecting
		p.Resuming, p.Decided = d.Resuming, 0
		if d.Decided {
			p.Decided = b.peers[p.DaemonNo].Generation
		}
		if c.event != nil && p.DaemonNo == c.from.Daemon.No { // what its acknowledgement will tell
			p.ConfirmedRevision, p.ConfirmedSequence = j.Revision, j.Sequence
		}
		if err := p.report(d.Reported, b.tx.Now()); err != nil {
			return err
		}
	}
	return nil
}

// report stores the cursor that the daemon sent last.
func (p *Participant) report(k *decide.Cursor, now time.Time) error {
	if k == nil {
		p.Reported = nil
		return nil
	}
	raw, err := marshal(k.Message())
	if err != nil {
		return err
	}
	if !slices.Equal(raw, p.Reported) {
		p.Reported, p.ReportedAt = raw, now
	}
	return nil
}

// timeOf sets the columns that follow from a change of state.
func (b *book) timeOf(was Job, c cause) error {
	j, now := &b.row, b.tx.Now()
	if j.State != was.State && j.State == statePreflight && j.StartedAt.IsZero() {
		j.StartedAt = now
	}
	if isTerminal(j.State) != isTerminal(was.State) {
		j.EndedAt = time.Time{}
		if isTerminal(j.State) {
			j.EndedAt = now
		}
	}
	if j.State == stateCompleted {
		j.Permille = archive.CompleteWeight // also where a person took it as completed
	}
	if p := int(archive.CompletedPermille(j.Operation, j.Position)); j.Permille < p {
		j.Permille = p
	}
	if j.State != stateWaiting {
		j.RetryAt, j.WaitDetail = time.Time{}, ""
		return nil
	}
	if was.State == stateWaiting && was.Wait == j.Wait && was.Failures == j.Failures {
		return nil
	}
	j.RetryAt, j.WaitDetail = time.Time{}, waitText(c.detail)
	switch j.Wait {
	case waitBackoff, waitBackend, waitRoute:
		j.RetryAt = now.Add(max(b.e.delay(j.Failures, b.e.o.RetryCap), c.detail.GetRetryAfter().AsDuration()))
	case waitSpace:
		j.RetryAt = now.Add(max(b.e.o.SpaceEvery, b.e.delay(max(j.Attempt, j.Failures), b.e.o.SpaceCap)))
	case waitRetention:
		j.RetryAt = j.RetainUntil
	}
	return nil
}

// delay is how long a job waits after so many failures in a row: doubling up to the longest, without chance.
func (e *Engine) delay(failures int, longest time.Duration) time.Duration {
	return archive.Backoff{Initial: e.o.RetryFirst, Cap: longest}.Delay(max(failures-1, 0), 1)
}

func waitText(d *pb.ErrorDetail) string { return d.GetMessage() }

// act writes one action.
func (b *book) act(a decide.Action, c cause) error {
	q := b.e.commands
	switch a := a.(type) {
	case decide.Acknowledge:
		return b.onCommand(a.ID, EntryAcked, "found in the daemon's cursor", q.MarkAccepted)
	case decide.CloseLease:
		return b.onCommand(a.ID, "", "", q.Close)
	case decide.Retire:
		return b.onCommand(a.ID, "", "", q.Retire)
	case decide.Withdraw:
		return b.onCommand(a.ID, EntryWithdrawn, "taken back: it is not sent again", q.Withdraw)
	case decide.Supersede:
		return b.onCommand(a.ID, EntryWithdrawn, "replaced by a newer decision", q.Supersede)
	case decide.Park:
		return b.park(a.ID)
	case decide.Grant:
		return b.onCommand(a.ID, "", "", func(tx command.Tx, no int64) error {
			return q.Grant(tx, no, max(c.grant, 1))
		})
	case decide.Resend:
		row, err := b.cmd(a.ID)
		b.wakes[row.Daemon.No] = true
		return err
	case decide.Assign:
		return b.assign(a.Role)
	case decide.Execute:
		return b.execute(a)
	case decide.Cancel:
		return b.enqueue(a.Role, a.Expected, b.row.Digest, &pb.Command{Operation: &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{
			Reason: archive.Clip(b.cancelReason(c), 512), Cleanup: a.Cleanup}}})
	case decide.Close:
		return b.enqueue(a.Role, a.Expected, b.row.Digest, &pb.Command{Operation: &pb.Command_CloseJob{CloseJob: &pb.CloseJob{
			FinalState: a.Final, DiscardJobFiles: a.Discard}}})
	case decide.Reconcile:
		return b.reconcile(a)
	case decide.RequestSnapshot:
		return b.enqueue(a.Role, decide.Position{}, "", &pb.Command{Operation: &pb.Command_RequestJobSnapshot{
			RequestJobSnapshot: &pb.RequestJobSnapshot{FromSequence: 1, IncludeEvidence: true}}})
	case decide.Ack:
		b.ack(a)
		return nil
	case decide.DecideAgain:
		b.ends = append(b.ends, func() error { return b.decideAgain(a, c) })
		return nil
	case decide.TakeAside:
		b.ends = append(b.ends, func() error { return b.takeAside(a.ID) })
		return nil
	case decide.DropAside:
		if p := b.part(a.Role); p != nil {
			return b.tx.JobDropAsides(b.row.No, p.DaemonNo)
		}
		return nil
	case decide.MakePlaceholder, decide.StoreDefinition:
		return nil // done before the rows were written
	case decide.RunChecks:
		b.ends = append(b.ends, b.runChecks)
		return nil
	case decide.Reserve:
		return nil // runChecks does it, since it may find that it has to wait
	case decide.ReserveAgain:
		return b.reserveAgain()
	case decide.Release:
		return b.release()
	case decide.FollowUp:
		b.ends = append(b.ends, b.followUp)
		return nil
	case decide.StoreEvidence:
		return b.storeEvidence(a.Step, c)
	case decide.Audit:
		return b.record(string(a.What), c)
	case decide.Alert:
		return b.alert(a, c)
	}
	return fault.New(fault.Internal, "an action %T that nobody knows", a)
}

// onCommand changes a command row and notes it.
func (b *book) onCommand(id uuid.UUID, event, words string, do func(command.Tx, int64) error) error {
	row, err := b.cmd(id)
	if err != nil {
		return err
	}
	if err := do(b.tx, row.No); err != nil {
		return err
	}
	b.wakes[row.Daemon.No] = true
	if event == "" {
		return nil
	}
	return b.entry(event, row.Daemon.No, row.No, map[string]any{"command": row.Kind.String(), "note": words})
}

func (b *book) park(id uuid.UUID) error {
	row, err := b.cmd(id)
	if err != nil || !row.State.Unanswered() {
		return err
	}
	row.State = command.Parked
	return b.tx.DaemonCommandUpdate(&row)
}

func (b *book) assign(role pb.ParticipantRole) error {
	return b.enqueue(role, decide.Position{}, b.row.Digest, &pb.Command{Operation: &pb.Command_AssignJob{AssignJob: &pb.AssignJob{
		Definition: proto.CloneOf(b.def), Role: role, DefinitionSha256: b.row.Digest}}})
}

func (b *book) execute(a decide.Execute) error {
	proofs, err := b.proofs()
	if err != nil {
		return err
	}
	notBefore := b.row.RetainUntil
	if notBefore.IsZero() {
		notBefore = b.tx.Now()
	}
	step, err := executeStep(b.def, a.Step, a.Attempt, proofs, notBefore)
	if err != nil {
		return err
	}
	return b.enqueue(a.Role, a.Expected, b.row.Digest, &pb.Command{Operation: &pb.Command_ExecuteStep{ExecuteStep: step}})
}

func (b *book) proofs() (map[pb.JobStep]proof, error) {
	rows, err := b.rtx.JobProofs(b.row.No)
	if err != nil {
		return nil, err
	}
	out := map[pb.JobStep]proof{}
	for _, r := range rows {
		e, err := parse(r.Evidence, &pb.StepEvidence{})
		if err != nil {
			return nil, err
		}
		out[r.Step] = proof{evidence: e, digest: r.SHA256, at: r.At}
	}
	return out, nil
}

func (b *book) reconcile(a decide.Reconcile) error {
	m := &pb.ReconcileJobCommand{Authoritative: a.Authoritative.Message(), Disposition: a.Disposition}
	for _, id := range a.Retire {
		m.RetireCommandIds = append(m.RetireCommandIds, id.String())
	}
	if a.Code != codeNone {
		m.Reason = &pb.ErrorDetail{Code: a.Code, Retryable: archive.Retryable(a.Code), Message: explainCode(a.Code)}
	}
	if a.Disposition == pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION {
		m.Definition = proto.CloneOf(b.def)
	}
	return b.enqueue(a.Role, a.Expected, a.Definition, &pb.Command{Operation: &pb.Command_ReconcileJob{ReconcileJob: m}})
}

// enqueue stores a command for a participant.
func (b *book) enqueue(role pb.ParticipantRole, at decide.Position, digest string, m *pb.Command) error {
	p := b.part(role)
	if p == nil {
		return fault.New(fault.Internal, "job %s has no %s", b.row.ID, roleText(role))
	}
	m.JobId = b.row.ID.String()
	if digest != "" {
		m.Precondition = &pb.CommandPrecondition{ExpectedRevision: at.Revision, ExpectedLastEventSequence: at.Sequence,
			DefinitionSha256: digest}
	}
	row, err := b.e.commands.Enqueue(b.tx, command.New{Daemon: archive.DaemonRef{No: p.DaemonNo, ID: b.peers[p.DaemonNo].ID},
		JobNo: b.row.No, Command: m})
	if err != nil {
		return err
	}
	b.wakes[p.DaemonNo] = true
	detail := map[string]any{"command": row.Kind.String()}
	if s := m.GetExecuteStep(); s != nil {
		detail["step"], detail["attempt"] = stepText(s.GetStep()), s.GetStepAttempt()
	}
	if r := m.GetReconcileJob(); r != nil {
		detail["disposition"], detail["retires"] = dispositionText(r.GetDisposition()), r.GetRetireCommandIds()
	}
	return b.entry(EntryCommand, p.DaemonNo, row.No, detail)
}

// cancelReason is what the daemon's operator may read.
func (b *book) cancelReason(c cause) string {
	switch {
	case c.reason != "":
		return c.reason
	case len(b.row.Error) > 0:
		if d, err := parse(b.row.Error, &pb.ErrorDetail{}); err == nil {
			return d.GetMessage()
		}
	}
	return "cancelled"
}

// storeDefinition gives the draft its identity and makes it the job's.
func (b *book) storeDefinition(def *pb.JobDefinition) error {
	if def == nil {
		return fault.New(fault.Internal, "a definition is to be stored and there is none")
	}
	raw, err := marshal(def)
	if err != nil {
		return err
	}
	b.row.Definition, b.row.Digest, b.def = raw, archive.DefinitionDigest(def), def
	return nil
}

// withIdentity completes a draft.
func withIdentity(draft *pb.JobDefinition, id uuid.UUID, at time.Time) *pb.JobDefinition {
	def := proto.CloneOf(draft)
	def.JobId, def.CreatedAt = id.String(), timestamppb.New(at)
	return def
}

func (b *book) storeEvidence(step pb.JobStep, c cause) error {
	e := c.event.GetEvidence()
	if e == nil {
		return fault.New(fault.Internal, "evidence of %s is to be stored and there is none", stepText(step))
	}
	raw, err := marshal(e)
	if err != nil {
		return err
	}
	p := Proof{JobNo: b.row.No, Step: step, CommandNo: c.from.No, SHA256: archive.EvidenceDigest(e), Evidence: raw, At: b.tx.Now()}
	if err := b.tx.JobPutProof(&p); err != nil {
		return err
	}
	return b.entry(EntryEvidence, c.from.Daemon.No, c.from.No, map[string]any{"step": stepText(step), "sha256": p.SHA256})
}

func (b *book) alert(a decide.Alert, c cause) error {
	var daemonNo int64
	if p := b.part(a.Role); p != nil {
		daemonNo = p.DaemonNo
	}
	words := explainCode(a.Code)
	if m := c.detail.GetMessage(); m != "" && c.detail.GetCode() == a.Code {
		words = m
	}
	if words == "" {
		words = c.what
	}
	return b.e.daemons.RaiseAlert(b.tx, a.Kind, daemonNo, b.row.No, words)
}

// advance moves the job by an event of the state machine (daemon protocol 3.4). Conflict: the job's state does not take it.
func (b *book) advance(ev decide.Event, c cause) error {
	if err := b.current(); err != nil {
		return err
	}
	j, actions, err := decide.Advance(b.view, ev)
	if err != nil {
		return err
	}
	return b.apply(decide.Outcome{Job: j, Actions: actions}, c)
}
