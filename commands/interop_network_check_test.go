//go:build interop

package commands

import (
	"database/sql"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// within compares a time that was measured.
func within(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %v, want %v to %v", what, got, least, most)
	}
}

func (l *netLoop) daemon(d *daemonProcess) (row daemonRow) {
	l.t.Helper()
	l.get("/daemons/"+d.id(), &row)
	return row
}

// get asks control until it answers.
func (l *netLoop) get(path string, out any) {
	l.t.Helper()
	l.await(patience, path, func() (bool, any) {
		status, ok := l.ask("GET", path, nil, out)
		return ok && status == 200, status
	})
}

func (l *netLoop) job(c *archiveCase) (j jobDetail) {
	l.t.Helper()
	l.get("/jobs/"+c.job, &j)
	return j
}

// awaitStep waits until the step is at work: its machine has told that it began.
func (l *netLoop) awaitStep(c *archiveCase, step string) {
	l.t.Helper()
	l.await(patience, step+" runs", func() (bool, any) {
		j := l.job(c)
		if j.ended() || j.held() {
			l.t.Fatalf("the job is %s before %s was seen", j.State, step)
		}
		return j.State == "running" && j.Step != nil && *j.Step == step && l.told(c)["step_started "+step] > 0, j.jobRow
	})
}

// blackHole makes the machine silent, right after it sent something, and returns when.
func (l *netLoop) blackHole(h *host) time.Time {
	l.t.Helper()
	h.awaitPayload(patience)
	h.setHole(true)
	return time.Now()
}

// awaitOffline waits until control has marked the daemon offline and returns when it did.
func (l *netLoop) awaitOffline(d *daemonProcess) time.Time {
	l.t.Helper()
	var row daemonRow
	l.await(patience, d.name+" is offline", func() (bool, any) {
		row = l.daemon(d)
		return row.State == "offline" && row.OfflineAt != nil, row
	})
	return *row.OfflineAt
}

// awaitClosed waits until the daemon has no established socket and returns when that was seen.
func (l *netLoop) awaitClosed(d *daemonProcess) time.Time {
	l.t.Helper()
	return l.await(patience, d.name+" closes its socket", func() (bool, any) {
		n := sockets(l.t, d.cmd.Process.Pid, netip.MustParseAddr(controlAddress), tcpEstablished)
		return n == 0, n
	})
}

// takenOver waits for the registration from the new address and checks that nobody keeps the old socket.
func (l *netLoop) takenOver(d *daemonProcess, generation int64, old netip.Addr, addr string) {
	l.t.Helper()
	begun := time.Now()
	l.await(patience, d.name+" registers from its new address", func() (bool, any) {
		row := l.daemon(d)
		return row.Generation == generation && row.Attached && strings.HasPrefix(row.Remote, addr), row
	})
	l.t.Logf("%s took over from %s after %v", addr, old, time.Since(begun))
	l.await(slack, "the old socket is closed on both sides", func() (bool, any) {
		n := [2]int{sockets(l.t, l.control.cmd.Process.Pid, old, ""), sockets(l.t, d.cmd.Process.Pid, old, "")}
		return n == [2]int{}, n
	})
	if row := l.daemon(d); row.State != "online" || row.OfflineAt != nil {
		l.t.Errorf("%s is %s, offline at %v", d.name, row.State, row.OfflineAt)
	}
}

// waitsForVault checks the job of a machine that is offline, and what is told about it.
func (l *netLoop) waitsForVault(c *archiveCase) {
	l.t.Helper()
	j := l.job(c)
	if j.State != "waiting" || j.Waiting == nil || j.Waiting.Reason != "client_offline" || j.Waiting.ReturnsTo != "running" {
		l.t.Errorf("the job is %s, %+v", j.State, j.Waiting)
	}
	var x jobExplanation
	l.get("/jobs/"+c.job+"/explain", &x)
	if x.Summary != "The job waits for a daemon that is offline." || x.WaitsFor != "daemon vault" ||
		!strings.HasPrefix(x.NextAction, "Start the daemon or repair its connection: `signalbox daemons show ") ||
		!slices.ContainsFunc(x.Sentences, func(s string) bool { return strings.HasPrefix(s, "Daemon vault is offline, last seen ") }) {
		l.t.Errorf("explain: %+v", x)
	}
}

// completed waits for the end of the job and compares the copy.
func (l *netLoop) completed(c *archiveCase, limit time.Duration) {
	l.t.Helper()
	l.await(limit, "the job is completed", func() (bool, any) {
		j := l.job(c)
		if j.State != "completed" && (j.ended() || j.held()) {
			l.t.Fatalf("the job is %s: %v", j.State, j.Error)
		}
		return j.State == "completed", j.jobRow
	})
	l.same(c, l.vault, "target")
	l.same(c, l.nas, "source")
}

