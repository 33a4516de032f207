package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store/storetest"
)

const (
	durable   = agent.Durable
	dropped   = agent.Drop
	transient = agent.Transient
	revoked   = agent.Revoked
)

const taskRow = `SELECT name || ' ' || state || ' ' || priority || ' ' || coalesce(queue, '-') || ' ' || coalesce(worker_name, '-')
	|| ' ' || coalesce(args, '-') || ' ' || coalesce(kwargs, '-') || ' ' || coalesce(result, '-') || ' ' || coalesce(exception, '-')
	|| ' ' || coalesce(runtime_ms, '-') || ' ' || retry_count FROM tasks ORDER BY task_no`

func TestDispatchStoresAndProjects(t *testing.T) {
	g := newIngestRig(t)
	watch := g.hub.Watch(agent.ProjectEvents(1))
	defer watch.Stop()
	f := batch(t,
		event("task.received", "t-1", 0, `{"task_name":"mail.send","queue":"q1","worker":"celery@a","args":[1.50],"kwargs":{"iban":"DE1","password":"x","n":2}}`),
		event("task.started", "t-1", 1500*time.Millisecond, `{"worker":"celery@a"}`),
		`{"kind":"task.sent","engine":""}`, `7`,
		event("task.succeeded", "t-1", 3*time.Second, `{"result":{"ok":1},"runtime_ms":1500,"priority":"high"}`),
		event("worker.offline", "", 4*time.Second, `{"worker":"celery@b"}`),
	)
	g.want("first", g.one(f), "1 6/4")
	select {
	case <-watch.C():
	default:
		t.Error("no hint after new events")
	}
	g.want("task", g.text(taskRow), `mail.send success high q1 celery@a [1.50] {"iban":"[REDACTED]","password":"[REDACTED]","n":2} {"ok":1} - 1500 0`)
	g.want("times", g.text(`SELECT (received_at - ?1) || ' ' || (started_at - ?1) || ' ' || (finished_at - ?1) FROM tasks`,
		ingestStart.UnixMicro()), "0 1500000 3000000")
	g.want("events", g.text(`SELECT kind || ' ' || coalesce(task_no, '-') || ' ' || (occurred_at - ?) FROM events ORDER BY event_no`,
		ingestStart.UnixMicro()), "task.received 1 0 | task.started 1 1000000 | task.succeeded 1 3000000 | worker.offline - 4000000")
	g.want("payload", g.text(`SELECT payload FROM events WHERE kind = 'task.received'`),
		`{"task_name":"mail.send","queue":"q1","worker":"celery@a","args":[1.50],"kwargs":{"iban":"[REDACTED]","password":"[REDACTED]","n":2}}`)
	g.want("workers", g.text(`SELECT name || ' ' || state || ' ' || (last_heartbeat - ?) FROM workers ORDER BY name`,
		ingestStart.UnixMicro()), "celery@a online 1500000 | celery@b offline 4000000")
	g.want("queues", g.text(`SELECT engine || ' ' || name FROM queues`), "celery q1")
	g.want("agent", g.text(`SELECT state FROM agents`), "online")
	g.want("slot", g.text(`SELECT state FROM agent_workers`), "online")

	before := g.text(`SELECT updated_at FROM tasks`)
	g.clock.Advance(time.Minute)
	g.want("replay", g.one(f), "1 6/0")
	g.want("rows after replay", g.text(`SELECT count(*) FROM events`), "4")
	g.want("task after replay", g.text(`SELECT updated_at FROM tasks`), before)
	select {
	case <-watch.C():
		t.Error("a hint for a replay")
	default:
	}
	if fmt.Sprint(g.seen.ended) != "[mail.send task.succeeded 1.5s]" || g.seen.stored["celery task.started"] != 1 {
		t.Errorf("observed %+v", g.seen)
	}
}

