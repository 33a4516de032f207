package schedule_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func TestCreateChecksEveryField(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	text := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		change func(d *schedule.Definition)
		field  string
	}{
		"no name":         {func(d *schedule.Definition) { d.Name = "" }, "name"},
		"long name":       {func(d *schedule.Definition) { d.Name = strings.Repeat("é", 201) }, "name"},
		"control in name": {func(d *schedule.Definition) { d.Name = "a\nb" }, "name"},
		"blank name":      {func(d *schedule.Definition) { d.Name = "  " }, "name"},
		"engine":          {func(d *schedule.Definition) { d.Engine = "ce lery" }, "engine"},
		"long engine":     {func(d *schedule.Definition) { d.Engine = strings.Repeat("a", 41) }, "engine"},
		"scheduler":       {func(d *schedule.Definition) { d.Scheduler = "../beat" }, "scheduler"},
		"task":            {func(d *schedule.Definition) { d.TaskName = strings.Repeat("a", 501) }, "task_name"},
		"control in task": {func(d *schedule.Definition) { d.TaskName = "a\x00" }, "task_name"},
		"kind":            {func(d *schedule.Definition) { d.Kind = "weekly" }, "kind"},
		"solar":           {func(d *schedule.Definition) { d.Kind = schedule.Solar }, "kind"},
		"expression":      {func(d *schedule.Definition) { d.Expression = "every now and then" }, "expression"},
		"long expression": {func(d *schedule.Definition) { d.Expression = strings.Repeat("*", 1025) }, "expression"},
		"never":           {func(d *schedule.Definition) { d.Expression = "0 0 30 2 *" }, "expression"},
		"past":            {func(d *schedule.Definition) { d.Kind, d.Expression = schedule.Clocked, "2020-01-01T00:00:00Z" }, "expression"},
		"zone":            {func(d *schedule.Definition) { d.Timezone = "Berlin" }, "timezone"},
		"queue":           {func(d *schedule.Definition) { d.Queue = text("") }, "queue"},
		"priority":        {func(d *schedule.Definition) { d.Priority = "urgent" }, "priority"},
		"args":            {func(d *schedule.Definition) { d.Args = []byte(`{}`) }, "args"},
		"broken args":     {func(d *schedule.Definition) { d.Args = []byte(`[`) }, "args"},
		"long args":       {func(d *schedule.Definition) { d.Args = []byte(`["` + strings.Repeat("a", 64<<10) + `"]`) }, "args"},
		"kwargs":          {func(d *schedule.Definition) { d.Kwargs = []byte(`[]`) }, "kwargs"},
		"reserved kwargs": {func(d *schedule.Definition) { d.Kwargs = []byte(`{"__z4j_x":1}`) }, "kwargs"},
		"catch up":        {func(d *schedule.Definition) { d.CatchUp = "all" }, "catch_up"},
		"source":          {func(d *schedule.Definition) { d.Source = strings.Repeat("a", 65) }, "source"},
		"hash":            {func(d *schedule.Definition) { d.SourceHash = text(strings.Repeat("a", 129)) }, "source_hash"},
		"external id":     {func(d *schedule.Definition) { d.ExternalID = text(strings.Repeat("a", 201)) }, "external_id"},
	} {
		d := define("s", schedule.Cron, "* * * * *", "")
		c.change(&d)
		_, err := r.sched.Create(ctx, r.by, r.project, d)
		if t.Run(name, func(t *testing.T) { wantFault(t, err, fault.Invalid, c.field) }); err == nil {
			return
		}
	}
	if got := r.audits(); len(got) > 0 {
		t.Errorf("refused requests left %v", got)
	}
	s := r.create(define("s", schedule.Cron, "0 9 * * *", ""))
	if s.Scheduler != "signalbox" || s.CatchUp != schedule.FireOne || s.Timezone != "UTC" || s.Priority != "normal" || !s.IsEnabled ||
		s.Source != "dashboard" || string(s.Args) != "[]" || string(s.Kwargs) != "{}" || s.NextRunAt == nil {
		t.Errorf("defaults are %+v", s)
	}
	_, err := r.sched.Create(ctx, r.by, r.project, define("s", schedule.Interval, "5m", ""))
	wantFault(t, err, fault.Conflict, "name")
	if got := r.audits(); !slices.Equal(got, []string{"schedule.created"}) {
		t.Errorf("audit is %v", got)
	}
}

