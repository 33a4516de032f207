package decide

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// A control over the pure functions with its tables in memory. The command table changes by the actions alone, so that it
// shows whether they say the same as the rows of the returned jobs.

type controlDB struct {
	job      *Job // nil: an old copy from before the job
	commands map[uuid.UUID]*wireCommand
	status   map[uuid.UUID]Command // by actions and by what the sender does
	events   []Stored
	evidence map[pb.JobStep]*pb.StepEvidence
	aside    []asideEvent
	attempts map[uuid.UUID]int
	daemons  [2]daemonRow
	reserved bool
}

type asideEvent struct {
	role pb.ParticipantRole
	m    *pb.JobEvent
}

type daemonRow struct {
	issued, used uint64
	epoch        uuid.UUID
	online       bool
}

func (db *controlDB) clone() controlDB {
	out := *db
	if db.job != nil {
		j := *db.job
		j.Commands = slices.Clone(j.Commands)
		out.job = &j
	}
	out.commands, out.status, out.attempts = map[uuid.UUID]*wireCommand{}, map[uuid.UUID]Command{}, map[uuid.UUID]int{}
	for id, c := range db.commands {
		out.commands[id] = c
	}
	for id, c := range db.status {
		out.status[id] = c
	}
	for id, n := range db.attempts {
		out.attempts[id] = n
	}
	out.evidence = map[pb.JobStep]*pb.StepEvidence{}
	for s, e := range db.evidence {
		out.evidence[s] = e
	}
	out.events, out.aside = slices.Clone(db.events), slices.Clone(db.aside)
	return out
}

// link is one connection; both directions lose, double, delay and swap what they are told to.
type link struct {
	gen      uint64
	open     bool
	toDaemon []any
	toServer []any
	sent     map[uuid.UUID]bool // rows sent on this connection
}

type control struct {
	db     controlDB
	links  [2]*link
	ids    func() uuid.UUID
	log    func(string, ...any)
	bad    []string
	chance func(n int) bool // one in n, while there are faults
	rows   map[Row]int      // decisions by row
}

func (c *control) problem(format string, args ...any) {
	c.bad = append(c.bad, fmt.Sprintf(format, args...))
}

// facts sets what depends on time: it is over when faults stop.
func (c *control) facts(j *Job) {
	j.RetentionOver, j.VerifyFresh = !c.chance(3), !c.chance(3)
}

func (c *control) advance(e Event) bool {
	j := c.db.job
	if j == nil {
		return false
	}
	c.facts(j)
	next, actions, err := Advance(*j, e)
	if err != nil {
		if code := fault.CodeOf(err); code != fault.Conflict && code != fault.Invalid {
			c.problem("Advance(%T): %v", e, err)
		}
		return false
	}
	c.log("  event %T%+v in %s(%s) -> %s(%s,%s)", e, e, stateText(j.State), stateText(j.Kept), stateText(next.State), stateText(next.Kept), next.Wait)
	c.apply(next, actions)
	return true
}

func (c *control) decide(in Input) {
	in.Job = c.db.job
	if in.Job != nil {
		c.facts(in.Job)
	}
	before := Job{}
	if in.Job != nil {
		before = *in.Job
	}
	out := Decide(in)
	c.log("  decide role %d K=%+v new=%v rolled=%v refused=%+v: row %s -> %s(%s,%s)", in.Role, in.K, in.NewEpoch, in.RolledBack, in.Refused, out.Row,
		stateText(out.Job.State), stateText(out.Job.Kept), out.Job.Wait)
	c.rows[out.Row]++
	if out.Row == Row19 || out.Row == RowForeign && in.K != nil {
		c.problem("row %s", out.Row)
	}
	if p := invariants(&before, in.K, in.Role, out); p != "" {
		c.problem("row %s: %s", out.Row, p)
	}
	if out.Row != RowForeign {
		c.apply(out.Job, out.Actions)
	}
}

