package agent

import "slices"

// Kinds of payload fields.
const (
	KindString = "string"
	KindInt    = "integer"
	KindNumber = "number"
	KindBool   = "boolean"
	KindList   = "list"
	KindObject = "object"
	KindNull   = "null"
)

// ActionField is one field of an action's payload and its rules.
type ActionField struct {
	Name     string
	Kind     string
	Required bool   // otherwise it may be absent or null
	Default  string // JSON stored when the field is absent or null; "" leaves it out
	Min, Max int64  // characters of a string, value of an integer; Max 0: no bound
	Pattern  string // regular expression the whole string must match; "" none
	NotSent  bool   // an input of ours that the agent is not given
	Doc      string
}

// ActionSpec is everything there is to know of one action (agent protocol E.2, E.5, E.6, E.9). One table of them serves
// validation, the REST routes, the CLI's help and the documentation.
type ActionSpec struct {
	Name       string
	TargetType string
	// TargetField is the payload field whose value becomes target_id when the request names none; "task" stands for
	// engine:task_id, "" for no target id.
	TargetField string
	Route       string // path of its own route below /commands (agent protocol E.9); "" has only the generic one
	Role        Role   // least role that may issue it
	Bulk        bool   // counts in the bulk rate bucket
	Fields      []ActionField
	Open        bool // payload fields beside Fields are passed on as they are

	// EnginePath is where the payload names the engine ("engine" or "filter.engine"); every action may name one.
	EnginePath     string
	EngineRequired bool
	Capability     string // token that a reported inventory must list for the engine; "" none
	RetryFamily    bool   // needs the retry contract of the receiver for the engine
	Redeliverable  bool   // may be handed over again after a delivery of unknown outcome
	Doc            string
}

// retryByReference is the capability token of the retry contract.
const retryByReference = "retry_by_reference_v1"

var (
	fieldEngine   = ActionField{Name: "engine", Kind: KindString, Required: true, Min: 1, Max: 40, Doc: "engine adapter, such as celery"}
	fieldAnyOf    = ActionField{Name: "engine", Kind: KindString, Min: 1, Max: 40, Doc: "engine adapter, for an agent with several"}
	fieldTaskID   = ActionField{Name: "task_id", Kind: KindString, Required: true, Min: 1, Max: 200, Doc: "task id inside the engine"}
	fieldWorker   = ActionField{Name: "worker_name", Kind: KindString, Required: true, Min: 1, Max: 200, Doc: "worker, such as celery@host"}
	fieldQueue    = ActionField{Name: "queue", Kind: KindString, Required: true, Min: 1, Max: 200, Doc: "queue name"}
	fieldDelta    = ActionField{Name: "delta", Kind: KindInt, Required: true, Min: 1, Max: 100, Doc: "processes to add or remove"}
	fieldTaskName = ActionField{Name: "task_name", Kind: KindString, Required: true, Min: 1, Max: 500, Doc: "task name"}
	fieldSched    = ActionField{Name: "scheduler", Kind: KindString, Required: true, Min: 1, Max: 200, Doc: "scheduler adapter"}
	fieldSchedID  = ActionField{Name: "schedule_id", Kind: KindString, Required: true, Min: 1, Max: 200, Doc: "schedule id"}
)

// ratePattern is the form of a rate limit (agent protocol E.9).
const ratePattern = `^(?:0|[1-9]\d*(?:/[smh])?)$`