func TestUpdateEnableDisable(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	s := r.create(define("s", schedule.Interval, "10m", schedule.FireAll))
	r.run(start.Add(25 * time.Minute))

	// A change of the timing counts from now; of anything else it does not.
	got, err := r.sched.Update(ctx, r.by, r.project.No, s.ID, schedule.Patch{TaskName: agent.SetTo("tasks.other")})
	if err != nil || !got.NextRunAt.Equal(start.Add(30*time.Minute)) {
		t.Fatalf("next is %v, %v", got.NextRunAt, err)
	}
	got, err = r.sched.Update(ctx, r.by, r.project.No, s.ID, schedule.Patch{Expression: agent.SetTo("7m")})
	if err != nil || !got.NextRunAt.Equal(start.Add(32*time.Minute)) {
		t.Fatalf("next is %v, %v", got.NextRunAt, err)
	}
	_, err = r.sched.Update(ctx, r.by, r.project.No, s.ID, schedule.Patch{Timezone: agent.SetTo("Nowhere")})
	wantFault(t, err, fault.Invalid, "timezone")
	before := len(r.audits())
	if _, err = r.sched.Update(ctx, r.by, r.project.No, s.ID, schedule.Patch{Expression: agent.SetTo("7m")}); err != nil || len(r.audits()) != before {
		t.Errorf("a patch that changes nothing: %v, %d audit rows more", err, len(r.audits())-before)
	}

	// What comes due while it is disabled is not missed.
	if got, err = r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, false); err != nil || got.NextRunAt != nil || got.IsEnabled {
		t.Fatalf("disabled: %+v, %v", got, err)
	}
	r.run(start.Add(3 * time.Hour))
	if got, err = r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, true); err != nil || !got.NextRunAt.Equal(start.Add(186*time.Minute)) {
		t.Fatalf("enabled: next %v, %v", got.NextRunAt, err) // the grid of 12:25 goes on
	}
	r.step()
	if got, misfires := r.get(s); got.TotalRuns != 2 || len(misfires) > 0 {
		t.Errorf("%d runs, misfires %v", got.TotalRuns, misfires)
	}

	// The circuit breaker's disabling says why; enabling forgets it.
	r.update(func(tx *store.Tx) error {
		for range 5 {
			if err := tx.ScheduleCountFailure(s.No, 1); err != nil {
				return err
			}
		}
		was, err := tx.ScheduleDisable(s.No, "5 fires in a row failed")
		if !was {
			t.Error("it was not enabled")
		}
		return err
	})
	if got, _ := r.get(s); got.IsEnabled || got.NextRunAt != nil || got.DisabledReason == nil || got.ConsecutiveFailures != 5 {
		t.Errorf("after the breaker: %+v", got)
	}
	if got, err = r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, true); err != nil || got.DisabledReason != nil || got.ConsecutiveFailures != 0 {
		t.Errorf("enabled again: %+v, %v", got, err)
	}
	if err := r.sched.Delete(ctx, r.by, r.project.No, s.ID, false); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		r.sched.Delete(ctx, r.by, r.project.No, s.ID, false),
		func() error { _, err := r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, true); return err }(),
		func() error { _, _, err := r.sched.Get(ctx, r.project.No, s.ID); return err }(),
		func() error { _, err := r.sched.Trigger(ctx, r.by, r.project.No, s.ID, uuid.Nil); return err }(),
	} {
		wantFault(t, err, fault.NotFound, "")
	}
}

func TestTrigger(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	s := r.create(define("s", schedule.Interval, "1h", ""))
	fireID := uuid.New()
	got, err := r.sched.Trigger(ctx, r.by, r.project.No, s.ID, fireID)
	if err != nil || got.Fire == nil || got.Fire.FireID != fireID || got.Schedule.TotalRuns != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = r.sched.Trigger(ctx, r.by, r.project.No, s.ID, uuid.Nil)
	if wantFault(t, err, fault.RateLimited, ""); err == nil {
		t.Fatal("not throttled")
	}
	repeat := func() {
		t.Helper()
		got, err := r.sched.Trigger(ctx, r.by, r.project.No, s.ID, fireID)
		if err != nil || !got.Fire.Repeated || got.Fire.FireID != fireID || got.Schedule.TotalRuns != 1 {
			t.Errorf("a repeat: %+v, %v", got, err)
		}
	}
	repeat() // the throttle is for new fires
	r.clock.Advance(5 * time.Second)
	repeat()
	if _, err = r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, false); err != nil {
		t.Fatal(err)
	}
	repeat() // what has become of the schedule since does not matter
	if audits := r.audits(); !slices.Equal(audits, []string{"schedule.created", "schedule.triggered", "schedule.disabled"}) {
		t.Errorf("audits are %v", audits)
	}
	_, err = r.sched.Trigger(ctx, r.by, r.project.No, s.ID, uuid.Nil)
	wantFault(t, err, fault.Conflict, "")
	if n := len(r.fires(s)); n != 1 {
		t.Errorf("%d fires", n)
	}
}

