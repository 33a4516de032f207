package schedule

import (
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// Limits of agent protocol G.1, in characters, and of arguments in bytes of JSON.
const (
	maxAdapter    = 40
	maxName       = 200
	maxTaskName   = 500
	maxExpression = 1024
	maxTimezone   = 64
	maxQueue      = 200
	maxExternalID = 200
	maxSource     = 64
	maxSourceHash = 128
	MaxArguments  = 64 << 10
)

// Priorities are the priorities of a schedule.
func Priorities() []string { return []string{"critical", "high", "normal", "low"} }

var adapterRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// Definition is what a person says of a schedule. Empty fields take their defaults; Name, Engine, Kind, Expression and
// TaskName are required.
type Definition struct {
	Name       string
	Engine     string
	Scheduler  string // default: Own
	Kind       Kind
	Expression string
	Timezone   string // default: UTC
	TaskName   string
	Queue      *string
	Priority   string  // default: normal
	Args       []byte  // JSON array; default: []
	Kwargs     []byte  // JSON object; default: {}
	CatchUp    CatchUp // default: fire_one_missed
	IsEnabled  *bool   // default: true; of an import: what is there
	ExternalID *string
	Source     string // default: dashboard
	SourceHash *string
}

// Patch changes some fields of a schedule. The scheduler of a schedule never changes.
type Patch struct {
	Name       agent.Change[string]
	Engine     agent.Change[string]
	Kind       agent.Change[Kind]
	Expression agent.Change[string]
	Timezone   agent.Change[string]
	TaskName   agent.Change[string]
	Queue      agent.Change[*string]
	Priority   agent.Change[string]
	Args       agent.Change[[]byte]
	Kwargs     agent.Change[[]byte]
	CatchUp    agent.Change[CatchUp]
	IsEnabled  agent.Change[bool]
	ExternalID agent.Change[*string]
	Source     agent.Change[string]
	SourceHash agent.Change[*string]
}

func (p *Patch) apply(s *Schedule) {
	set(p.Name, &s.Name)
	set(p.Engine, &s.Engine)
	set(p.Kind, &s.Kind)
	set(p.Expression, &s.Expression)
	set(p.Timezone, &s.Timezone)
	set(p.TaskName, &s.TaskName)
	set(p.Queue, &s.Queue)
	set(p.Priority, &s.Priority)
	set(p.Args, &s.Args)
	set(p.Kwargs, &s.Kwargs)
	set(p.CatchUp, &s.CatchUp)
	set(p.IsEnabled, &s.IsEnabled)
	set(p.ExternalID, &s.ExternalID)
	set(p.Source, &s.Source)
	set(p.SourceHash, &s.SourceHash)
}

func set[T any](c agent.Change[T], field *T) {
	if c.Set {
		*field = c.To
	}
}

// schedule fills the defaults in.
func (d *Definition) schedule() Schedule {
	s := Schedule{Name: d.Name, Engine: d.Engine, Scheduler: d.Scheduler, Kind: d.Kind, Expression: d.Expression, Timezone: d.Timezone,
		TaskName: d.TaskName, Queue: d.Queue, Priority: d.Priority, Args: d.Args, Kwargs: d.Kwargs, CatchUp: d.CatchUp,
		IsEnabled: d.IsEnabled == nil || *d.IsEnabled, ExternalID: d.ExternalID, Source: d.Source, SourceHash: d.SourceHash}
	orDefault(&s.Scheduler, Own)
	orDefault(&s.Timezone, "UTC")
	orDefault(&s.Priority, "normal")
	orDefault(&s.CatchUp, FireOne)
	orDefault(&s.Source, "dashboard")
	if s.Args == nil {
		s.Args = []byte("[]")
	}
	if s.Kwargs == nil {
		s.Kwargs = []byte("{}")
	}
	return s
}

func orDefault[T ~string](s *T, def T) {
	if *s == "" {
		*s = def
	}
}

// validate checks every field against agent protocol G.1 and names the first that breaks its rule.
func (s *Schedule) validate() error {
	if err := checkText("name", s.Name, 1, maxName); err != nil {
		return err
	}
	if !adapterRule.MatchString(s.Engine) {
		return fault.Field("engine", adapterText)
	}
	if !adapterRule.MatchString(s.Scheduler) {
		return fault.Field("scheduler", adapterText)
	}
	if err := checkText("task_name", s.TaskName, 1, maxTaskName); err != nil {
		return err
	}
	if err := checkText("expression", s.Expression, 1, maxExpression); err != nil {
		return err
	}
	if err := checkText("timezone", s.Timezone, 1, maxTimezone); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value *string
		least int
		most  int
	}{{"queue", s.Queue, 1, maxQueue}, {"external_id", s.ExternalID, 1, maxExternalID}, {"source", &s.Source, 1, maxSource},
		{"source_hash", s.SourceHash, 1, maxSourceHash}} {
		if f.value == nil {
			continue
		}
		if err := checkText(f.name, *f.value, f.least, f.most); err != nil {
			return err
		}
	}
	if !slices.Contains(Priorities(), s.Priority) {
		return fault.Field("priority", "must be one of %s", strings.Join(Priorities(), ", "))
	}
	if s.CatchUp != Skip && s.CatchUp != FireOne && s.CatchUp != FireAll {
		return fault.Field("catch_up", "must be %s, %s or %s", Skip, FireOne, FireAll)
	}
	if err := s.checkArguments(); err != nil {
		return err
	}
	if !s.Ours() { // its adapter knows what it can do
		if s.Kind != Cron && s.Kind != Interval && s.Kind != Clocked && s.Kind != Solar {
			return fault.Field("kind", "must be cron, interval, clocked or solar")
		}
		return nil
	}
	_, err := s.Timing()
	return err
}