func TestDispatchAcrossCalls(t *testing.T) {
	g := newIngestRig(t)
	g.clock.Advance(time.Minute)
	for _, e := range []string{
		event("task.sent", "t", 0, `{"task_name":"n","queue":"q","args":[9]}`),
		event("task.failed", "t", 5*time.Second, `{"exception":"E","traceback":"T"}`),
		event("task.received", "t", 1*time.Second, `{"worker":"w","args":[1]}`),
		event("task.started", "t", 6*time.Second, `{"worker":"w2"}`),
		event("task.retried", "t", 7*time.Second, `{"retry_count":2}`),
		event("task.succeeded", "t", 4*time.Second, `{"result":3}`), // older than what is stored: fields only
	} {
		g.want(e, g.one(batch(t, e)), "1 1/1")
	}
	g.want("task", g.text(taskRow), "n failure normal q w2 [1] - 3 - - 2")
	g.want("late terminal", g.one(batch(t, event("task.revoked", "t", 60*time.Second, `{}`))), "1 1/1")
	g.want("state", g.text(`SELECT state FROM tasks`), "revoked")
	g.want("unknown kinds make no row", g.one(batch(t, event("task.exploded", "u", 0, `{}`))), "1 1/1")
	g.want("tasks", g.text(`SELECT count(*) FROM tasks`), "1")
	g.want("other kinds do", g.one(batch(t, event("schedule.run_started", "u", 0, `{}`))), "1 1/1")
	g.want("row", g.text(`SELECT state || name FROM tasks WHERE task_id = 'u'`), "pendingunknown")
}

func TestDispatchCollapsesSecondReports(t *testing.T) {
	g := newIngestRig(t)
	g.want("one second", g.one(batch(t, event("task.started", "t", 100*time.Millisecond, `{}`),
		event("task.started", "t", 900*time.Millisecond, `{}`), event("task.started", "t", 1100*time.Millisecond, `{}`))), "1 3/2")
}

func TestDispatchKeepsOddTextWhole(t *testing.T) {
	g := newIngestRig(t)
	f := batch(t, `{"kind":"task.received","engine":"e\u0000\u00e9","task_id":"a\u0000b😀","occurred_at":"2026-06-01T12:00:00",
		"data":{"task_name":"n\u0000m","queue":"q\u0000","worker":"w\n","args":"\u0000"}}`)
	g.want("first", g.one(f), "1 1/1")
	g.want("replay", g.one(f), "1 1/0")
	x, err := g.records.GetTask(context.Background(), 1, "e\x00é", "a\x00b😀")
	if err != nil || x.Name != "n\x00m" || *x.Queue != "q\x00" || string(x.Args) != `"\u0000"` {
		t.Errorf("%+v %v", x, err)
	}
}

func TestDispatchReplacedTimeReplaysToOneRow(t *testing.T) {
	g := newIngestRig(t)
	f := batch(t, `{"id":"0b7f3c52-8f0e-4a43-9a38-5b1d2f3c4d5e","kind":"task.sent","engine":"e","task_id":"t","occurred_at":"?"}`)
	g.want("first", g.one(f), "1 1/1")
	g.clock.Advance(90 * time.Second)
	g.want("replay", g.one(f), "1 1/0")
	g.want("rows", g.text(`SELECT count(*) || ' ' || max(time_replaced) FROM events`), "1 1")
}

func TestDispatchListRules(t *testing.T) {
	g := newIngestRig(t)
	for payload, want := range map[string]string{
		`{"events":null}`: "1 0/0", `{}`: "1 0/0", `{"events":[]}`: "1 0/0", `{"events":{}}`: "2 0/0", `{"events":"x"}`: "2 0/0",
		`null`: "1 0/0",
	} {
		g.want(payload, g.one(frame(t, agent.FrameEventBatch, "ev", payload)), want)
	}
}

func TestDispatchOtherFrames(t *testing.T) {
	g := newIngestRig(t)
	var frames []agent.Frame
	for _, typ := range []string{agent.FrameRegistryDelta, agent.FrameError, agent.FrameCommand, agent.FrameHello,
		agent.FrameEventBatchAck, "anything"} {
		frames = append(frames, frame(t, typ, "x", `{"events":7,"token":"t"}`))
	}
	for i, o := range g.dispatch(frames...) {
		if o.Verdict != durable || o.Message != "" {
			t.Errorf("%s: %+v", frames[i].Type, o)
		}
	}
	g.want("logged", fmt.Sprint(g.seen.logged), `[registry_delta {"events":7,"token":"[REDACTED]"} error {"events":7,"token":"[REDACTED]"}]`)
	g.want("state", g.text(`SELECT state FROM agents`), "unknown")
	if out := g.dispatch(); len(out) != 0 {
		t.Errorf("no frames: %v", out)
	}
}