var actionTable = []ActionSpec{
	{Name: "retry_task", TargetType: "task", TargetField: "task", Route: "retry-task", Role: Operator, EnginePath: "engine",
		EngineRequired: true, Capability: "retry_task", RetryFamily: true,
		Doc: "run a task again under a new id",
		Fields: []ActionField{fieldEngine, fieldTaskID,
			{Name: "task_name", Kind: KindString, Default: "null", Max: 500, Doc: "name of the task; taken from the stored task when absent"},
			{Name: "args", Kind: KindNull, Default: "null", Doc: "always null: the agent finds the original arguments"},
			{Name: "kwargs", Kind: KindNull, Default: "null", Doc: "always null: the agent finds the original arguments"},
			{Name: "override_args", Kind: KindList, Default: "null", Doc: "positional arguments instead of the original ones, at most 64 KiB; needs override_kwargs"},
			{Name: "override_kwargs", Kind: KindObject, Default: "null", Doc: "keyword arguments instead of the original ones, at most 64 KiB; needs override_args"},
			{Name: "original_had_args", Kind: KindBool, Default: "null", Doc: "whether the original had arguments; taken from the stored task when absent"},
			{Name: "eta", Kind: KindNumber, Default: "null", Doc: "POSIX seconds at which to run it; computed from eta_seconds when that is given"},
			{Name: "eta_seconds", Kind: KindInt, Default: "null", Max: 86400, Doc: "delay in seconds"},
			{Name: "priority", Kind: KindString, Default: "null", Max: 40, Doc: "priority; taken from the stored task when absent"},
		}},
	{Name: "cancel_task", TargetType: "task", TargetField: "task", Route: "cancel-task", Role: Operator, EnginePath: "engine",
		EngineRequired: true, Capability: "cancel_task", Redeliverable: true,
		Doc: "revoke a task", Fields: []ActionField{fieldEngine, fieldTaskID}},
	{Name: "requeue_dead_letter", TargetType: "task", TargetField: "task", Route: "requeue-dead-letter", Role: Operator,
		EnginePath: "engine", EngineRequired: true, Capability: "requeue_dead_letter",
		Doc: "put a dead letter back into its queue", Fields: []ActionField{fieldEngine, fieldTaskID}},
	{Name: "bulk_retry", TargetType: "bulk", Route: "bulk-retry", Role: Operator, Bulk: true, EnginePath: "filter.engine",
		EngineRequired: true, Capability: "bulk_retry", RetryFamily: true,
		Doc: "retry many tasks chosen by a filter",
		Fields: []ActionField{
			{Name: "filter", Kind: KindObject, Required: true, Doc: "engine (required), task_ids, state, status, queue, name, since, until; other keys are dropped"},
			{Name: "max", Kind: KindInt, Default: "1000", Min: 1, Max: 10000, Doc: "most tasks to retry"},
		}},
	{Name: "purge_queue", TargetType: "queue", TargetField: "queue", Route: "purge-queue", Role: Admin, Bulk: true, EnginePath: "engine",
		Doc: "delete every message of a queue",
		Fields: []ActionField{fieldQueue,
			{Name: "confirm_token", Kind: KindString, Default: "null", Min: 1, Max: 128, Doc: "confirmation bound to the observed depth"},
			{Name: "observed_depth", Kind: KindInt, Max: 1<<53 - 1, NotSent: true, Doc: "depth you saw: the confirmation is computed from it"},
			{Name: "force", Kind: KindBool, Default: "false", Doc: "purge whatever the depth is"},
			fieldAnyOf}},
	{Name: "restart_worker", TargetType: "worker", TargetField: "worker_name", Route: "restart-worker", Role: Operator,
		EnginePath: "engine", Doc: "restart a worker", Fields: []ActionField{fieldWorker, fieldAnyOf}},
	{Name: "pool_grow", TargetType: "worker", TargetField: "worker_name", Route: poolResize, Role: Operator,
		EnginePath: "engine", Doc: "add processes to a worker", Fields: []ActionField{fieldWorker, fieldDelta, fieldAnyOf}},
	{Name: "pool_shrink", TargetType: "worker", TargetField: "worker_name", Route: poolResize, Role: Operator,
		EnginePath: "engine", Doc: "remove processes from a worker", Fields: []ActionField{fieldWorker, fieldDelta, fieldAnyOf}},
	{Name: "add_consumer", TargetType: "worker", TargetField: "worker_name", Route: "add-consumer", Role: Operator,
		EnginePath: "engine", Doc: "let a worker consume a queue", Fields: []ActionField{fieldWorker, fieldQueue, fieldAnyOf}},
	{Name: "cancel_consumer", TargetType: "worker", TargetField: "worker_name", Route: "cancel-consumer", Role: Operator,
		EnginePath: "engine", Doc: "stop a worker consuming a queue", Fields: []ActionField{fieldWorker, fieldQueue, fieldAnyOf}},
	{Name: "rate_limit", TargetType: "task", TargetField: "task_name", Route: "rate-limit", Role: Operator, EnginePath: "engine",
		Doc: "limit how often a task may start",
		Fields: []ActionField{fieldTaskName,
			{Name: "rate", Kind: KindString, Required: true, Min: 1, Max: 20, Pattern: ratePattern, Doc: "0 for no limit, or a number with /s, /m or /h"},
			{Name: "worker_name", Kind: KindString, Default: "null", Min: 1, Max: 200, Doc: "one worker; all when absent"},
			fieldAnyOf}},
	{Name: "submit_task", TargetType: "task", TargetField: "name", Role: Operator, EnginePath: "engine",
		Doc: "start a new task",
		Fields: []ActionField{
			{Name: "name", Kind: KindString, Required: true, Min: 1, Max: 500, Doc: "task name"},
			{Name: "args", Kind: KindList, Default: "[]", Doc: "positional arguments, at most 64 KiB"},
			{Name: "kwargs", Kind: KindObject, Default: "{}", Doc: "keyword arguments, at most 64 KiB"},
			{Name: "queue", Kind: KindString, Default: "null", Min: 1, Max: 200, Doc: "queue; the task's own when absent"},
			{Name: "eta", Kind: KindNumber, Default: "null", Doc: "POSIX seconds at which to run it"},
			{Name: "priority", Kind: KindInt, Default: "null", Max: 255, Doc: "broker priority"},
			fieldAnyOf}},
	{Name: "reconcile_task", TargetType: "task", TargetField: "task", Role: Operator, EnginePath: "engine", EngineRequired: true,
		Redeliverable: true,
		Doc:           "ask the engine for the true state of a task", Fields: []ActionField{fieldTaskID, fieldEngine}},
	{Name: "dlq.list", TargetType: "queue", TargetField: "queue", Role: Viewer, EnginePath: "engine", EngineRequired: true,
		Capability: "list_dead_letters", Doc: "list dead letters",
		Fields: []ActionField{fieldEngine,
			{Name: "queue", Kind: KindString, Default: "null", Min: 1, Max: 200, Doc: "one queue; all when absent"},
			{Name: "limit", Kind: KindInt, Default: "100", Min: 1, Max: 200, Doc: "most entries"},
			{Name: "cursor", Kind: KindString, Default: "null", Max: 200, Pattern: `^[\x20-\x7e]*$`, Doc: "cursor of the page before"}}},
	{Name: "schedule.fire", TargetType: "schedule", TargetField: "schedule_id", Role: Operator, EnginePath: "engine",
		Redeliverable: true, Open: true, Doc: "fire a schedule", Fields: []ActionField{fieldSchedID, fieldAnyOf}},
	scheduleAction("schedule.trigger_now", "fire a schedule of an adapter now", true),
	scheduleAction("schedule.trigger_now.via_scheduler", "fire a schedule now through its scheduler", true),
	scheduleAction("schedule.enable", "enable a schedule of an adapter", true),
	scheduleAction("schedule.disable", "disable a schedule of an adapter", true),
	scheduleAction("schedule.delete", "delete a schedule of an adapter", false),
	{Name: "schedule.resync", TargetType: "scheduler", TargetField: "scheduler", Role: Operator, EnginePath: "engine",
		Redeliverable: true, Doc: "ask an adapter for all its schedules", Fields: []ActionField{fieldSched, fieldAnyOf}},
	{Name: "schedule.external.activate", TargetType: "scheduler", Role: Operator, EnginePath: "engine", Open: true,
		Doc: "activate an external scheduler"},
	{Name: "schedule.external.control", TargetType: "scheduler", Role: Operator, EnginePath: "engine", Open: true,
		Doc: "control an external scheduler"},
}

