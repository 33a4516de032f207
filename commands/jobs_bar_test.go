package commands

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestPercentAndBar(t *testing.T) {
	t.Parallel()
	nan := 0.0
	nan /= nan
	for _, tt := range []struct {
		f       float64
		percent string
		bar     string
	}{
		{-1, "0.0 %", ".........."}, {0, "0.0 %", ".........."}, {nan, "0.0 %", ".........."}, {0.099, "9.9 %", ".........."},
		{0.35, "35.0 %", "###......."}, {0.9999, "99.9 %", "#########."}, {1, "100.0 %", "##########"}, {7, "100.0 %", "##########"},
	} {
		if got := percent(tt.f); got != tt.percent {
			t.Errorf("%v: %q, want %q", tt.f, got, tt.percent)
		}
		if got := bar(tt.f, 10, false); got != tt.bar {
			t.Errorf("%v: %q, want %q", tt.f, got, tt.bar)
		}
	}
	if got := bar(0.5, 4, true); got != "██░░" {
		t.Errorf("%q", got)
	}
}

func TestETA(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		left, rate uint64
		want       string
	}{
		{0, 1, ""}, {1, 0, ""}, {10, 10, "1s"}, {11, 10, "2s"}, {3600, 1, "1h00m"}, {90, 1, "1m30s"}, {1 << 63, 1, ""},
	} {
		if got := eta(tt.left, tt.rate); got != tt.want {
			t.Errorf("%d at %d: %q, want %q", tt.left, tt.rate, got, tt.want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1.0 MiB", 5 << 40: "5.0 TiB", 1<<64 - 1: "16777216.0 TiB"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for text, want := range map[string]int64{"1": 1, "500MiB": 500 << 20, "10 GiB": 10 << 30, "1TiB": 1 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "lots", "1.5GiB", "10GB", "9223372036854775807TiB"} {
		if n, err := parseSize(text); err == nil {
			t.Errorf("%q is taken for %d", text, n)
		}
	}
}

func TestMeter(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var m meter
	read := func(step string, n uint64, after time.Duration) uint64 { return m.add(step, &n, at.Add(after)) }
	for i, tt := range []struct {
		step  string
		bytes uint64
		after time.Duration
		want  uint64
	}{
		{"transfer", 100, 0, 0}, {"transfer", 300, 2 * time.Second, 100}, {"transfer", 301, 2*time.Second + time.Millisecond, 100}, // bundled
		{"transfer", 700, 4 * time.Second, 130}, {"transfer", 50, 5 * time.Second, 0}, {"transfer", 150, 6 * time.Second, 100},
		{"verify", 160, 7 * time.Second, 0}, {"verify", 170, 8 * time.Second, 10},
	} {
		if got := read(tt.step, tt.bytes, tt.after); got != tt.want {
			t.Errorf("reading %d: %d, want %d", i, got, tt.want)
		}
	}
	if got := m.add("verify", nil, at.Add(9*time.Second)); got != 0 || m.step != "" {
		t.Errorf("unknown counters: rate %d, step %q", got, m.step)
	}
}

// fullJob is a job in the middle of its transfer.
func fullJob(at time.Time) *jobRow {
	done, total, step := uint64(1<<30), uint64(4<<30), "transfer"
	return &jobRow{ID: "01930000-0000-7000-8000-000000000001", Operation: "transfer", Title: "shows\x1b[31m", State: "running",
		Source: &jobPeer{Name: "nas"}, Target: &jobPeer{Name: "attic"}, Step: &step, StepNumber: 2, Steps: 5,
		Progress: jobProgress{Fraction: 0.25, OverallFraction: 0.225, BytesDone: &done, BytesTotal: &total, FilesDone: 3, FilesTotal: 12,
			BytesPerSecond: 64 << 20, MovedAt: &at}}
}

func TestPanel(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	p := panel{width: 79}
	j := fullJob(at)
	got := strings.Join(p.lines(j, at), "\n")
	want := `01930000-0000-7000-8000-000000000001  transfer shows?[31m  nas → attic
overall      [#######...........................]  22.5 %  running
TRANSFER     [########..........................]  25.0 %  step 2 of 5
             1.0 GiB of 4.0 GiB   3 of 12 files   64.0 MiB/s   ETA 48s`
	if got != want {
		t.Errorf("running:\n%s\nwant:\n%s", got, want)
	}
	j.State = "stalled"
	got = strings.Join(p.lines(j, at.Add(130*time.Second)), "\n")
	if !strings.HasSuffix(got, "\nSTALLED: no byte and no file has moved for 2m10s") || strings.Contains(got, "ETA") {
		t.Errorf("stalled:\n%s", got)
	}
	retry := at.Add(time.Minute)
	j.State, j.Waiting = "waiting", &jobWait{Reason: "no_space", Detail: "attic has 1 GiB too little", RetryAt: &retry}
	got = strings.Join(p.lines(j, at), "\n")
	if !strings.Contains(got, "waiting: no space") || !strings.HasSuffix(got, "waits: attic has 1 GiB too little; next look in 1m00s") {
		t.Errorf("waiting:\n%s", got)
	}
	// A narrow terminal never gets a line that wraps: what was drawn could not be drawn over.
	for width := 1; width < 120; width++ {
		p := panel{width: width, unicode: true}
		for _, line := range p.lines(j, at) {
			if utf8.RuneCountInString(line) > width {
				t.Errorf("width %d: %q", width, line)
			}
		}
	}
}

// What is drawn on a terminal is drawn over, and lines of the story stand above it.
func TestLiveWatcherDrawsInPlace(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var out, talk bytes.Buffer
	o := newOptions(Stdio{Out: &out, Err: &talk, IsTerminal: true}, Assets{})
	o.now = func() time.Time { return at }
	w := &liveWatcher{o: o, done: make(chan struct{}), panel: panel{}} // without the tick
	j := fullJob(at)
	rec := &streamRecord{Type: "job"}
	if err := w.record(rec, &jobRecord{Job: *j}); err != nil {
		t.Fatal(err)
	}
	if w.drawn != 4 || strings.Contains(out.String(), "\x1b[") {
		t.Errorf("first drawing of %d lines: %q", w.drawn, out.String())
	}
	out.Reset()
	entry := &jobEntry{At: &at, Event: "state", Detail: json.RawMessage(`{"from":"running","to":"stalled"}`)}
	if err := w.record(rec, &jobRecord{Entry: entry, Job: *j}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "\x1b[4A\r\x1b[J") || !strings.Contains(out.String(), "running → stalled\n01930000-") {
		t.Errorf("second drawing: %q", out.String())
	}
	out.Reset()
	w.notice("reconnecting")
	if talk.String() != "reconnecting\n" || !strings.HasPrefix(out.String(), "\x1b[4A\r\x1b[J01930000-") {
		t.Errorf("notice %q among %q", talk.String(), out.String())
	}
	out.Reset()
	w.close()
	w.close()
	w.notice("late")
	if out.Len() > 0 {
		t.Errorf("drawn after the end: %q", out.String())
	}
}

// Without a terminal progress is a line when it can be seen, or after a while.
func TestLineWatcherSaysWhatIsVisible(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var out bytes.Buffer
	o := newOptions(Stdio{Out: &out}, Assets{})
	o.now = func() time.Time { return at }
	w := &lineWatcher{o: o}
	j := *fullJob(at)
	feed := func(change func(*jobRow), after time.Duration) string {
		t.Helper()
		at = at.Add(after)
		out.Reset()
		change(&j)
		if err := w.record(&streamRecord{Type: "job"}, &jobRecord{Job: j}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := feed(func(*jobRow) {}, 0); !strings.HasSuffix(got, "progress   22.5 %  running  transfer 25.0 %  1.0 GiB of 4.0 GiB\n") {
		t.Errorf("first: %q", got)
	}
	if got := feed(func(j *jobRow) { j.Progress.Fraction = 0.2501 }, time.Second); got != "" {
		t.Errorf("hardly any progress: %q", got)
	}
	if got := feed(func(j *jobRow) { j.Progress.Fraction = 0.255 }, progressEvery); !strings.Contains(got, "25.5 %") {
		t.Errorf("hardly any progress for long: %q", got)
	}
	if got := feed(func(*jobRow) {}, progressEvery); got != "" {
		t.Errorf("no progress: %q", got)
	}
	if got := feed(func(j *jobRow) { j.Progress.Fraction = 0.27 }, time.Second); !strings.Contains(got, "27.0 %") {
		t.Errorf("visible progress: %q", got)
	}
	if got := feed(func(j *jobRow) { j.State = "stalled" }, time.Second); !strings.Contains(got, "stalled") {
		t.Errorf("another state: %q", got)
	}
}

func TestStoryWords(t *testing.T) {
	t.Parallel()
	nas := "nas"
	for _, tt := range []struct {
		event, detail, want string
	}{
		{"created", `{"operation":"transfer","title":"shows","by":"local"}`, "created: transfer of shows"},
		{"created", `{"placeholder":true}`, "found at nas, which reported it; control did not know it"},
		{"state", `{"from":"running","to":"cancelling","outcome":"failed","because":"no attempts left"}`, "running → cancelling, ends as failed; no attempts left"},
		{"waiting", `{"reason":"client_offline","returns_to":"running","detail":"nas is away"}`, "waits: client offline; nas is away"},
		{"command", `{"command":"execute_step","step":"stage","attempt":2}`, "command to nas: execute step STAGE (attempt 2)"},
		{"command", `{"command":"reconcile_job","disposition":"restore_definition"}`, "command to nas: reconcile job restore definition"},
		{"acked", `{"command":"assign_job","late":"parked"}`, "nas accepted assign job, late"},
		{"rejected", `{"command":"assign_job","error":{"code":"busy","message":"another job","retryable":true}}`, "nas refused assign job; another job (busy)"},
		{"exhausted", `{"command":"assign_job","attempts":3}`, "assign job was sent to nas 3 times without an answer"},
		{"step", `{"event":"step_completed","sequence":7,"step":"commit","committed":true}`, "nas reports step completed COMMIT, event 7, committed"},
		{"evidence", `{"step":"verify","sha256":"0123456789abcdef0123456789abcdef"}`, "evidence of VERIFY from nas, sha256 0123456789abcdef…"},
		{"refused", `{"event":"progress","sequence":9,"code":"stale_lease","because":"the lease is over"}`, "refused event 9 of nas (progress): stale_lease; the lease is over"},
		{"decision", `{"decision":"job.resolve","by":"key-1","reason":"disk lost"}`, "decided by key-1: job.resolve, because: disk lost"},
		{"move", `{"evict_job":"0193"}`, "goes on with job 0193, which gives up the source copy"},
		{"novel", `{"a":1}`, `novel nas {"a":1}`},
		{"state", `[]`, "state []"},
	} {
		e := jobEntry{Event: tt.event, Daemon: &nas, Detail: json.RawMessage(tt.detail)}
		if got := e.words(); got != tt.want {
			t.Errorf("%s %s:\n%q, want\n%q", tt.event, tt.detail, got, tt.want)
		}
	}
}

func TestEvidenceText(t *testing.T) {
	t.Parallel()
	raw := `{"stage":{"job_dir":"jobs/1.1","manifest_sha256":"` + strings.Repeat("ab", 32) + `","payload_files":2,"payload_logical_bytes":1048576,"backend_confirmed":false,
		"methods":{"MATERIALIZE_METHOD_HARDLINK":2}}}`
	want := "job dir jobs/1.1, manifest sha256 abababababab…, methods (hardlink 2), payload files 2, payload logical bytes 1.0 MiB"
	if got := evidenceText(json.RawMessage(raw)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := evidenceText(json.RawMessage("null")); got != "" {
		t.Errorf("no evidence: %q", got)
	}
}