const adapterText = "must start with a letter or digit and have at most 40 letters, digits, dots, underscores and hyphens"

// checkText checks a text of one line.
func checkText(field, text string, least, most int) error {
	if n := utf8.RuneCountInString(text); n < least || n > most {
		return fault.Field(field, "must have %d..%d characters", least, most)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fault.Field(field, "must not hold control characters")
	}
	if strings.TrimSpace(text) == "" {
		return fault.Field(field, "must not be blank")
	}
	return nil
}

func (s *Schedule) checkArguments() error {
	for _, f := range []struct {
		name string
		text []byte
		kind rawjson.Kind
		rule string
	}{{"args", s.Args, rawjson.Array, "must be a JSON list"}, {"kwargs", s.Kwargs, rawjson.Object, "must be a JSON object"}} {
		if len(f.text) > MaxArguments {
			return fault.Field(f.name, "must have at most %d KiB of JSON", MaxArguments>>10)
		}
		doc, err := rawjson.Parse(f.text)
		if err != nil {
			return fault.Field(f.name, "%s", f.rule)
		}
		err = checkArgument(f.name, f.rule, doc.Root(), f.kind)
		doc.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// reservedPrefix begins the names that agents use for themselves (agent protocol E.9).
const reservedPrefix = "__z4j_"

func checkArgument(name, rule string, v rawjson.Value, kind rawjson.Kind) error {
	if v.Kind() != kind {
		return fault.Field(name, "%s", rule)
	}
	if kind == rawjson.Object {
		for key := range v.EachMember() {
			if strings.HasPrefix(string(key), reservedPrefix) {
				return fault.Field(name, "no name may start with %s", reservedPrefix)
			}
		}
	}
	return nil
}

// settle gives the schedule its next slot after the change from before, nil for a new one: slots count from now on when it
// is new, its timing changed or it was enabled.
func (s *Schedule) settle(before *Schedule, now time.Time) error {
	anew := before == nil || before.Kind != s.Kind || before.Expression != s.Expression || before.Timezone != s.Timezone
	now = now.Truncate(time.Second)
	if anew {
		s.AnchorAt, s.DecidedAt = now, now
	}
	enabled := s.IsEnabled && (before == nil || !before.IsEnabled)
	if enabled {
		s.DecidedAt, s.ConsecutiveFailures = now, 0
	}
	if s.IsEnabled || before != nil && before.IsEnabled {
		s.DisabledReason = nil
	}
	s.NextRunAt = nil
	if !s.Ours() {
		return nil
	}
	t, err := s.Timing()
	if err != nil || !s.IsEnabled && !anew {
		return err
	}
	next := following(t, s.DecidedAt)
	if next == nil && (anew || enabled) {
		if s.Kind == Clocked {
			return fault.Field("expression", "must lie in the future")
		}
		return fault.Field("expression", "never comes due")
	}
	if s.IsEnabled {
		s.NextRunAt = next
	}
	return nil
}

// differing names the defined fields in which two schedules differ. JSON is compared by its meaning.
func differing(a, b *Schedule) (out []string) {
	for _, f := range []struct {
		name string
		same bool
	}{
		{"name", a.Name == b.Name}, {"engine", a.Engine == b.Engine}, {"kind", a.Kind == b.Kind}, {"expression", a.Expression == b.Expression},
		{"timezone", a.Timezone == b.Timezone}, {"task_name", a.TaskName == b.TaskName}, {"queue", same(a.Queue, b.Queue)},
		{"priority", a.Priority == b.Priority}, {"args", sameJSON(a.Args, b.Args)}, {"kwargs", sameJSON(a.Kwargs, b.Kwargs)},
		{"catch_up", a.CatchUp == b.CatchUp}, {"is_enabled", a.IsEnabled == b.IsEnabled}, {"external_id", same(a.ExternalID, b.ExternalID)},
		{"source", a.Source == b.Source}, {"source_hash", same(a.SourceHash, b.SourceHash)},
	} {
		if !f.same {
			out = append(out, f.name)
		}
	}
	return out
}

func same(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameJSON(a, b []byte) bool {
	x, errX := rawjson.Canonical(a)
	y, errY := rawjson.Canonical(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
