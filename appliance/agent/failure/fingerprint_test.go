package failure

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const plain = `Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/celery/app/trace.py", line 477, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/srv/app/billing/tasks.py", line 12, in charge
    gateway.pay(order)
  File "/srv/app/billing/gateway.py", line 88, in pay
    raise Declined(order)
billing.errors.Declined: order 4711 was declined at 0x7f3a
`

// identify is Identify of a traceback whose exception was reported as a bare class.
func identify(traceback string) Identity {
	return Identify("celery", "billing.charge", "Declined", traceback)
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	pay := []string{"billing/gateway.py in pay", "billing/tasks.py in charge"}
	for name, tt := range map[string]struct {
		exception, traceback string
		class                string
		frames               []string
	}{
		"a class and a traceback":      {"Declined", plain, "Declined", pay},
		"the class of the traceback":   {"", plain, "billing.errors.Declined", pay},
		"RQ: all in the exception":     {plain, "", "billing.errors.Declined", pay},
		"Dramatiq: class and message":  {"ValueError: no 7", "", "ValueError", nil},
		"repr":                         {"KeyError('id')", "", "KeyError", nil},
		"a dotted class":               {"redis.exceptions.ConnectionError: Error 111 connecting to 10.0.0.7:6379", "", "redis.exceptions.ConnectionError", nil},
		"a local class":                {"m.f.<locals>.Bad: x", "", "m.f.<locals>.Bad", nil},
		"a message of many lines":      {"ValueError: one\ntwo: three", "", "ValueError", nil},
		"no class at all":              {"connection refused by 10.0.0.7", "", "", nil},
		"nothing":                      {"", "", "", nil},
		"another language":             {"Error: boom", "Error: boom\n    at run (/srv/app/index.js:10:5)\n    at main (/srv/app/index.js:20:1)\n", "Error", nil},
		"a class without a message":    {"", "Traceback (most recent call last):\n  File \"a/b.py\", line 1, in f\n    g()\nKeyboardInterrupt\n", "KeyboardInterrupt", []string{"a/b.py in f"}},
		"carriage returns":             {"", strings.ReplaceAll(plain, "\n", "\r\n"), "billing.errors.Declined", pay},
		"a source line like a header":  {"E", "Traceback (most recent call last):\n  File \"a/b.py\", line 1, in f\n    ValueError: x\nE: y\n", "E", []string{"a/b.py in f"}},
		"only libraries":               {"E", "Traceback (most recent call last):\n  File \"/v/site-packages/x/y.py\", line 1, in f\nE: y\n", "E", []string{"x/y.py in f"}},
		"a syntax error has no frame":  {"", "Traceback (most recent call last):\n  File \"/a/b.py\", line 3, in f\n    import c\n  File \"/a/c.py\", line 9\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n", "SyntaxError", []string{"a/b.py in f"}},
		"a name that is no class":      {"1Error: x", "", "", nil},
		"a very long name is no class": {strings.Repeat("x", 300) + ": y", "", "", nil},
	} {
		got := Identify("celery", "billing.charge", tt.exception, tt.traceback)
		if got.Class != tt.class || !slices.Equal(got.Frames, tt.frames) {
			t.Errorf("%s: class %q frames %q, want %q %q", name, got.Class, got.Frames, tt.class, tt.frames)
		}
		if len(got.Fingerprint) != 64 {
			t.Errorf("%s: fingerprint %q", name, got.Fingerprint)
		}
	}
}