// apply stores a job and does the actions.
func (c *control) apply(next Job, actions []Action) {
	old := c.db.job
	if old != nil {
		c.monotonic(old, &next)
	}
	c.db.job = &next
	var again []DecideAgain
	var judge []uuid.UUID
	for _, a := range actions {
		c.log("    %T%+v", a, a)
		switch a := a.(type) {
		case Acknowledge:
			c.set(a.ID, func(r *Command) { r.Status = Accepted })
			judge = append(judge, a.ID)
		case CloseLease:
			c.set(a.ID, func(r *Command) { r.Status = Closed })
		case Retire:
			c.set(a.ID, func(r *Command) {
				r.Lease = leaseRetired
				if r.unacked() {
					r.Status = Superseded
				}
			})
		case Withdraw:
			c.set(a.ID, func(r *Command) { r.Status = Withdrawn })
		case Supersede:
			c.set(a.ID, func(r *Command) { r.Status = Superseded })
		case Park:
			c.set(a.ID, func(r *Command) { r.Status = Parked })
		case Grant:
			c.set(a.ID, func(r *Command) { r.Status = Sent })
			c.db.attempts[a.ID] = 0
		case Assign:
			c.make(archive.AssignJob, a.Role, &wireCommand{})
		case Execute:
			c.make(archive.ExecuteStep, a.Role, &wireCommand{expected: a.Expected, step: a.Step})
		case Cancel:
			c.make(archive.CancelJob, a.Role, &wireCommand{expected: a.Expected})
			if n := c.count(archive.CancelJob); n > 1 {
				c.problem("%d CancelJobs are out at once", n)
			}
		case Close:
			c.make(archive.CloseJob, a.Role, &wireCommand{expected: a.Expected, final: a.Final})
		case Reconcile:
			c.make(archive.ReconcileJob, a.Role, &wireCommand{expected: a.Expected, definition: a.Definition, disposition: a.Disposition,
				authority: a.Authoritative, retires: a.Retire, final: a.Authoritative.State})
		case RequestSnapshot:
			c.make(archive.RequestJobSnapshot, a.Role, &wireCommand{})
		case Ack:
			c.send(a.Role, wireEventAck{a.Through, next.Revision, a.GoAhead})
		case DecideAgain:
			again = append(again, a)
		case TakeAside:
			judge = append(judge, a.ID)
		case DropAside:
			c.db.aside = slices.DeleteFunc(c.db.aside, func(e asideEvent) bool { return e.role == a.Role })
		case Reserve, ReserveAgain:
			c.db.reserved = true
		case Release:
			c.db.reserved = false
		}
	}
	c.compareRows()
	for _, a := range again {
		c.decide(Input{Role: a.Role, K: c.db.job.Party(a.Role).Reported, Refused: a.Refused})
	}
	for _, id := range judge {
		c.takeAside(id)
	}
}

// monotonic checks what no change may do.
func (c *control) monotonic(old, next *Job) {
	if old.Committed && !next.Committed {
		c.problem("the commit flag was cleared")
	}
	if next.Sequence < old.Sequence {
		c.problem("the sequence went back")
	}
	if executing(next) > 1 {
		c.problem("two ExecuteSteps are unretired")
	}
}

func (c *control) count(kind archive.CommandKind) int {
	n := 0
	for i := range c.db.job.Commands {
		if r := &c.db.job.Commands[i]; r.Kind == kind && (r.unacked() || r.open()) {
			n++
		}
	}
	return n
}

func (c *control) set(id uuid.UUID, f func(*Command)) {
	r, ok := c.db.status[id]
	if !ok {
		c.problem("an action names a row that does not exist")
		return
	}
	f(&r)
	c.db.status[id] = r
}

// make gives the next row without an id one, and stores its payload.
func (c *control) make(kind archive.CommandKind, role pb.ParticipantRole, w *wireCommand) {
	j := c.db.job
	for i := range j.Commands {
		if r := &j.Commands[i]; r.ID == uuid.Nil && r.Kind == kind && r.Role == role {
			w.id, w.kind, w.role = c.ids(), kind, role
			if w.definition == "" {
				w.definition = j.Definition
			}
			r.ID, r.Payload = w.id, w.digest()
			c.db.commands[w.id] = w
			row := *r
			row.Status = Pending
			c.db.status[w.id] = row
			return
		}
	}
	c.problem("an action asks for a row that the job does not have: %d", kind)
}

// compareRows holds the rows of the job against those that the actions made.
func (c *control) compareRows() {
	for i := range c.db.job.Commands {
		r := &c.db.job.Commands[i]
		if r.ID == uuid.Nil {
			c.problem("a row was never asked for: %d", r.Kind)
			continue
		}
		if s := c.db.status[r.ID]; s.Status != r.Status || (s.Lease == leaseRetired) != (r.Lease == leaseRetired) {
			c.problem("row %d is %s by the job and %s by the actions (lease %s, %s)", r.Kind, r.Status, s.Status, r.Lease, s.Lease)
		}
	}
}

func (c *control) link(role pb.ParticipantRole) *link {
	if l := c.links[role-1]; l != nil && l.open {
		return l
	}
	return nil
}

func (c *control) send(role pb.ParticipantRole, m any) {
	if l := c.link(role); l != nil {
		l.toDaemon = append(l.toDaemon, m)
	}
}

