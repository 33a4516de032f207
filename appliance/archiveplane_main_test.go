package appliance_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox/appliance"
	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
)

// archiveRig is a control with two machines: content goes from nas to vault, whose daemon sees the outbox of nas. Control
// lives by a clock that tests move ahead; daemons reach it through proxies and come back at once.
type archiveRig struct {
	*appliancetest.Server
	t          *testing.T
	clock      *appliancetest.Jump
	nas, vault *machine
	route      string
	logs       *logs
	secrets    []string // texts that no log and no database may hold
}

// machine is a machine with what tests do to it.
type machine struct {
	*appliancetest.Machine
	*reins
	clock *appliancetest.Jump
	wire  *appliancetest.Proxy
}

// logs collects what control and daemons log.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if appliancetest.DebugLog != nil {
		_, _ = appliancetest.DebugLog.Write(p)
	}
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type archiveError struct {
	Code, Message string
	Retryable     bool
	Details       map[string]string
}

type archiveJob struct {
	ID         string
	Operation  string
	State      string
	Step       *string
	Waiting    *struct{ Reason, Detail string }
	Error      *archiveError
	Title      string
	ParentID   *string `json:"parent_id"`
	EvictAfter bool    `json:"evict_after"`
	Committed  bool
	Foreign    bool
	Attempt    int
	Progress   struct {
		OverallFraction float64 `json:"overall_fraction"`
	}
	Participants []struct {
		Role, Daemon, State string
		Committed, Closed   bool
	}
	StepList []struct {
		Step, State string
		Attempts    int
		Evidence    map[string]map[string]any
	} `json:"step_list"`
	Commands    []archiveCommand
	Explanation struct {
		Summary    string
		Sentences  []string
		WaitsFor   string `json:"waits_for"`
		NextAction string `json:"next_action"`
	}
}

type archiveCommand struct {
	ID, Kind, State string
	Step            *string
	StepAttempt     int `json:"step_attempt"`
	Attempts        int
	Error           *archiveError
}

// step is what the job tells of one of its steps.
func (j *archiveJob) step(name string) (attempts int, evidence map[string]any) {
	for _, s := range j.StepList {
		if s.Step == name {
			return s.Attempts, s.Evidence[name]
		}
	}
	return 0, nil
}

type archivePreview struct {
	ID       string
	State    string
	Error    *archiveError
	Warnings []string
	Summary  map[string]any
}

// newArchiveRig starts control; the machines are made and not started.
func newArchiveRig(t *testing.T, opts ...appliancetest.Option) *archiveRig {
	t.Helper()
	r := &archiveRig{t: t, clock: appliancetest.NewJump(0), logs: &logs{}}
	opts = append([]appliancetest.Option{appliancetest.WithClock(r.clock), appliancetest.WithLog(r.logs), configure(func(c *config.Config) {
		c.Agent.RateLimits = false
		c.Archive.ReconnectInitial, c.Archive.ReconnectCap = config.Duration(10*time.Millisecond), config.Duration(100*time.Millisecond)
		c.Archive.OfflineThreshold = config.Duration(time.Hour) // tests jump by minutes
	})}, opts...)
	r.Server = appliancetest.Start(t, opts...)
	r.nas = r.machine("nas")
	r.vault = r.machine("vault", appliancetest.SeesOutboxOf(r.nas.Machine))
	t.Cleanup(func() { r.secretsKept() })
	return r
}

// machine makes a machine; it is not started.
func (r *archiveRig) machine(name string, opts ...appliancetest.MachineOption) *machine {
	r.t.Helper()
	m := &machine{reins: newReins(r.t), clock: appliancetest.NewJump(0), wire: appliancetest.StartProxy(r.t, strings.TrimPrefix(r.URL(), "http://"))}
	m.Machine = r.NewMachine(name, append([]appliancetest.MachineOption{appliancetest.Through(m.wire), appliancetest.LogTo(r.logs)}, opts...)...)
	m.Options.Clock = m.clock
	m.reins.take(m.Machine)
	return m
}

// restartWith stops control, has something done while it is down, and starts it again; the daemons find it where they look.
func (r *archiveRig) restartWith(down func()) {
	r.t.Helper()
	r.Stop()
	down()
	r.Restart()
	for _, m := range []*machine{r.nas, r.vault} {
		m.wire.Retarget(strings.TrimPrefix(r.URL(), "http://"))
		m.wire.CutAll()
	}
}

// secretsKept fails the test if the token of daemons, or another secret, is in a log, in a database or in any other file
// of control or of a daemon but the token's own.
func (r *archiveRig) secretsKept() {
	r.t.Helper()
	token, err := os.ReadFile(filepath.Join(r.Config.DataDir, appliance.DaemonTokenFile))
	if err != nil {
		r.t.Fatal(err)
	}
	secrets := append([]string{strings.TrimSpace(string(token))}, r.secrets...)
	look := func(where string, text []byte) {
		for i, s := range secrets {
			if bytes.Contains(text, []byte(s)) {
				r.t.Errorf("secret %d is in %s", i, where)
			}
		}
	}
	look("the logs", []byte(r.logs.String()))
	for _, dir := range []string{r.Config.DataDir, r.nas.Path("state", ""), r.vault.Path("state", "")} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || d.Name() == appliance.DaemonTokenFile {
				return err
			}
			text, err := os.ReadFile(path)
			look(path, text)
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			r.t.Error(err)
		}
	}
}