func TestHeartbeatRows(t *testing.T) {
	g := newIngestRig(t)
	g.want("heartbeat", g.one(frame(t, agent.FrameHeartbeat, "hb", `{"adapter_health":{"celery.queue_depths":"{\"q\":3}",
		"celery.worker_details":"{\"celery@a\":{\"stats\":{\"pid\":7,\"pool\":{\"max-concurrency\":4}},\"active\":[1],\"active_queues\":[\"q\"],\"conf\":{\"timezone\":\"UTC\"}}}"},
		"telemetry_loss":{"buffer_id":"b","runtime_id":"r","event_records":1}}`)), "1 0/0")
	const workers = `SELECT name || ' ' || state || ' ' || pid || ' ' || concurrency || ' ' || queues || ' ' || active_tasks || ' '
		|| metadata || ' ' || (last_heartbeat - ?) FROM workers`
	g.want("worker", g.text(workers, ingestStart.UnixMicro()), `celery@a online 7 4 ["q"] 1 {"timezone":"UTC"} 0`)
	g.want("queue", g.text(`SELECT name || ' ' || pending_count FROM queues`), "q 3")
	g.want("depths", fmt.Sprint(g.seen.depths), "[celery q 3]")
	g.clock.Advance(10 * time.Second)
	g.want("heartbeat", g.one(frame(t, agent.FrameHeartbeat, "hb", `{"adapter_health":{"celery.queue_depths":"{\"q\":0}",
		"celery.worker_details":"{\"celery@a\":{}}"},"telemetry_loss":{"buffer_id":"b","runtime_id":"r","event_records":2}}`)), "1 0/0")
	g.want("worker", g.text(workers, ingestStart.UnixMicro()), `celery@a online 7 4 ["q"] 1 {"timezone":"UTC"} 10000000`)
	g.want("queue", g.text(`SELECT name || ' ' || pending_count || ' ' || (last_seen_at - created_at) FROM queues`), "q 0 10000000")
	g.want("loss", g.text(`SELECT payload || ' ' || (updated_at - first_at) FROM telemetry_losses`),
		`{"buffer_id":"b","runtime_id":"r","event_records":2,"adapter_events":{}} 10000000`)
}

func TestAgentStatusHistory(t *testing.T) {
	g := newIngestRig(t)
	for range 14 {
		g.want("status", g.one(frame(t, agent.FrameAgentStatus, "st", `{"buffer_depth": 3, "auth_token":"x"}`)), "1 0/0")
	}
	g.want("rows", g.text(`SELECT count(*) FROM agent_status`), "12")
	g.want("payload", g.text(`SELECT DISTINCT payload FROM agent_status`), `{"buffer_depth": 3, "auth_token":"[REDACTED]"}`)
	if g.seen.status != 2 {
		t.Errorf("%d dropped", g.seen.status)
	}
	g.want("not an object", g.one(frame(t, agent.FrameAgentStatus, "st", `[]`)), "1 0/0")
}

func TestLivenessIsThrottledButPromotesAlways(t *testing.T) {
	g := newIngestRig(t)
	seen := func() string {
		return g.text(`SELECT state || ' ' || (last_seen_at - ?) FROM agents`, ingestStart.UnixMicro()) + ", " +
			g.text(`SELECT state || ' ' || (last_seen_at - ?) FROM agent_workers`, ingestStart.UnixMicro())
	}
	hb := frame(t, agent.FrameHeartbeat, "hb", `{}`)
	g.one(hb)
	g.want("first", seen(), "online 0, online 0")
	g.clock.Advance(500 * time.Millisecond)
	g.one(batch(t, event("task.sent", "a", -time.Hour, `{}`)))
	g.want("half a second later", seen(), "online 0, online 0")
	g.clock.Advance(500 * time.Millisecond)
	g.one(batch(t))
	g.want("a second later", seen(), "online 1000000, online 1000000")
	g.exec(`UPDATE agents SET state = 'offline', offline_since = 1`)
	g.clock.Advance(100 * time.Millisecond)
	g.one(hb)
	g.want("promotion", seen(), "online 1100000, online 1100000")
	g.peer.Transport = agent.LongPoll
	g.exec(`UPDATE agents SET state = 'offline', offline_since = 1`)
	g.clock.Advance(time.Minute)
	g.one(hb)
	g.want("long-poll", seen(), "offline 1100000, online 1100000")
}