// pump sends what may go out: ReconcileJob, CancelJob, CloseJob, resends, new commands (4.5). retry sends again what was
// sent on this connection before.
func (c *control) pump(role pb.ParticipantRole, retry bool) {
	l := c.link(role)
	j := c.db.job
	if l == nil || j == nil || !c.db.daemons[role-1].online {
		return
	}
	order := map[archive.CommandKind]int{archive.ReconcileJob: 1, archive.CancelJob: 2, archive.CloseJob: 3}
	rank := func(r Command) int {
		if n := order[r.Kind]; n > 0 {
			return n
		}
		if r.EverSent {
			return 4
		}
		return 5
	}
	rows := slices.Clone(j.Commands)
	slices.SortStableFunc(rows, func(a, b Command) int { return rank(a) - rank(b) })
	for i := range rows {
		r := c.db.job.Command(rows[i].ID)
		if r == nil || r.Role != role || !MaySend(c.db.job, r) || l.sent[r.ID] && !retry {
			continue
		}
		if c.db.attempts[r.ID] >= archive.CommandAttempts {
			c.advance(Exhausted{r.ID})
			continue
		}
		c.db.attempts[r.ID]++
		r.Status, r.EverSent, l.sent[r.ID] = Sent, true, true
		c.set(r.ID, func(s *Command) { s.Status, s.EverSent = Sent, true })
		w := *c.db.commands[r.ID]
		l.toDaemon = append(l.toDaemon, &w)
	}
	p := c.db.job.Party(role)
	if retry && p != nil && p.Decided && !c.db.job.reconciling(role) && c.db.job.State != manual && !terminal(c.db.job.State) {
		for i := range c.db.job.Commands {
			if r := &c.db.job.Commands[i]; r.Role == role && r.open() {
				c.send(role, wireEventAck{c.db.job.Sequence, c.db.job.Revision, true}) // 4.5: the go-ahead again
				break
			}
		}
	}
}

// register is a registration in one transaction; it returns the generation.
func (c *control) register(d *model) *link {
	row := &c.db.daemons[d.role-1]
	f := Rollback(Registration{LastGeneration: d.db.lastGen, Issued: row.issued, Used: row.used, Known: row.issued > 0, SameEpoch: row.epoch == d.db.epoch})
	fresh := row.issued > 0 && row.epoch != d.db.epoch
	row.issued, row.epoch, row.online = f.Next, d.db.epoch, true
	c.log("register %s: rollback %+v new epoch %v", d.name, f, fresh)
	if old := c.links[d.role-1]; old != nil {
		old.open = false
	}
	l := &link{gen: f.Next, open: true, sent: map[uuid.UUID]bool{}}
	c.links[d.role-1] = l
	c.db.aside = slices.DeleteFunc(c.db.aside, func(e asideEvent) bool { return e.role == d.role })
	if f.Control && c.db.job != nil {
		c.db.job.OldCopy = true
	}
	k := d.listed()
	if c.db.job != nil && c.db.job.Party(d.role) == nil {
		if k == nil {
			return l
		}
		c.db.job.Parties[d.role-1].Role = d.role // a placeholder learns of another participant
	}
	if c.db.job != nil && c.db.job.State != pending && c.db.job.State != preflight || k != nil {
		c.decide(Input{Role: d.role, K: k, Registration: true, NewEpoch: fresh, RolledBack: f.Daemon})
	} else if c.db.job != nil {
		c.db.job.Party(d.role).Online, c.db.job.Party(d.role).Registered = true, true
	}
	return l
}

// restart is a new control process over the database as it is.
func (c *control) restart() {
	for i := range c.links {
		if c.links[i] != nil {
			c.links[i].open = false
		}
		c.db.daemons[i].online = false
	}
	if j := c.db.job; j != nil {
		for _, role := range j.roles() {
			j.Party(role).Registered = false
			c.advance(Offline{role})
		}
	}
}

// receive handles one message of a daemon.
func (c *control) receive(role pb.ParticipantRole, l *link, m any) {
	if c.links[role-1] != l || !l.open {
		return // a stale generation
	}
	c.db.daemons[role-1].used = l.gen
	c.log("from %d: %T", role, m)
	switch m := m.(type) {
	case wireAck:
		c.ack(m)
	case *pb.JobEvent:
		c.event(role, m)
	case wireSnapshot:
		c.snapshot(role, m)
	}
}