// start starts both daemons and makes the route between them ready.
func (r *archiveRig) start() {
	r.t.Helper()
	r.nas.Start()
	r.vault.Start()
	r.connect()
}

// connect makes the route between the machines ready.
func (r *archiveRig) connect() {
	r.t.Helper()
	r.online(r.nas)
	r.online(r.vault)
	var route struct{ ID string }
	r.Do("POST", "/routes", map[string]any{"name": "nas to vault", "source": r.nas.ID, "target": r.vault.ID, "source_root": "nas-outbox",
		"target_root": "vault-receive", "shared_marker": "nas-outbox"}, 201, &route)
	r.route = route.ID
	r.Eventually("the route", func() bool {
		var now struct{ Ready bool }
		r.Do("GET", "/routes/"+r.route, nil, 200, &now)
		return now.Ready
	})
}

// online waits until control takes the daemon for there.
func (r *archiveRig) online(m *machine) {
	r.t.Helper()
	r.Eventually("daemon "+m.Name, func() bool {
		status, body := r.Admin("GET", "/daemons/"+m.ID.String(), nil)
		return status == 200 && bytes.Contains(body, []byte(`"state":"online"`))
	})
}

// resource finds a resource of a machine by its name. Content without a torrent is listed once the daemon has read it.
func (r *archiveRig) resource(m *machine, name string) (id string) {
	r.t.Helper()
	r.Eventually("resource "+name+" of machine "+m.Name, func() bool {
		r.Do("POST", "/daemons/"+m.ID.String()+"/inventory", map[string]any{"scope": "resources"}, 200, nil)
		var page struct {
			Items []struct {
				ResourceID string `json:"resource_id"`
				Name       string
			}
		}
		r.Do("GET", "/daemons/"+m.ID.String()+"/resources", nil, 200, &page)
		for _, i := range page.Items {
			if i.Name == name {
				id = i.ResourceID
			}
		}
		return id != ""
	})
	return id
}

// preview asks for a preview and waits for it.
func (r *archiveRig) preview(request map[string]any) archivePreview {
	r.t.Helper()
	status, body := r.Admin("POST", "/job-previews?wait=30", request)
	var p archivePreview
	for deadline := time.Now().Add(2 * appliancetest.Wait); ; {
		if status != 200 && status != 202 || time.Now().After(deadline) {
			r.t.Fatalf("preview: %d %s", status, body)
		}
		p = archivePreview{}
		decodeInto(r.t, body, &p)
		if status == 200 {
			return p
		}
		status, body = r.Admin("GET", "/job-previews/"+p.ID+"?wait=30", nil)
	}
}

// startJob starts a preview that passed.
func (r *archiveRig) startJob(p archivePreview) archiveJob {
	r.t.Helper()
	if p.State != "passed" {
		r.t.Fatalf("preview %s: %+v", p.State, p.Error)
	}
	var j archiveJob
	r.Do("POST", "/jobs", map[string]any{"preview_id": p.ID}, 201, &j)
	return j
}

// transfer is what is asked for to copy a resource of nas to vault.
func (r *archiveRig) transfer(name string, more map[string]any) map[string]any {
	r.t.Helper()
	request := map[string]any{"operation": "transfer", "source": map[string]any{"daemon": r.nas.ID, "resource": r.resource(r.nas, name)},
		"target": map[string]any{"daemon": r.vault.ID}, "route": r.route, "destination": map[string]any{"root": "vault-content"},
		"policies": map[string]any{"keep_free_bytes": 1}}
	for k, v := range more {
		request[k] = v
	}
	return request
}

// job reads a job.
func (r *archiveRig) job(id string) archiveJob {
	r.t.Helper()
	var j archiveJob
	r.Do("GET", "/jobs/"+id, nil, 200, &j)
	return j
}

// lookEvery is the pause between two looks at something that must come.
const lookEvery = 25 * time.Millisecond

// Eventually is that of the server with fewer looks.
func (r *archiveRig) Eventually(what string, condition func() bool) {
	r.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * appliancetest.Wait); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			_, jobs := r.Admin("GET", "/jobs", nil)
			r.t.Fatalf("%s: did not come within %v: %s\n%+v %+v\n%s", what, 2*appliancetest.Wait, jobs, r.nas.lastStatus(), r.vault.lastStatus(), r.logs)
		}
	}
}

// await waits until a job is in one of the states.
func (r *archiveRig) await(id string, states ...string) archiveJob {
	r.t.Helper()
	return r.awaitJob(id, strings.Join(states, " or "), func(j archiveJob) bool { return slices.Contains(states, j.State) })
}