func TestRefusedPeers(t *testing.T) {
	g := newIngestRig(t)
	frames := []agent.Frame{batch(t, event("task.sent", "a", 0, `{}`)), frame(t, agent.FrameError, "e", `{}`)}
	check := func(name string, archived bool) {
		t.Helper()
		for _, fs := range [][]agent.Frame{frames, frames[1:]} {
			for i, o := range g.dispatch(fs...) {
				if o.Verdict != revoked || o.Archived != archived {
					t.Errorf("%s: frame %d: %+v", name, i, o)
				}
			}
		}
		g.want(name, g.text(`SELECT (SELECT count(*) FROM events) || ' ' || state FROM agents`), "0 unknown")
	}
	g.exec(`UPDATE projects SET is_active = 0`)
	check("archived", true)
	g.exec(`UPDATE agents SET revoked_at = 1`)
	check("archived and revoked", false)
	g.exec(`UPDATE projects SET is_active = 1`)
	check("revoked", false)
	g.peer.AgentNo = 99
	for _, o := range g.dispatch(frames[0]) {
		if o.Verdict != revoked {
			t.Errorf("no such agent: %+v", o)
		}
	}
}

func TestTransientFailureIsNotAckedAndReplaysToOneRow(t *testing.T) {
	before, after := &storetest.Failpoint{}, &storetest.Failpoint{}
	g := newIngestRig(t, storetest.WithBeforeCommit(before), storetest.WithAfterCommit(after))
	watch := g.hub.Watch(agent.ProjectEvents(1))
	defer watch.Stop()
	frames := []agent.Frame{batch(t, event("task.sent", "a", 0, `{"worker":"w","queue":"q"}`)),
		batch(t, event("task.sent", "b", 0, `{}`)), frame(t, agent.FrameError, "e", `{}`)}
	verdicts := func() string {
		var out []string
		for _, o := range g.dispatch(frames...) {
			out = append(out, fmt.Sprintf("%d:%d", o.Verdict, o.Accepted))
		}
		return strings.Join(out, " ")
	}
	before.Arm(errors.New("power cut"), 1)
	g.want("before commit", verdicts(), "3:0 3:0 1:0")
	g.want("rows", g.text(`SELECT (SELECT count(*) FROM events) || (SELECT count(*) FROM tasks) || (SELECT count(*) FROM workers)`), "000")
	after.Arm(errors.New("power cut"), 1)
	g.want("after commit", verdicts(), "3:0 3:0 1:0")
	g.want("rows", g.text(`SELECT count(*) FROM events`), "2")
	g.want("replay", verdicts(), "1:0 1:0 1:0")
	g.want("rows", g.text(`SELECT (SELECT count(*) FROM events) || (SELECT count(*) FROM tasks) || (SELECT count(*) FROM workers)`), "221")
}

func TestPermanentFailureTakesNoOthersAlong(t *testing.T) {
	g := newIngestRig(t)
	g.cmds.result = func(id string) error {
		if id == "bad" {
			return fault.Field("result", "must be an object")
		}
		return nil
	}
	out := g.dispatch(batch(t, event("task.sent", "a", 0, `{}`)), frame(t, agent.FrameCommandResult, "bad", `{}`),
		frame(t, agent.FrameCommandAck, "good", `{}`), batch(t, event("task.sent", "b", 0, `{}`)))
	if out[0].Verdict != durable || out[1].Verdict != dropped || out[2].Verdict != durable || out[3].Verdict != durable {
		t.Errorf("%+v", out)
	}
	g.want("message", out[1].Message, "command_result: result: must be an object")
	g.want("rows", g.text(`SELECT count(*) FROM events`), "2")
	g.want("dropped", fmt.Sprint(g.seen.dropped), "[command_result]")
	g.want("calls", fmt.Sprint(g.cmds.calls), "[result bad result bad ack good]")
}

func TestResultsOverWebSocketAreTriedThreeTimes(t *testing.T) {
	for _, c := range []struct {
		name      string
		transport agent.Transport
		failures  int
		pauses    []time.Duration
		want      agent.Verdict
	}{
		{"passes at the third", agent.WebSocket, 2, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, durable},
		{"gives up", agent.WebSocket, 3, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, transient},
		{"long-poll sends again itself", agent.LongPoll, 1, nil, transient},
	} {
		t.Run(c.name, func(t *testing.T) {
			point := &storetest.Failpoint{}
			g := newIngestRig(t, storetest.WithBeforeCommit(point))
			g.peer.Transport = c.transport
			point.Arm(errors.New("disk full"), c.failures)
			done := make(chan []agent.Outcome)
			go func() {
				done <- g.router.Dispatch(context.Background(), g.peer,
					[]agent.Frame{frame(t, agent.FrameCommandResult, "r", `{}`)})
			}()
			for _, d := range c.pauses {
				g.clock.BlockUntil(1)
				g.clock.Advance(d)
			}
			if o := (<-done)[0]; o.Verdict != c.want {
				t.Errorf("%+v", o)
			}
			point.Arm(nil, 0)
		})
	}
}

