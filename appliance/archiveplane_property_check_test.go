package appliance_test

import (
	"database/sql"
	"fmt"
	"maps"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// propChecks remembers what must not go back.
type propChecks struct {
	committed map[string]bool // by place, job and daemon
	told      map[string]bool
}

// propRow is a job as control has it.
type propRow struct {
	No        int64
	ID        uuid.UUID
	Operation pb.JobOperation
	State     pb.JobState
	Wait      pb.WaitReason
	Detail    string
	Error     string
	ByPerson  bool
	Committed bool
}

func (j propRow) ended() bool { return j.State >= pb.JobState_JOB_STATE_COMPLETED }

// read runs a query on a database beside its owner and calls row for each row.
func (f *propFleet) read(path, query string, row func(scan func(...any) error) error) {
	f.t.Helper()
	db := f.readers[path]
	if db == nil {
		var err error
		if db, err = sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(20000)"); err != nil {
			f.t.Fatal(err)
		}
		f.readers[path] = db // reading the schema is most of the work
	}
	rows, err := db.Query(query)
	if err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			f.t.Fatalf("%s: %v", query, err)
		}
	}
	if err := rows.Err(); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
}

// unread ends the reading of a database, whose file may be taken away then.
func (f *propFleet) unread(path string) {
	if db := f.readers[path]; db != nil {
		_ = db.Close()
		delete(f.readers, path)
	}
}

// jobs are all jobs, placeholders too.
func (f *propFleet) jobs() (list []propRow) {
	f.t.Helper()
	f.read(f.DatabasePath(), `SELECT job_no, id, operation, state, wait_reason, wait_detail, error, ended_by_person, committed
		FROM archive_jobs ORDER BY job_no`, func(scan func(...any) error) error {
		var j propRow
		var id, detail []byte
		if err := scan(&j.No, &id, &j.Operation, &j.State, &j.Wait, &j.Detail, &detail, &j.ByPerson, &j.Committed); err != nil {
			return err
		}
		copy(j.ID[:], id)
		if detail != nil {
			var d pb.ErrorDetail
			if err := proto.Unmarshal(detail, &d); err != nil {
				return err
			}
			j.Error = d.GetCode().String() + ": " + d.GetMessage()
		}
		list = append(list, j)
		return nil
	})
	return list
}

// wrong tells of every row of a query that must have none, once.
func (f *propFleet) wrong(path, what, query string) {
	f.t.Helper()
	f.read(path, query, func(scan func(...any) error) error {
		var id []byte
		if err := scan(&id); err != nil {
			return err
		}
		job, _ := uuid.FromBytes(id)
		if key := what + job.String(); !f.checks.told[key] {
			f.checks.told[key] = true
			f.t.Errorf("job %s: %s\n%s", job, what, f.storyOf(job))
		}
		return nil
	})
}