// Schedules of other schedulers are controlled through an online agent that lists the scheduler, and never fired here.
func TestSchedulesOfOtherSchedulers(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	d := define("beat", schedule.Solar, "sunset,52.5,13.4", "")
	d.Scheduler, d.ExternalID = "celery-beat", new(string)
	*d.ExternalID = "dcb:17"
	s := r.create(d)
	if s.NextRunAt != nil {
		t.Errorf("next run %v", s.NextRunAt)
	}
	_, err := r.sched.Trigger(ctx, r.by, r.project.No, s.ID, uuid.Nil)
	wantFault(t, err, fault.Conflict, "")
	wantFault(t, r.sched.Delete(ctx, r.by, r.project.No, s.ID, false), fault.Conflict, "")
	agentID := uuid.New()
	r.update(func(tx *store.Tx) error {
		no, err := tx.InsertAgent(agent.Agent{ID: agentID, ProjectNo: r.project.No, ProjectID: r.project.ID, Name: "web", ProtocolVersion: "2",
			FrameworkAdapter: "bare", State: agent.Unknown, Host: []byte("{}"), CreatedAt: start}, strings.Repeat("a", 64))
		if err != nil {
			return err
		}
		_, err = tx.Exec(`UPDATE agents SET state = 'online', scheduler_adapters = '["apscheduler","celery-beat"]' WHERE agent_no = ?`, no)
		return err
	})
	if got, err := r.sched.Trigger(ctx, r.by, r.project.No, s.ID, uuid.Nil); err != nil || got.Fire != nil {
		t.Errorf("trigger: %+v, %v", got, err)
	}
	if got, err := r.sched.SetEnabled(ctx, r.by, r.project.No, s.ID, false); err != nil || got.IsEnabled {
		t.Errorf("disable: %+v, %v", got, err)
	}
	if got, err := r.sched.Resync(ctx, r.by, r.project.No); err != nil || got != (schedule.Resynced{AgentsDispatched: 1, SchedulersObserved: 2}) {
		t.Errorf("resync: %+v, %v", got, err)
	}
	if err := r.sched.Delete(ctx, r.by, r.project.No, s.ID, false); err != nil {
		t.Error(err)
	}
	d.Name, d.ExternalID = "nightly report", nil // its scheduler never heard of our id
	if err := r.sched.Delete(ctx, r.by, r.project.No, r.create(d).ID, false); err != nil {
		t.Error(err)
	}
	var actions []string
	for _, q := range r.issuer.requests {
		actions = append(actions, q.Action+" "+string(q.Payload))
		if q.AgentID != agentID {
			t.Errorf("%s went to %s", q.Action, q.AgentID)
		}
	}
	want := []string{`schedule.trigger_now {"schedule_id":"dcb:17","scheduler":"celery-beat"}`, `schedule.disable {"schedule_id":"dcb:17","scheduler":"celery-beat"}`,
		`schedule.resync {"scheduler":"apscheduler"}`, `schedule.resync {"scheduler":"celery-beat"}`,
		`schedule.delete {"schedule_id":"dcb:17","scheduler":"celery-beat"}`,
		`schedule.delete {"schedule_id":"nightly report","scheduler":"celery-beat"}`}
	if !slices.Equal(actions, want) {
		t.Errorf("commands:\n%s", strings.Join(actions, "\n"))
	}
}

