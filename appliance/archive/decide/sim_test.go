package decide

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// sim is one job, two daemons and a control, with a network and disks that misbehave by a seed.
type sim struct {
	rng     *rand.Rand
	control *control
	daemons [2]*model
	world   *world
	copies  []controlDB
	lines   []string
	counter uint64
	trace   bool
	restore bool // old copies of databases are put back
	rate    int  // how seldom messages are lost, doubled and swapped
	calmed  bool // no more faults
}

func newSim(seed uint64, trace bool) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 1)), trace: trace, world: &world{done: map[pb.JobStep]int{}, ran: map[uuid.UUID]int{}, undone: map[pb.ParticipantRole]int{}}} //nolint:gosec // a simulation
	id := s.id()
	op, carrier := pb.JobOperation_JOB_OPERATION_TRANSFER, target
	switch s.rng.IntN(4) {
	case 0:
		op = pb.JobOperation_JOB_OPERATION_EVICT
	case 1:
		op = pb.JobOperation_JOB_OPERATION_ADOPT
	case 2:
		carrier = source
	}
	s.restore = s.rng.IntN(2) == 0
	j := Job{ID: id, Operation: op, Carrier: carrier, State: pending, Cleanup: discardFiles, Allowance: archive.StepAttempts}
	for _, r := range archive.Roles(op) {
		j.Parties[r-1].Role = r
	}
	s.rate = 1 + s.rng.IntN(4)
	s.control = &control{ids: s.id, log: s.log, rows: map[Row]int{}, chance: func(n int) bool { return !s.calmed && s.rng.IntN(n) == 0 }, db: controlDB{job: &j, commands: map[uuid.UUID]*wireCommand{}, status: map[uuid.UUID]Command{},
		evidence: map[pb.JobStep]*pb.StepEvidence{}, attempts: map[uuid.UUID]int{}}}
	for i, name := range []string{"source", "target"} {
		s.daemons[i] = &model{name: name, role: pb.ParticipantRole(i + 1), db: newModelDB(s.id()), job: id, ids: s.id, rng: s.rng, world: s.world, //nolint:gosec // 1, 2
			confirmed: map[uuid.UUID]bool{}}
	}
	s.daemons[0].peer, s.daemons[1].peer = s.daemons[1], s.daemons[0]
	return s
}

func (s *sim) id() uuid.UUID {
	s.counter++
	return testID(int(s.counter)) //nolint:gosec // small
}

func (s *sim) log(format string, args ...any) {
	if s.trace {
		s.lines = append(s.lines, fmt.Sprintf(format, args...))
	}
}

func (s *sim) link(d *model) *link { return s.control.link(d.role) }

// connect opens a connection; with faults the response may be lost, so that control alone believes in it.
func (s *sim) connect(d *model, faults bool) {
	l := s.control.register(d)
	if faults && s.rng.IntN(10) == 0 {
		l.open = false
		return
	}
	d.goAhead = false
	d.db.lastGen = l.gen
}

// step lets one thing happen.
func (s *sim) step(faults bool) {
	d := s.daemons[s.rng.IntN(2)]
	l := s.link(d)
	switch n := s.rng.IntN(100); {
	case n < 40: // a message arrives
		s.deliver(d, l, faults)
	case n < 62: // work
		d.work(faults)
	case n < 70: // the daemon sends its events, again those that are not acknowledged
		if l != nil {
			for _, m := range d.events() {
				l.toServer = append(l.toServer, m)
			}
		}
	case n < 78:
		s.control.pump(d.role, false)
	case n < 80:
		s.control.pump(d.role, true)
	case n < 86:
		if l == nil {
			s.connect(d, faults)
		}
	case n < 90: // what the job waits for comes
		if j := s.control.db.job; j != nil && j.State == waiting {
			s.control.advance(Cleared{})
		} else if j != nil && j.State == preflight {
			s.checks(faults)
		} else if j != nil && j.State == pending {
			s.control.advance(OperatorStart{})
		}
	case faults:
		s.fault(d, l)
	}
}

func (s *sim) checks(faults bool) {
	switch n := s.rng.IntN(10); {
	case faults && n == 0:
		s.control.advance(ChecksFailed{Code: codeSpace, Wait: waitSpace})
	case faults && n == 1:
		s.control.advance(ChecksFailed{Code: codeBusy, Wait: waitOffline})
	default:
		s.control.advance(ChecksPassed{Definition: definitionA})
	}
}