// check holds both databases to what is true at every moment.
func (f *propFleet) check() {
	f.t.Helper()
	if f.checks.told == nil {
		f.checks.told, f.checks.committed = map[string]bool{}, map[string]bool{}
	}
	control := f.DatabasePath()
	f.flags(control, "control", `SELECT j.id, 'job', j.committed FROM archive_jobs j UNION ALL
		SELECT j.id, p.daemon_no || '/' || p.role, p.committed FROM archive_participants p JOIN archive_jobs j USING (job_no)`)
	f.wrong(control, "two steps are out at once", `SELECT j.id FROM daemon_commands c JOIN archive_jobs j USING (job_no) WHERE c.kind = 17
		AND (c.state IN ('pending', 'sent', 'parked') OR c.state = 'accepted' AND c.lease = 2) GROUP BY job_no HAVING count(*) > 1`)
	f.wrong(control, "events have a gap", `SELECT j.id FROM archive_events e JOIN archive_jobs j USING (job_no)
		GROUP BY job_no HAVING min(sequence) <> 1 OR max(sequence) <> count(*) OR max(sequence) <> j.last_sequence`)
	f.wrong(control, "it has ended and keeps a reservation", `SELECT id FROM archive_jobs j WHERE state >= 90 AND ended_by_person = 0
		AND EXISTS (SELECT 1 FROM archive_reservations r WHERE r.job_no = j.job_no AND r.released_at IS NULL)`)
	f.wrong(control, "it is active and has no reservation", `SELECT id FROM archive_jobs j WHERE state BETWEEN 12 AND 60
		AND kept_state <> 11 AND placeholder = 0 AND error IS NULL
		AND NOT EXISTS (SELECT 1 FROM archive_reservations r WHERE r.job_no = j.job_no AND r.released_at IS NULL)`)
	if !f.tampered.Load() {
		for _, d := range f.daemons {
			if d.db != nil {
				f.flags(d.database(), d.name, `SELECT job_id, 'job', committed FROM jobs`)
			}
		}
	}
	f.world.mu.Lock()
	faults := f.world.faults
	f.world.faults = nil
	f.world.mu.Unlock()
	for _, fault := range faults {
		f.t.Error(fault)
	}
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// flags looks for commit flags that went back.
func (f *propFleet) flags(path, where, query string) {
	f.t.Helper()
	f.read(path, query, func(scan func(...any) error) error {
		var id []byte
		var of string
		var committed bool
		if err := scan(&id, &of, &committed); err != nil {
			return err
		}
		job, _ := uuid.FromBytes(id)
		key := where + " " + job.String() + " " + of
		if f.checks.committed[key] && !committed {
			f.t.Errorf("%s: the commit flag of job %s went back (%s)\n%s", where, job, of, f.storyOf(job))
		}
		f.checks.committed[key] = committed
		return nil
	})
}

// count is the number that a query yields.
func (f *propFleet) number(path, query string) (n int) {
	f.t.Helper()
	f.read(path, query, func(scan func(...any) error) error { return scan(&n) })
	return n
}

const propUnanswered = `SELECT count(*) FROM daemon_commands c JOIN archive_jobs j USING (job_no)
	WHERE j.state >= 90 AND c.state IN ('pending', 'sent', 'parked')`

const propUntold = `SELECT count(*) FROM daemon_commands c JOIN archive_jobs j USING (job_no) WHERE j.state >= 90 AND c.state = 'parked'`

// settled tells whether nothing is left to do for any job, anywhere.
func (f *propFleet) settled() bool {
	f.t.Helper()
	for _, j := range f.jobs() {
		if !j.ended() {
			return false
		}
	}
	left := f.number(f.DatabasePath(), propUnanswered) +
		f.number(f.DatabasePath(), `SELECT count(*) FROM archive_reservations WHERE released_at IS NULL`)
	for _, d := range f.daemons {
		left += f.number(d.database(), `SELECT count(*) FROM jobs WHERE ended = 0 OR closing = 1`)
	}
	return left == 0
}

// judge compares what is told at the end with what has come about.
func (f *propFleet) judge() {
	f.t.Helper()
	f.check()
	ends := map[string]int{}
	for _, j := range f.jobs() {
		ends[strings.TrimPrefix(j.State.String(), "JOB_STATE_")]++
		p := f.world.effects(j.ID)
		committing := pb.JobStep_JOB_STEP_COMMIT
		if j.Operation == pb.JobOperation_JOB_OPERATION_EVICT {
			committing = pb.JobStep_JOB_STEP_RELEASE
		}
		_, stands := p.stands[committing]
		switch {
		case j.ByPerson:
		case j.State == pb.JobState_JOB_STATE_COMPLETED:
			for _, s := range archive.Plan(j.Operation) {
				if _, there := p.stands[s.Step]; !there || p.times[s.Step] != 1 && !f.tampered.Load() {
					f.t.Errorf("job %s is completed, %s took effect %d times, stands %v\n%s", j.ID, s.Step, p.times[s.Step], there, f.storyOf(j.ID))
				}
			}
		case stands:
			f.t.Errorf("job %s is %s and %s stands\n%s", j.ID, j.State, committing, f.storyOf(j.ID))
		case len(p.stands) > 0 && !f.tampered.Load():
			f.t.Errorf("job %s is %s and left %v\n%s", j.ID, j.State, p.stands, f.storyOf(j.ID))
		}
	}
	if !f.tampered.Load() {
		f.compare()
	}
	f.t.Logf("ends %v, messages %+v", ends, f.net.noise)
}

// effects copies what a job has brought about.
func (w *propWorld) effects(id uuid.UUID) propJob {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.jobs[id]
	if p == nil {
		return propJob{}
	}
	return propJob{stands: maps.Clone(p.stands), times: maps.Clone(p.times)}
}

// compare holds the events and flags of both sides against each other.
func (f *propFleet) compare() {
	f.t.Helper()
	type at struct {
		job      uuid.UUID
		sequence int64
	}
	control := map[at]*pb.JobEvent{}
	f.read(f.DatabasePath(), `SELECT j.id, e.sequence, e.message FROM archive_events e JOIN archive_jobs j USING (job_no)`,
		func(scan func(...any) error) error {
			k, e, err := propEvent(scan)
			control[at{k, int64(e.GetSequence())}] = e
			return err
		})
	for _, d := range f.daemons {
		f.read(d.database(), `SELECT job_id, sequence, event FROM outbox`, func(scan func(...any) error) error {
			job, e, err := propEvent(scan)
			k := at{job, int64(e.GetSequence())}
			if have := control[k]; !proto.Equal(have, e) {
				f.t.Errorf("job %s: event %d is %v at %s and %v at control\n%s", job, e.GetSequence(), e, d.name, have, f.storyOf(job))
			}
			delete(control, k)
			return err
		})
		// A daemon gives up what it has no confirmation of when the lease is retired, and control may have stored it: then no
		// snapshot may begin before it (2.9).
		f.read(d.database(), `SELECT job_id, command_id, trimmed_through FROM leases JOIN jobs USING (job_id) WHERE leases.state = 4`,
			func(scan func(...any) error) error {
				var id, lease []byte
				var through int64
				err := scan(&id, &lease, &through)
				job, _ := uuid.FromBytes(id)
				command, _ := uuid.FromBytes(lease)
				maps.DeleteFunc(control, func(k at, e *pb.JobEvent) bool {
					return k.job == job && e.GetCommandId() == command.String() && k.sequence <= through
				})
				return err
			})
		flags := map[string]bool{}
		f.read(d.database(), `SELECT job_id, committed FROM jobs`, func(scan func(...any) error) error {
			var id []byte
			var committed bool
			err := scan(&id, &committed)
			flags[string(id)] = committed
			return err
		})
		f.read(f.DatabasePath(), fmt.Sprintf(`SELECT j.id, p.committed FROM archive_participants p JOIN archive_jobs j USING (job_no)
			JOIN daemons d USING (daemon_no) WHERE d.name = '%s'`, d.name), func(scan func(...any) error) error {
			var id []byte
			var committed bool
			err := scan(&id, &committed)
			if flags[string(id)] != committed {
				job, _ := uuid.FromBytes(id)
				f.t.Errorf("job %s: the commit flag of %s is %v there and %v at control\n%s", job, d.name, flags[string(id)], committed, f.storyOf(job))
			}
			return err
		})
	}
	for k, e := range control {
		f.t.Errorf("job %s: control has event %d, which no daemon has: %v\n%s", k.job, k.sequence, e, f.storyOf(k.job))
	}
}

// propEvent scans a job, a sequence and an event.
func propEvent(scan func(...any) error) (job uuid.UUID, e *pb.JobEvent, err error) {
	var id, message []byte
	var sequence uint64
	e = &pb.JobEvent{}
	if err = scan(&id, &sequence, &message); err != nil {
		return job, e, err
	}
	copy(job[:], id)
	return job, e, proto.Unmarshal(message, e)
}

// story is what a failed test shows of all jobs that have not come to their end.
func (f *propFleet) story() string {
	var b strings.Builder
	for _, d := range f.daemons {
		fmt.Fprintf(&b, "%s runs: %v, away: %v\n", d.name, d.db != nil, d.away.Load())
	}
	fmt.Fprintf(&b, "clock %v, waiting %v, crashed %v\n", f.Clock.Now().Sub(epoch), f.net.waiting(), f.crashed.Load())
	f.read(f.DatabasePath(), `SELECT r.name || ': ' || r.state || ' broken ' || r.broken || ' ' || group_concat(s.side || ' state ' || s.state || ' quarantined ' ||
		s.quarantined || ' ' || s.quarantine) FROM archive_routes r JOIN archive_route_sides s USING (route_no) GROUP BY route_no`,
		func(scan func(...any) error) error {
			var line string
			err := scan(&line)
			fmt.Fprintln(&b, line)
			return err
		})
	shown := 0
	for _, j := range f.jobs() {
		left := f.number(f.DatabasePath(), propUnanswered+fmt.Sprintf(" AND job_no = %d", j.No)) +
			f.number(f.DatabasePath(), fmt.Sprintf("SELECT count(*) FROM archive_reservations WHERE released_at IS NULL AND job_no = %d", j.No))
		if j.ended() && left == 0 {
			fmt.Fprintf(&b, "job %s %s\n", j.ID, j.State)
			continue
		}
		if shown++; shown <= 2 {
			b.WriteString(f.storyOf(j.ID))
		} else {
			fmt.Fprintf(&b, "job %+v\n", j)
		}
	}
	for _, d := range f.daemons {
		f.read(d.database(), `SELECT lower(hex(job_id)) || ' state ' || state || ' ended ' || ended || ' closing ' || closing FROM jobs WHERE ended = 0 OR closing = 1`,
			func(scan func(...any) error) error {
				var line string
				err := scan(&line)
				fmt.Fprintln(&b, d.name, "has", line)
				return err
			})
	}
	return b.String()
}

// storyOf is everything that is known of a job.
func (f *propFleet) storyOf(id uuid.UUID) string {
	var b strings.Builder
	for _, j := range f.jobs() {
		if j.ID == id {
			fmt.Fprintf(&b, "%+v\n", j)
		}
	}
	lines := func(who, path, query string) {
		f.read(path, query, func(scan func(...any) error) error {
			var line string
			err := scan(&line)
			fmt.Fprintf(&b, "\t%s %s\n", who, line)
			return err
		})
	}
	hex := strings.ReplaceAll(id.String(), "-", "")
	lines("control", f.DatabasePath(), fmt.Sprintf(`SELECT t.at || ' ' || coalesce(d.name, '-') || ' ' || t.event || ' ' || t.state || ' ' || t.detail
		FROM archive_timeline t JOIN archive_jobs j USING (job_no) LEFT JOIN daemons d ON d.daemon_no = t.daemon_no
		WHERE j.id = x'%s' ORDER BY entry_no`, hex))
	lines("participant", f.DatabasePath(), fmt.Sprintf(`SELECT d.name || ' rev ' || p.revision || ' seq ' || p.sequence || ' state ' || p.state || ' committed ' ||
		p.committed || ' assigned ' || p.assigned || ' wound_down ' || p.wound_down || ' closed ' || p.closed || ' decided ' || p.decided_generation || ' of ' ||
		d.generation || ' online ' || d.online FROM archive_participants p JOIN archive_jobs j USING (job_no) JOIN daemons d USING (daemon_no) WHERE j.id = x'%s'`, hex))
	lines("command", f.DatabasePath(), fmt.Sprintf(`SELECT c.command_no || ' kind ' || c.kind || ' step ' || c.step || ' to ' || d.name || ' ' || c.state || ' lease ' || c.lease ||
		' attempts ' || c.attempts || '/' || c.allowance FROM daemon_commands c JOIN archive_jobs j USING (job_no) JOIN daemons d USING (daemon_no)
		WHERE j.id = x'%s' ORDER BY command_no`, hex))
	for _, d := range f.daemons {
		if d.db == nil {
			continue
		}
		lines(d.name, d.database(), fmt.Sprintf(`SELECT 'rev ' || revision || ' seq ' || sequence || ' confirmed ' || confirmed_revision || '/' || confirmed_sequence ||
			' state ' || state || ' committed ' || committed || ' ended ' || ended || ' closing ' || closing FROM jobs WHERE job_id = x'%s'`, hex))
		lines(d.name, d.database(), fmt.Sprintf(`SELECT 'event ' || sequence || ' kind ' || kind || ' step ' || step || ' sent ' || sent || ' acked ' || acked
			FROM outbox WHERE job_id = x'%s' ORDER BY sequence`, hex))
	}
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	if p := f.world.jobs[id]; p != nil {
		for _, line := range p.ledger {
			fmt.Fprintf(&b, "\tworld %s\n", line)
		}
	}
	return b.String()
}