func TestImportAndDiff(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	r.create(define("by hand", schedule.Interval, "1h", ""))
	set := func(prune, adopt bool, defs ...schedule.Definition) schedule.Import {
		return schedule.Import{Source: "git", Prune: prune, Adopt: adopt, Schedules: defs}
	}
	brief := func(changes []schedule.ImportChange) (out []string) {
		for _, c := range changes {
			out = append(out, strings.TrimSpace(string(c.Action)+" "+c.Name+" "+strings.Join(c.Fields, ",")))
		}
		return out
	}
	apply := func(in schedule.Import, want ...string) {
		t.Helper()
		diff, err := r.sched.Diff(ctx, r.project, in)
		if err != nil {
			t.Fatal(err)
		}
		done, err := r.sched.Apply(ctx, r.by, r.project, in)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(brief(diff), want) || !slices.Equal(brief(done), want) {
			t.Errorf("diff %v, done %v, want %v", brief(diff), brief(done), want)
		}
	}
	a, b := define("a", schedule.Cron, "0 9 * * *", ""), define("b", schedule.Interval, "5m", schedule.Skip)
	apply(set(false, false, a, b), "create a", "create b")
	apply(set(true, false, b, a), "unchanged b", "unchanged a")
	a.Kwargs = []byte(`{"x": 1}`)
	b.Expression = "10m"
	apply(set(false, false, a), "update a kwargs")
	a.Kwargs = []byte(`{ "x":1 }`)
	apply(set(true, false, a, b), "unchanged a", "update b expression")
	apply(set(true, false, a), "unchanged a", "delete b") // half of them: nobody is asked
	all := set(true, false)
	for _, n := range []*int{nil, new(int)} {
		all.ConfirmCount = n
		before := len(r.audits())
		_, err := r.sched.Apply(ctx, r.by, r.project, all)
		if wantFault(t, err, fault.Invalid, "confirm_count"); fault.Details(err)["count"] != 1 || len(r.audits()) != before {
			t.Errorf("the count is %v", fault.Details(err))
		}
	}
	*all.ConfirmCount = 1
	apply(all, "delete a")

	hand := define("by hand", schedule.Interval, "2h", "")
	before := len(r.audits())
	for _, in := range []schedule.Import{set(false, false, a, hand), set(false, false, a, a), set(false, false, b, define("c", schedule.Cron, "x", ""))} {
		_, err := r.sched.Apply(ctx, r.by, r.project, in)
		if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Conflict {
			t.Errorf("got %v", err)
		}
		if !strings.HasPrefix(fault.Message(err), "schedules[1].") || !strings.HasPrefix(fault.Details(err)["field"].(string), "schedules[1].") {
			t.Errorf("the error does not say which: %v %v", err, fault.Details(err))
		}
	}
	if n := len(r.audits()); n != before {
		t.Errorf("refused imports left %d audit rows", n-before)
	}
	apply(set(false, true, hand), "update by hand expression,source")

	// An import leaves alone who is enabled, unless it says so.
	rows, err := r.sched.List(ctx, r.project.No, schedule.Filter{Source: "git"}, schedule.Page{Limit: 10})
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	if _, err := r.sched.SetEnabled(ctx, r.by, r.project.No, rows[0].ID, false); err != nil {
		t.Fatal(err)
	}
	apply(set(false, false, hand), "unchanged by hand")
	yes := true
	hand.IsEnabled = &yes
	apply(set(false, false, hand), "update by hand is_enabled")
}

func TestListPagesByName(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"c", "a", "é", "b", "d"} {
		r.create(define(name, schedule.Interval, "1h", ""))
	}
	var got []string
	for page := (schedule.Page{Limit: 2}); ; {
		rows, err := r.sched.List(context.Background(), r.project.No, schedule.Filter{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			got = append(got, row.Name)
		}
		if len(rows) < page.Limit {
			break
		}
		page.AfterName, page.AfterID = rows[1].Name, rows[1].ID
	}
	if !slices.Equal(got, []string{"a", "b", "c", "d", "é"}) {
		t.Errorf("names are %v", got)
	}
}

func TestPruneMisfires(t *testing.T) {
	r := newRig(t)
	s := r.create(define("s", schedule.Interval, "1h", schedule.Skip))
	r.clock.Advance(10*time.Hour + 30*time.Minute)
	r.step()
	if n, err := r.sched.PruneMisfires(context.Background(), r.clock.Now()); n != 0 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	r.clock.Advance(time.Minute)
	if n, err := r.sched.PruneMisfires(context.Background(), r.clock.Now()); n != 1 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	if _, misfires := r.get(s); len(misfires) > 0 {
		t.Errorf("left %v", misfires)
	}
}