func TestResultsWithoutPauseWhenTheCallerIsGone(t *testing.T) {
	g := newIngestRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := g.router.Dispatch(ctx, g.peer, []agent.Frame{frame(t, agent.FrameCommandResult, "r", `{}`)})
	if o[0].Verdict != transient {
		t.Errorf("%+v", o)
	}
}

func TestOldNewsOfWorkersChangesNothing(t *testing.T) {
	g := newIngestRig(t)
	state := func() string {
		return g.text(`SELECT state || ' ' || (last_heartbeat - ?) FROM workers`, ingestStart.UnixMicro())
	}
	g.one(batch(t, event("worker.heartbeat", "", 0, `{"worker":"w"}`)))
	g.one(batch(t, event("worker.offline", "", -time.Minute, `{"worker":"w"}`)))
	g.want("older offline", state(), "online 0")
	g.one(batch(t, event("worker.offline", "", time.Second, `{"worker":"w"}`)))
	g.want("newer offline", state(), "offline 1000000")
	g.one(batch(t, event("task.started", "late", 500*time.Millisecond, `{"worker":"w"}`)))
	g.want("late task", state(), "offline 1000000")
	g.one(batch(t, event("worker.online", "", 1200*time.Millisecond, `{"worker":"w"}`)))
	g.want("back", state(), "online 1200000")
}

func TestLargeGroupsAreSplitButKeepOrder(t *testing.T) {
	g := newIngestRig(t)
	var frames []agent.Frame
	var want []string
	for i := range 3 {
		var events []string
		for j := range 800 {
			id := fmt.Sprintf("t-%d-%04d", i, j)
			events, want = append(events, event("task.sent", id, 0, `{}`)), append(want, id)
		}
		frames = append(frames, batch(t, events...))
	}
	for _, o := range g.dispatch(frames...) {
		if o.Verdict != durable || o.Accepted != 800 {
			t.Errorf("%+v", o)
		}
	}
	got := strings.Split(g.text(`SELECT task_id FROM tasks ORDER BY id`), " | ")
	if !sort.StringsAreSorted(got) || len(got) != len(want) {
		t.Errorf("%d tasks out of order", len(got))
	}
}

func TestRememberedTasksAreCheckedAgainstTheStoredOnes(t *testing.T) {
	for _, c := range []struct {
		name, change, event, want string
	}{
		{"unchanged", `SELECT 1`, event("task.started", "t", -time.Second, `{"worker":"w"}`), "n started normal q w [1] - - - - 0 1"},
		{"ended meanwhile", `UPDATE tasks SET state = 'success', finished_at = 5`,
			event("task.started", "t", -time.Second, `{"worker":"w"}`), "n success normal q w [1] - - - - 0 1"},
		{"newer meanwhile", fmt.Sprintf(`UPDATE tasks SET state = 'retry', started_at = %d`, ingestStart.UnixMicro()),
			event("task.started", "t", -time.Second, `{"worker":"w"}`), "n retry normal q w [1] - - - - 0 1"},
		{"deleted meanwhile", `DELETE FROM tasks`, event("task.started", "t", -time.Second, `{"worker":"w"}`),
			"unknown started normal - w - - - - - 0 1"},
		{"deleted, then an event without a state", `DELETE FROM tasks`, event("task.rejected", "t", -time.Second, `{"queue":"r"}`),
			"unknown pending normal r - - - - - - 0 1"},
		{"deleted, then an unknown kind", `DELETE FROM tasks`, event("task.exploded", "t", -time.Second, `{}`), ""},
		{"another row meanwhile", `UPDATE tasks SET task_no = 77, state = 'retry'`,
			event("task.succeeded", "t", -time.Second, `{"result":1}`), "n success normal q - [1] - 1 - - 0 77"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newIngestRig(t)
			g.one(batch(t, event("task.received", "t", -2*time.Second, `{"task_name":"n","queue":"q","args":[1]}`)))
			g.exec(c.change)
			g.want("event", g.one(batch(t, c.event)), "1 1/1")
			g.want("task", g.text(strings.Replace(taskRow, " FROM", " || ' ' || task_no FROM", 1)), c.want)
			if c.want != "" {
				g.want("links", g.text(`SELECT count(*) FROM events e JOIN tasks t ON t.task_no = e.task_no`), "2")
			}
		})
	}
}
