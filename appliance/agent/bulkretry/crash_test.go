package bulkretry_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/fault"
	"signalbox/store"
)

var errDeath = errors.New("the process died")

// mortal is a rig whose process dies around one commit.
type mortal struct {
	*rig
	left   atomic.Int64 // commits until the death; 0: none comes
	bulk   bulkretry.BulkRetry
	begun  bool // the operator has heard that it is started
	stop   bool // the operator has cancelled it
	moved  bool // time has passed since the last turn
	killed int
	round  int
}

func newMortal(t testing.TB, after bool) *mortal {
	m := &mortal{}
	die := func([]string) error {
		if m.left.Add(-1) == 0 {
			return errDeath
		}
		return nil
	}
	m.rig = newRig(t, func(o *store.Options) {
		if after {
			o.Hooks.AfterCommitBeforeReply = die
		} else {
			o.Hooks.BeforeCommit = die
		}
	})
	return m
}

// next begins anew with other tasks, the third of which the agent cannot retry.
func (m *mortal) next(round, total int) {
	m.round, m.begun, m.stop, m.killed = round, false, false, 0
	m.retried, m.owed, m.refuse = map[string]int{}, nil, map[string]bool{}
	m.connect(m.worker)
	var ids []string
	for i := range total {
		ids = append(ids, fmt.Sprintf("%d-%d", round, i+1))
	}
	m.refuse[ids[2]] = true
	m.failAs(fmt.Sprintf("round-%d", round), ids...)
}

// scene is one way through the life of a bulk retry, as a list of acts that are repeated until it has ended. An act that
// fails is a death: the next act finds a server that was started again.
type scene struct {
	name string
	late bool // answers come after the time of their commands
	acts []func(m *mortal) error
}

func (m *mortal) startIt() error {
	if m.begun {
		return nil
	}
	q := m.request(fmt.Sprintf("key-%d", m.round))
	q.Filter.Name = fmt.Sprintf("round-%d", m.round)
	s, err := m.service.Start(context.Background(), operator, q)
	if err == nil {
		m.bulk, m.begun = s.BulkRetry, true
	}
	return err
}

// turnIt is a turn for what was marked, or for the timer.
func (m *mortal) turnIt() error {
	err := m.step.Turn(context.Background(), m.moved)
	if err == nil {
		m.moved = false
	}
	return err
}

func (m *mortal) claimIt() error { _, err := m.claim(); return err }

// payOne sends one result, and says the one before again, as an agent that missed the acknowledgement does.
func (m *mortal) payOne() error {
	if len(m.owed) == 0 {
		return nil
	}
	a := m.owed[0]
	if err := m.pay(); err != nil {
		return err
	}
	m.owed = append([]answer{a}, m.owed...)
	return m.pay()
}

func (m *mortal) payAll() error {
	for len(m.owed) > 0 {
		if err := m.payOne(); err != nil {
			return err
		}
	}
	return nil
}

func (m *mortal) cancelIt() error {
	if !m.stop {
		if _, err := m.service.Cancel(context.Background(), operator, m.project.No, m.bulk.Parent.ID); err != nil && !fault.Is(err, fault.Conflict) {
			return err
		}
		m.stop = true
	}
	return nil
}

// idle lets so much time pass that whatever lies with nobody ends.
func (m *mortal) idle() error { m.moved = true; return m.sweep(commandTimeout + time.Second) }

// away lets the agent be away for longer than a bulk retry waits.
func (m *mortal) away() error {
	m.disconnect(m.worker)
	m.moved = true
	return m.sweep(m.opts.ParentTimeout + time.Second)
}

var scenes = []scene{
	{"to its end", false, []func(*mortal) error{(*mortal).startIt, (*mortal).turnIt, (*mortal).claimIt, (*mortal).payAll, (*mortal).turnIt, (*mortal).idle}},
	{"cancelled", false, []func(*mortal) error{(*mortal).startIt, (*mortal).turnIt, (*mortal).claimIt, (*mortal).payOne, (*mortal).turnIt,
		(*mortal).cancelIt, (*mortal).payAll, (*mortal).turnIt, (*mortal).idle}},
	{"nobody takes its children", false, []func(*mortal) error{(*mortal).startIt, (*mortal).turnIt, (*mortal).idle, (*mortal).turnIt,
		(*mortal).claimIt, (*mortal).payAll, (*mortal).turnIt}},
	{"the agent goes away", true, []func(*mortal) error{(*mortal).startIt, (*mortal).turnIt, (*mortal).claimIt, (*mortal).payOne, (*mortal).turnIt,
		(*mortal).away, (*mortal).turnIt, (*mortal).payAll}},
}