// awaitWait waits until a job waits for the reason.
func (r *archiveRig) awaitWait(id, reason string) archiveJob {
	r.t.Helper()
	return r.awaitJob(id, "waiting for "+reason, func(j archiveJob) bool { return j.Waiting != nil && j.Waiting.Reason == reason })
}

// awaitJob waits until a job is as it should be. A job that goes no further by itself fails the test at once.
func (r *archiveRig) awaitJob(id, what string, as func(archiveJob) bool) archiveJob {
	r.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * appliancetest.Wait); ; <-tick.C {
		j := r.job(id)
		if as(j) {
			return j
		}
		if time.Now().After(deadline) || slices.Contains([]string{"completed", "failed", "cancelled", "manual"}, j.State) {
			r.t.Fatalf("job is %s and not %s: %s\n%s", j.State, what, r.story(id), r.logs)
		}
	}
}

// fails checks what a job that failed says: the code, and words of the message.
func (r *archiveRig) fails(j archiveJob, code string, words ...string) {
	r.t.Helper()
	if j.Error == nil || j.Error.Code != code {
		r.t.Fatalf("the job's error is %+v, want %s: %s", j.Error, code, r.story(j.ID))
	}
	for _, w := range words {
		if !strings.Contains(j.Error.Message, w) {
			r.t.Errorf("the message does not say %q: %q", w, j.Error.Message)
		}
	}
}

// refused checks a preview that did not pass.
func (r *archiveRig) refused(p archivePreview, code string, words ...string) {
	r.t.Helper()
	if p.State != "failed" || p.Error == nil || p.Error.Code != code {
		r.t.Fatalf("preview %s: %+v, want %s", p.State, p.Error, code)
	}
	for _, w := range words {
		if !strings.Contains(p.Error.Message, w) {
			r.t.Errorf("the message does not say %q: %q", w, p.Error.Message)
		}
	}
}

// explained checks what an operator reads about a job.
func (r *archiveRig) explained(id string, words ...string) {
	r.t.Helper()
	x := r.job(id).Explanation
	text := strings.Join(append([]string{x.Summary, x.WaitsFor, x.NextAction}, x.Sentences...), "\n")
	for _, w := range words {
		if !strings.Contains(text, w) {
			r.t.Errorf("the explanation does not say %q:\n%s", w, text)
		}
	}
}

// alerted waits for an open alert of the kind.
func (r *archiveRig) alerted(kind string) {
	r.t.Helper()
	r.Eventually("alert "+kind, func() bool {
		var alerts []struct{ Kind string }
		r.Do("GET", "/alerts?cleared=true", nil, 200, &alerts)
		return slices.ContainsFunc(alerts, func(a struct{ Kind string }) bool { return a.Kind == kind })
	})
}

// run starts a transfer of a resource of nas to vault.
func (r *archiveRig) run(name string, more map[string]any) archiveJob {
	r.t.Helper()
	return r.startJob(r.preview(r.transfer(name, more)))
}

// scenes runs the scenes one after the other, each with empty content and machines that nothing is done to, and waits after
// each until the machines have removed the job's own files and are through with it.
func (r *archiveRig) scenes(list ...func(*archiveRig)) {
	r.t.Helper()
	for _, scene := range list {
		scene(r)
		for _, m := range []*machine{r.nas, r.vault} {
			m.reset()
		}
		r.clean()
		r.rest()
		r.wipe(r.nas)
		r.wipe(r.vault)
	}
}

// rest waits until no daemon has anything left to do for a job: after the files are gone it still notes that they are, and a
// scene that ends it at the next removal would end it at that one.
func (r *archiveRig) rest() {
	r.t.Helper()
	r.Eventually("all machines to be through with their jobs", func() bool {
		for _, m := range []*machine{r.nas, r.vault} {
			if s := m.status(); len(s.Closing)+len(s.Jobs) > 0 {
				return false
			}
		}
		return true
	})
}

// wipe removes the content of a machine.
func (r *archiveRig) wipe(m *machine) {
	r.t.Helper()
	entries, err := os.ReadDir(m.Path("content", ""))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == ".archive-control" {
			continue
		}
		if err := os.RemoveAll(m.Path("content", e.Name())); err != nil {
			r.t.Fatal(err)
		}
	}
}

// clean waits until no machine has files of a job of its own.
func (r *archiveRig) clean() {
	r.t.Helper()
	r.Eventually("all machines to remove the job's own files", func() bool {
		return len(leftovers(r.t, r.nas))+len(leftovers(r.t, r.vault)) == 0
	})
}

// story is the whole timeline of a job, for a test that fails.
func (r *archiveRig) story(id string) string {
	_, job := r.Admin("GET", "/jobs/"+id, nil)
	_, lines := r.Admin("GET", "/jobs/"+id+"/timeline?limit=500", nil)
	return fmt.Sprintf("%s\n%s", job, lines)
}