// ack stores an acknowledgement in the command table, as the queue does, and applies it.
func (c *control) ack(m wireAck) {
	s, ok := c.db.status[m.id]
	if !ok || c.db.job == nil {
		return
	}
	if s.unacked() || s.Status == Withdrawn || s.Status == Superseded {
		switch m.status {
		case pb.AckStatus_ACK_STATUS_ACCEPTED:
			s.Status = Accepted
		case pb.AckStatus_ACK_STATUS_REJECTED:
			s.Status = Rejected
		case pb.AckStatus_ACK_STATUS_CONFLICT:
			s.Status = Conflicted
		}
		c.db.status[m.id] = s
	}
	c.advance(Acked{m.id, m.status, m.code, m.cursor})
}

func (c *control) event(role pb.ParticipantRole, m *pb.JobEvent) {
	j := c.db.job
	if j == nil || j.Party(role) == nil {
		return
	}
	a := Arrival{Role: role, Message: m, ID: uuid.MustParse(m.GetEventId()), Command: uuid.MustParse(m.GetCommandId()), Aside: len(c.db.aside)}
	for _, e := range c.db.events {
		if e.Message.GetEventId() == m.GetEventId() {
			a.ByID = e.Message
		}
		if e.Message.GetSequence() == m.GetSequence() {
			a.BySeq = e.Message
		}
	}
	v := Judge(j, a)
	c.log("  event %d %s under %s: %+v", m.GetSequence(), m.GetKind(), m.GetCommandId(), v)
	switch v.Ruling {
	case Accept:
		c.store(role, m)
		c.send(role, wireEventAck{through: c.db.job.Sequence, revision: c.db.job.Revision})
	case Repeat:
		c.send(role, wireEventAck{through: j.Sequence, revision: j.Revision})
	case Aside:
		if !slices.ContainsFunc(c.db.aside, func(e asideEvent) bool { return e.role == role && proto.Equal(e.m, m) }) {
			c.db.aside = append(c.db.aside, asideEvent{role, m})
		}
	case Refuse:
		c.advance(EventRefused{role, a.Command, v.Code})
	case Clash:
		c.advance(ConflictSeen{role, v.Code})
	case Drop:
	}
}

// store applies an accepted event.
func (c *control) store(role pb.ParticipantRole, m *pb.JobEvent) {
	var before *pb.Progress
	h, err := EventOf(role, m, before)
	if err == nil && m.GetSequence() != c.db.job.Sequence+1 {
		err = errors.New("the sequences are not contiguous")
	}
	if err != nil {
		c.problem("event: %v", err)
		return
	}
	c.db.events = append(c.db.events, Stored{role, m})
	if m.GetKind() == stepCompleted {
		c.db.evidence[m.GetStep()] = m.GetEvidence()
	}
	if !c.advance(h) {
		c.problem("an accepted event was refused by the machine: %s in %s", m.GetKind(), stateText(c.db.job.State))
	}
}

func (c *control) takeAside(id uuid.UUID) {
	var mine []asideEvent
	c.db.aside = slices.DeleteFunc(c.db.aside, func(e asideEvent) bool {
		if e.m.GetCommandId() == id.String() {
			mine = append(mine, e)
			return true
		}
		return false
	})
	slices.SortFunc(mine, func(a, b asideEvent) int { return int(a.m.GetSequence()) - int(b.m.GetSequence()) }) //nolint:gosec // small
	for _, e := range mine {
		c.event(e.role, e.m)
	}
}

func (c *control) snapshot(role pb.ParticipantRole, m wireSnapshot) {
	j := c.db.job
	if j == nil {
		return
	}
	r := j.Command(m.request)
	if r == nil || !r.unacked() && r.Status != Accepted {
		return
	}
	if r.unacked() {
		c.ack(wireAck{id: r.ID, status: pb.AckStatus_ACK_STATUS_ACCEPTED})
	}
	checked := ValidateSnapshot(c.db.job, role, m.s, Known{Epoch: c.db.daemons[role-1].epoch, Events: c.db.events, Evidence: c.db.evidence})
	c.log("  snapshot: %q, %d new events, flag %v", checked.Defect, len(checked.Events), checked.CommitSeen)
	if checked.Defect != "" {
		in := Input{Job: c.db.job, Role: role, Snapshot: m.request}
		if m.s.Failed == 0 {
			in.K = &m.s.Cursor
		}
		out := SnapshotFailed(in, checked)
		c.apply(out.Job, out.Actions)
		return
	}
	for _, e := range checked.Events {
		c.store(role, e)
	}
	if checked.CommitSeen != nil {
		c.advance(*checked.CommitSeen)
	}
	c.decide(Input{Role: role, K: &m.s.Cursor, Snapshot: m.request})
}