// play acts until the bulk retry has ended and nothing is under way. A death is followed by a new start.
func (m *mortal) play(s scene) {
	m.t.Helper()
	for range 50 {
		for _, act := range s.acts {
			if err := act(m); err != nil {
				m.left.Store(0)
				if m.killed++; m.killed > 1 {
					m.t.Fatalf("it died once only, and this failed: %v", err)
				}
				m.restart()
				if err := m.payAll(); err != nil { // an agent that comes back says what it could not say
					m.t.Fatal(err)
				}
				break
			}
		}
		if m.begun {
			if b := m.get(m.bulk); !b.IsOpen && b.InFlight == 0 && len(m.owed) == 0 {
				return
			}
		}
	}
	m.t.Fatalf("it does not end: %+v", m.get(m.bulk))
}

// check compares what the agent did with what is told of it.
func (m *mortal) check(s scene, total int) {
	m.t.Helper()
	b := m.get(m.bulk)
	if !b.Parent.Status.Terminal() || b.Waiting() != 0 || b.Total != total {
		m.t.Errorf("it ended as %s: %+v", b.Parent.Status, b)
	}
	if want := fmt.Sprintf(`{"cancelled":%d,"completed":%d,"failed":%d,"in_flight":0,"refused":0,"timeout":%d,"total":%d,"waiting":0}`,
		b.Cancelled, b.Completed, b.Failed, b.TimedOut, total); string(b.Parent.Result) != want && b.Parent.Status != agent.Cancelled &&
		b.Parent.Status != agent.TimedOut {
		m.t.Errorf("result %s, want %s", b.Parent.Result, want)
	}
	rows, err := m.service.Tasks(context.Background(), m.project.No, b.Parent.ID, "", 0, 100)
	if err != nil {
		m.t.Fatal(err)
	}
	counts, lost := map[bulkretry.TaskStatus]int{}, 0
	for _, row := range rows {
		counts[row.Status]++
		n := m.retried[row.TaskID]
		switch {
		case n > 1:
			m.t.Errorf("%s was retried %d times", row.TaskID, n)
		case row.Status == bulkretry.TimedOut:
			if lost++; n == 1 && !s.late {
				m.t.Errorf("%s was retried and answered for, and timed out", row.TaskID)
			}
		case row.Status == bulkretry.Cancelled && n > 0:
			m.t.Errorf("%s is told to have been given up, and was retried", row.TaskID)
		case row.Status == bulkretry.Completed && n != 1, row.Status == bulkretry.Failed && (n != 1 || !m.refuse[row.TaskID]):
			m.t.Errorf("%s is %s and was retried %d times", row.TaskID, row.Status, n)
		}
	}
	if len(rows) != total || counts[bulkretry.Completed] != b.Completed || counts[bulkretry.Failed] != b.Failed ||
		counts[bulkretry.TimedOut] != b.TimedOut || counts[bulkretry.Refused] != 0 || counts[bulkretry.Cancelled] != b.Cancelled {
		m.t.Errorf("tasks %v, counts %+v", counts, b)
	}
	if lost > m.opts.MaxInFlight { // what was handed over in the death
		m.t.Errorf("%d tasks are lost", lost)
	}
	if s.name == "to its end" && b.Completed+b.Failed+lost != total {
		m.t.Errorf("not every task was retried: %+v", b)
	}
	const taken = `FROM commands WHERE parent_no IS NOT NULL AND dispatched_at IS NOT NULL`
	if n, tasks := m.count(`SELECT count(*) `+taken), m.count(`SELECT count(DISTINCT target_id) `+taken); n != tasks {
		m.t.Errorf("%d commands were handed over for %d tasks", n, tasks)
	}
	if n := m.count(`SELECT count(*) FROM bulk_retries`); n != m.round {
		m.t.Errorf("%d bulk retries are stored, want %d", n, m.round)
	}
	if n := m.count(`SELECT count(*) FROM commands WHERE status IN ('pending', 'dispatched')`); n != 0 {
		m.t.Errorf("%d commands are open", n)
	}
}

// TestDeathAroundEveryWriteOfABulkRetry lets the process die before and after the COMMIT of every write of a bulk retry in
// turn: its slices, its parent, each child, each hand-over, each result, the counts, the end, a cancel and a timeout. The
// database is opened again and it goes on by itself: no task is retried twice, and every one is accounted for.
func TestDeathAroundEveryWriteOfABulkRetry(t *testing.T) {
	t.Parallel()
	const total = 4
	for _, s := range scenes {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after commit %v", s.name, after), func(t *testing.T) {
				m := newMortal(t, after)
				for at := 1; ; at++ {
					m.next(at, total)
					m.left.Store(int64(at))
					m.play(s)
					m.left.Store(0)
					m.check(s, total)
					if t.Failed() {
						t.Fatalf("death at commit %d", at)
					}
					if m.killed == 0 {
						if at < 10 {
							t.Errorf("there were %d writes only", at-1)
						}
						return
					}
				}
			})
		}
	}
}