// netCommand is a command of a job with what became of its deliveries.
type netCommand struct {
	ID          string     `json:"id"`
	Kind        string     `json:"kind"`
	Step        *string    `json:"step"`
	StepAttempt uint32     `json:"step_attempt"`
	State       string     `json:"state"`
	Attempts    uint32     `json:"attempts"`
	FirstSentAt *time.Time `json:"first_sent_at"`
	AckedAt     *time.Time `json:"acked_at"`
	Deliveries  []struct {
		Attempt    uint32 `json:"attempt"`
		Generation int64  `json:"generation"`
		Outcome    string `json:"outcome"`
	} `json:"deliveries"`
}

// stepCommands are the commands that execute steps, oldest first.
func (l *netLoop) stepCommands(c *archiveCase) (list []netCommand) {
	l.t.Helper()
	var j struct{ Commands []netCommand }
	l.get("/jobs/"+c.job, &j)
	for _, k := range j.Commands {
		if k.Kind == "execute_step" && k.Step != nil {
			list = append(list, k)
		}
	}
	return list
}

// command is the last that executes the step; the zero one when there is none yet.
func (l *netLoop) command(c *archiveCase, step string) (last netCommand) {
	for _, k := range l.stepCommands(c) {
		if *k.Step == step {
			last = k
		}
	}
	return last
}

// story reads all entries of the job's timeline.
func (l *netLoop) story(c *archiveCase) (all []jobEntry) {
	l.t.Helper()
	for cursor := ""; ; {
		var page struct {
			Items      []jobEntry
			NextCursor *string `json:"next_cursor"`
		}
		path := "/jobs/" + c.job + "/timeline?limit=200"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		l.get(path, &page)
		all = append(all, page.Items...)
		if page.NextCursor == nil {
			return all
		}
		cursor = *page.NextCursor
	}
}

// waits are the reasons for which the job has waited.
func (l *netLoop) waits(c *archiveCase) (reasons []string) {
	l.t.Helper()
	for _, e := range l.story(c) {
		var d struct{ Reason string }
		if e.Event == "waiting" && json.Unmarshal(e.Detail, &d) == nil {
			reasons = append(reasons, d.Reason)
		}
	}
	return reasons
}

// told counts the events of the job's steps, such as "step_started verify".
func (l *netLoop) told(c *archiveCase) map[string]int {
	l.t.Helper()
	told := map[string]int{}
	for _, e := range l.story(c) {
		var d struct{ Event, Step string }
		if e.Event == "step" && json.Unmarshal(e.Detail, &d) == nil {
			told[d.Event+" "+d.Step]++
		}
	}
	return told
}

// once checks that every step of a completed job was commanded, begun and ended once, as control and as the machines hold it,
// and that the machines made each file once.
func (l *netLoop) once(c *archiveCase) {
	l.t.Helper()
	j := l.job(c)
	commanded := map[string]int{}
	for _, k := range l.stepCommands(c) {
		commanded[*k.Step]++
		if k.StepAttempt != 1 {
			l.t.Errorf("step %s was commanded as attempt %d", *k.Step, k.StepAttempt)
		}
	}
	told := l.told(c)
	leases := 0
	for _, d := range []*daemonProcess{l.nas, l.vault} {
		leases += l.machineOnce(d)
	}
	if len(j.StepList) == 0 || leases != len(j.StepList) {
		l.t.Errorf("the machines have %d leases of %d steps", leases, len(j.StepList))
	}
	for _, s := range j.StepList {
		if commanded[s.Step] != 1 || told["step_started "+s.Step] != 1 || told["step_completed "+s.Step] != 1 {
			l.t.Errorf("step %s: commanded %d times; events: %v", s.Step, commanded[s.Step], told)
		}
	}
}

// machineOnce reads a machine's database: the number of leases of steps, each begun once.
func (l *netLoop) machineOnce(d *daemonProcess) (leases int) {
	l.t.Helper()
	db, err := sql.Open("sqlite", "file:"+d.path("state", "daemon.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		l.t.Fatal(err)
	}
	defer db.Close()
	var steps, again int
	// 1 is a lease of a step.
	err = db.QueryRow(`SELECT count(*), count(DISTINCT step), count(*) FILTER (WHERE attempt <> 1 OR started <> 1) FROM leases
		WHERE kind = 1`).Scan(&leases, &steps, &again)
	if err != nil {
		l.t.Fatal(err)
	}
	if leases != steps || again > 0 {
		l.t.Errorf("%s: %d leases of %d steps, %d not begun or not the first", d.name, leases, steps, again)
	}
	var twice int
	err = db.QueryRow(`SELECT count(*) FROM (SELECT 1 FROM journal WHERE state = 'published' AND idx >= 0 GROUP BY step, idx
		HAVING count(*) > 1)`).Scan(&twice)
	if err != nil {
		l.t.Fatal(err)
	}
	if twice > 0 {
		l.t.Errorf("%s: %d files were published more than once", d.name, twice)
	}
	return leases
}