func TestFingerprintStays(t *testing.T) {
	t.Parallel()
	want := identify(plain).Fingerprint
	r := func(old, new string) string {
		if !strings.Contains(plain, old) {
			t.Fatalf("no %q in the traceback", old)
		}
		return strings.ReplaceAll(plain, old, new)
	}
	for name, text := range map[string]string{
		"another message":        r("order 4711 was declined at 0x7f3a", "order 12 was declined by 8f14e45f-ceea-467f-a8fe-0d9d5e4b1d10"),
		"other line numbers":     r("line 12", "line 1200"),
		"another environment":    r("/srv/venv/lib/python3.12/", "/home/u/.cache/envs/p-3f2a/lib/python3.14/"),
		"Debian's packages":      r("/srv/venv/lib/python3.12/site-packages/", "/usr/lib/python3/dist-packages/"),
		"another directory":      r("/srv/app/", "/opt/releases/20260601/"),
		"another source line":    r("gateway.pay(order)", "return gateway.pay(order)"),
		"an upgraded library":    r("in trace_task", "in trace_task_fast"),
		"markers below the code": r("    gateway.pay(order)\n", "    gateway.pay(order)\n    ~~~~~~~~~~~^^^^^^^\n"),
		"no source at hand":      r("    gateway.pay(order)\n", ""),
		"a note on the error":    plain + "a note: with a colon\n",
		"backslashes":            r("/srv/app/billing/", `C:\app\billing\`),
		"a recursion":            r("    gateway.pay(order)\n", "    gateway.pay(order)\n  File \"/srv/app/billing/tasks.py\", line 14, in charge\n    charge()\n  [Previous line repeated 990 more times]\n"),
	} {
		if got := identify(text); got.Fingerprint != want {
			t.Errorf("%s changes the fingerprint: %q", name, got.Frames)
		}
	}
}

func TestFingerprintTellsApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	add := func(name string, id Identity) {
		if other, ok := seen[id.Fingerprint]; ok {
			t.Errorf("%s and %s are one group", name, other)
		}
		seen[id.Fingerprint] = name
	}
	add("plain", identify(plain))
	add("another engine", Identify("rq", "billing.charge", "Declined", plain))
	add("another task", Identify("celery", "billing.refund", "Declined", plain))
	add("another class", Identify("celery", "billing.charge", "Expired", plain))
	add("another function", identify(strings.ReplaceAll(plain, "in pay", "in settle")))
	add("another file", identify(strings.ReplaceAll(plain, "billing/gateway.py", "billing/bank.py")))
	add("no traceback", identify(""))
	add("joined otherwise", Identify("celer", "ybilling.charge", "Declined", plain))
}

func TestChainsAndGroups(t *testing.T) {
	t.Parallel()
	cause := strings.ReplaceAll(plain, "in pay", "in connect")
	for _, link := range []string{chainContext, chainCause} {
		text := cause + "\n" + link + "\n\n" + plain
		if got := identify(text); got.Fingerprint != identify(plain).Fingerprint {
			t.Errorf("%s: %q", link, got.Frames)
		}
		// Cut after the first traceback: what ended the task is not there, and the outermost frames are what is sure.
		got := Identify("celery", "billing.charge", "", cause+"\n"+link+"\n\nTraceback (most rec")
		if want := []string{"billing/tasks.py in charge"}; !slices.Equal(got.Frames, want) {
			t.Errorf("%s, cut: %q, want %q", link, got.Frames, want)
		}
	}
	group := `  + Exception Group Traceback (most recent call last):
  |   File "/srv/app/billing/tasks.py", line 12, in charge
  |     async with asyncio.TaskGroup() as g:
  |   File "/usr/lib/python3.12/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/app/billing/gateway.py", line 88, in pay
    |     raise Declined(order)
    | Declined: 7
    +------------------------------------
`
	got := Identify("celery", "billing.charge", "", group)
	if got.Class != "ExceptionGroup" || !slices.Equal(got.Frames, []string{"billing/tasks.py in charge"}) {
		t.Errorf("group: %q %q", got.Class, got.Frames)
	}
}

// TestCut: agents and the server cut long tracebacks at their end, in the middle of anything. From some length on every cut
// is the same group.
func TestCut(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("Traceback (most recent call last):\n")
	for _, fn := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		b.WriteString("  File \"/srv/app/billing/" + fn + ".py\", line 7, in " + fn + "\n    next()\n")
	}
	b.WriteString("Declined: 7\n")
	whole := b.String()
	sixth := strings.Index(whole, "in g\n")
	for _, mark := range []string{"", "\n[... traceback truncated ...]", "…[truncated]"} {
		var want string
		for n := sixth + len("in g\n"); n < strings.Index(whole, "Declined"); n++ {
			got := identify(whole[:n] + mark)
			if want == "" {
				want = got.Fingerprint
			}
			if got.Fingerprint != want || !slices.Equal(got.Frames, []string{"billing/e.py in e", "billing/d.py in d", "billing/c.py in c",
				"billing/b.py in b", "billing/a.py in a"}) {
				t.Fatalf("mark %q, %d bytes: %q", mark, n, got.Frames)
			}
		}
	}
	if got := identify(whole); got.Frames[0] != "billing/j.py in j" || len(got.Frames) != maxFrames {
		t.Errorf("whole: %q", got.Frames)
	}
}

func TestPlaceOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		place   string
		library bool
	}{
		"/srv/app/billing/tasks.py":             {"billing/tasks.py", false},
		"tasks.py":                              {"tasks.py", false},
		"./tasks.py":                            {"tasks.py", false},
		"/tasks.py":                             {"tasks.py", false},
		"/opt/releases/20260601120000/tasks.py": {"#/tasks.py", false},
		"/opt/app-1.4.2/tasks.py":               {"app-#.#.#/tasks.py", false},
		"/builds/3f2a9c1d/tasks.py":             {"#/tasks.py", false},
		"/tmp/tmp8k2j/v2.py":                    {"tmp#k#j/v2.py", false},
		"/venv/lib/python3.12/site-packages/celery/app/trace.py":      {"celery/app/trace.py", true},
		`C:\venv\Lib\site-packages\celery\app\trace.py`:               {"celery/app/trace.py", true},
		"/usr/lib/python3/dist-packages/redis/client.py":              {"redis/client.py", true},
		"/v/site-packages/redis-2.10-py3.9.egg/redis/client.py":       {"redis/client.py", true},
		"/v/a/site-packages/b/site-packages/c.py":                     {"c.py", true},
		"/usr/lib/python3.12/asyncio/base_events.py":                  {"asyncio/base_events.py", true},
		"/root/.pyenv/versions/3.12.1/lib/python3.12/json/decoder.py": {"json/decoder.py", true},
		"/opt/python3.12/lib/python3.12/json/decoder.py":              {"json/decoder.py", true},
		`C:\Python312\Lib\json\decoder.py`:                            {"json/decoder.py", true},
		"/usr/lib/python312.zip/json/decoder.py":                      {"json/decoder.py", true},
		"/srv/python/tasks.py":                                        {"python/tasks.py", false},
		"<string>":                                                    {"<string>", false},
		"<frozen importlib._bootstrap>":                               {"<frozen importlib._bootstrap>", true},
		"<ipython-input-3-5a1d0d1b7f10>":                              {"<ipython-input-#-#>", false},
	} {
		if place, library := placeOf(path); place != want.place || library != want.library {
			t.Errorf("%s: %q %v, want %q %v", path, place, library, want.place, want.library)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add("celery", "billing.charge", "Declined", plain)
	f.Add("rq", "", plain, "")
	f.Add("dramatiq", "a", "ValueError: x", "")
	f.Add("celery", "a", "", plain+"\n"+chainCause+"\n\n"+plain)
	f.Add("celery", "a", "", "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in f\n  | E: x\n  +-+------ 1 ---")
	f.Fuzz(func(t *testing.T, engine, name, exception, traceback string) {
		id := Identify(engine, name, exception, traceback)
		if len(id.Fingerprint) != 64 || id.Fingerprint == CatchAll {
			t.Fatalf("fingerprint %q", id.Fingerprint)
		}
		if len(id.Frames) > maxFrames || len(id.Class) > maxNameBytes {
			t.Fatalf("%d frames, class of %d bytes", len(id.Frames), len(id.Class))
		}
		for _, fr := range id.Frames {
			if len(fr) > 2*maxNameBytes+len(" in ") || utf8.ValidString(traceback+exception) && !utf8.ValidString(fr) {
				t.Fatalf("frame %q", fr)
			}
		}
		if again := Identify(engine, name, exception, traceback); again.Fingerprint != id.Fingerprint {
			t.Fatal("not stable")
		}
	})
}