func scheduleAction(name, doc string, redeliverable bool) ActionSpec {
	return ActionSpec{Name: name, TargetType: "schedule", TargetField: "schedule_id", Role: Operator, EnginePath: "engine",
		Redeliverable: redeliverable, Doc: doc, Fields: []ActionField{fieldSched, fieldSchedID, fieldAnyOf}}
}

// poolResize is the one route with two actions, chosen by the sign of delta.
const poolResize = "pool-resize"

var actionIndex = func() map[string]*ActionSpec {
	m := make(map[string]*ActionSpec, len(actionTable))
	for i := range actionTable {
		m[actionTable[i].Name] = &actionTable[i]
	}
	return m
}()

// Actions returns the table of actions in its order. The caller must not change what the elements point at.
func Actions() []ActionSpec { return slices.Clone(actionTable) }

// LookupAction finds an action by name. The caller must not change it.
func LookupAction(name string) (*ActionSpec, bool) {
	a, ok := actionIndex[name]
	return a, ok
}

// Redeliverable tells whether an action is of the closed list that may be handed over again (agent protocol E.6).
func Redeliverable(action string) bool {
	a, ok := actionIndex[action]
	return ok && a.Redeliverable
}

// RedeliverableActions returns the closed list of agent protocol E.6.
func RedeliverableActions() []string {
	var names []string
	for i := range actionTable {
		if actionTable[i].Redeliverable {
			names = append(names, actionTable[i].Name)
		}
	}
	return names
}

// field finds a field of the payload.
func (a *ActionSpec) field(name string) *ActionField {
	for i := range a.Fields {
		if a.Fields[i].Name == name {
			return &a.Fields[i]
		}
	}
	return nil
}