func (s *sim) deliver(d *model, l *link, faults bool) {
	if l == nil {
		return
	}
	queue, down := &l.toServer, false
	if s.rng.IntN(2) == 0 {
		queue, down = &l.toDaemon, true
	}
	if len(*queue) == 0 {
		return
	}
	i := 0
	if faults && s.rng.IntN(4*s.rate) == 0 { // reorder
		i = s.rng.IntN(len(*queue))
	}
	m := (*queue)[i]
	switch {
	case faults && s.rng.IntN(5*s.rate) == 0: // a duplicate stays behind
	default:
		*queue = append((*queue)[:i:i], (*queue)[i+1:]...)
	}
	if faults && s.rng.IntN(8*s.rate) == 0 {
		return // lost
	}
	if !down {
		s.control.receive(d.role, l, m)
		return
	}
	switch m := m.(type) {
	case *wireCommand:
		known := d.db.commands[m.id].status != 0
		a := d.command(m)
		s.log("%s takes %s %d: %s %s cursor %+v", d.name, m.id, m.kind, a.status, a.code, a.cursor)
		l.toServer = append(l.toServer, a)
		if m.kind == archive.RequestJobSnapshot && a.status == pb.AckStatus_ACK_STATUS_ACCEPTED && (!known || s.rng.IntN(2) == 0) {
			l.toServer = append(l.toServer, d.snapshot(m.id))
		}
	case wireEventAck:
		d.eventAck(m)
	}
}

func (s *sim) fault(d *model, l *link) {
	c := s.control
	switch n := s.rng.IntN(40); {
	case n < 8: // the connection breaks
		if l != nil {
			l.open = false
		}
	case n < 12: // and stays away too long
		if l == nil && c.db.daemons[d.role-1].online {
			c.db.daemons[d.role-1].online = false
			c.advance(Offline{d.role})
		}
	case n < 18: // the daemon's process dies
		if l != nil {
			l.open = false
		}
		d.restart()
	case n < 22: // control's process dies
		c.restart()
	case n == 22 && s.rng.IntN(6) == 0:
		c.advance(OperatorCancel{})
	case n == 23:
		if j := c.db.job; j != nil && j.State == waiting {
			c.advance(OperatorGrant{2})
		}
	case n == 24:
		s.person()
	case n < 30 && s.restore: // copies are made
		d.copies = append(d.copies, d.db.clone())
		s.copies = append(s.copies, c.db.clone())
	case n == 30 && s.restore && len(d.copies) > 0 && s.rng.IntN(2) == 0:
		if l != nil {
			l.open = false
		}
		d.restart()
		d.db, d.rolled = d.copies[s.rng.IntN(len(d.copies))].clone(), true
		s.log("%s runs an old copy", d.name)
	case n == 31 && s.restore && s.rng.IntN(3) == 0:
		if l != nil {
			l.open = false
		}
		d.restart()
		d.db, d.rolled = newModelDB(s.id()), true
		s.log("%s lost its database", d.name)
	case n == 32 && s.restore && len(s.copies) > 0 && s.rng.IntN(2) == 0:
		c.restart()
		c.db = s.copies[s.rng.IntN(len(s.copies))].clone()
		s.log("control runs an old copy")
		c.restart()
		s.daemons[0].rolled, s.daemons[1].rolled = true, true // their own effects may repeat under new commands
	}
}

// person takes one of the decisions that end MANUAL.
func (s *sim) person() {
	if j := s.control.db.job; j == nil || j.State != manual {
		return
	}
	switch s.rng.IntN(3) {
	case 0:
		s.control.advance(OperatorAccept{})
	case 1:
		s.control.advance(OperatorAbandon{})
	default:
		s.control.advance(OperatorResume{})
	}
}

// done reports whether the job has ended everywhere, or waits for a person with a reason.
func (s *sim) done() bool {
	j := s.control.db.job
	if j == nil {
		return s.daemons[0].listed() == nil && s.daemons[1].listed() == nil
	}
	if j.State == manual {
		return true
	}
	if j.State == waiting && (j.Wait == waitOperator || j.Wait == waitUnacked) {
		return true
	}
	if !terminal(j.State) {
		return false
	}
	for _, d := range s.daemons {
		if p := j.Party(d.role); d.listed() != nil || p != nil && j.has(p) {
			return false
		}
	}
	return true
}

func (s *sim) problems() []string {
	out := append([]string(nil), s.control.bad...)
	out = append(out, s.world.problems...)
	for step, n := range s.world.done {
		if n > 1 {
			out = append(out, fmt.Sprintf("the effect of %s happened %d times", step, n))
		}
	}
	for i, e := range s.control.db.events {
		if e.Message.GetSequence() != uint64(i+1) { //nolint:gosec // small
			out = append(out, "the stored sequences are not contiguous")
			break
		}
	}
	return out
}

// run plays a seed: faults for a while, then none; the job must then end or wait for a person, and end by what a person
// decides.
func (s *sim) run() []string {
	for range 400 + s.rng.IntN(1200) {
		s.step(true)
		if p := s.problems(); len(p) > 0 {
			return p
		}
	}
	s.log("--- faults stop")
	s.calmed = true
	for _, l := range s.control.links {
		if l != nil {
			l.open = false // a live connection loses nothing: what was lost ends with the old ones
		}
	}
	if p := s.calm("the job"); p != nil {
		return p
	}
	for range 3 { // a person decides, at first as it comes, then for good
		if j := s.control.db.job; j == nil || terminal(j.State) {
			break
		}
		s.log("--- a person decides")
		s.help(false)
		if p := s.calm("the job after a decision"); p != nil {
			return p
		}
	}
	if j := s.control.db.job; j != nil && !terminal(j.State) {
		s.help(true)
		if p := s.calm("the job after the last decision"); p != nil {
			return p
		}
	}
	return s.end()
}

func (s *sim) help(last bool) {
	j := s.control.db.job
	switch {
	case j.State == manual && last:
		s.control.advance(OperatorAbandon{})
	case j.State == manual:
		s.person()
	default:
		s.control.advance(OperatorGrant{3})
	}
}

// calm plays without faults until the job rests.
func (s *sim) calm(what string) []string {
	for n := range 12000 {
		if n%40 == 39 && s.done() {
			return s.problems()
		}
		if j := s.control.db.job; n%2000 == 1999 && j != nil && terminal(j.State) {
			for _, l := range s.control.links {
				if l != nil {
					l.open = false // an unanswered CloseJob is made anew at the next registration
				}
			}
		}
		if n == 0 || n%100 == 99 { // a daemon that control believes connected although it is not finds out by its heartbeats
			for _, d := range s.daemons {
				if s.link(d) == nil {
					s.connect(d, false)
				}
			}
		}
		s.step(false)
		if p := s.problems(); len(p) > 0 {
			return p
		}
	}
	j := s.control.db.job
	if j == nil {
		return []string{what + " is unknown to control and does not end"}
	}
	return []string{fmt.Sprintf("%s does not come to rest: %s(%s,%s) parties %+v", what, stateText(j.State), stateText(j.Kept), j.Wait, j.Parties)}
}

// end checks what must hold of a job that is over.
func (s *sim) end() []string {
	j := s.control.db.job
	if j == nil {
		return nil
	}
	var out []string
	if !terminal(j.State) && j.State != manual && j.Wait == 0 {
		out = append(out, "the job has neither ended nor a reason to wait")
	}
	if terminal(j.State) && s.control.db.reserved && !s.restore {
		out = append(out, "the reservation of an ended job was kept")
	}
	return out
}

// TestSimulation plays fixed seeds; ARCHIVE_SEEDS=n plays more, ARCHIVE_SEED=n one with its trace.
func TestSimulation(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("ARCHIVE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s := newSim(seed, true)
		problems := s.run()
		t.Logf("%s", strings.Join(s.lines, "\n"))
		if len(problems) > 0 {
			t.Fatalf("seed %d: %v", seed, problems)
		}
		return
	}
	seeds := uint64(300)
	if text := os.Getenv("ARCHIVE_SEEDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	ends, rows := map[string]int{}, map[Row]int{}
	failures := 0
	for seed := range seeds {
		s := newSim(seed, false)
		if problems := s.run(); len(problems) > 0 {
			t.Errorf("seed %d (ARCHIVE_SEED=%d shows it): %.400v", seed, seed, problems)
			if failures++; failures > 10 {
				break
			}
		}
		if j := s.control.db.job; j != nil {
			ends[stateText(j.State)]++
		}
		for row, n := range s.control.rows {
			rows[row] += n
		}
	}
	t.Logf("ends: %v; decisions: %v", ends, rows)
	for _, state := range []pb.JobState{completed, failed, cancelled} {
		if ends[stateText(state)] == 0 {
			t.Errorf("no job ended %s: the simulation tries too little", stateText(state))
		}
	}
	for _, row := range []Row{RowResend, Row1a, Row3, Row4, Row5, Row7a, Row7b, Row9, Row10, Row11, Row12, Row13, Row13a, Row14, Row16, Row17} {
		if rows[row] == 0 {
			t.Errorf("row %s was never reached: the simulation tries too little", row)
		}
	}
}
