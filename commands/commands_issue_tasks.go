package commands

import (
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/agent"
)

// issueVerbs lists the subcommands of `commands issue`: one for every action of the agent protocol (E.2), and raw.
func issueVerbs() []issueVerb {
	return []issueVerb{
		retryTaskVerb(), cancelTaskVerb(), requeueDeadLetterVerb(), bulkRetryVerb(), submitTaskVerb(), reconcileTaskVerb(),
		purgeQueueVerb(), restartWorkerVerb(), poolResizeVerb(), consumerVerb("add-consumer"), consumerVerb("cancel-consumer"),
		rateLimitVerb(), deadLetterListVerb(),
		scheduleFireVerb(), scheduleTriggerVerb(), scheduleSwitchVerb("enable"), scheduleSwitchVerb("disable"),
		scheduleDeleteVerb(), scheduleResyncVerb(), scheduleExternalVerb("activate"), scheduleExternalVerb("control"),
		rawVerb(),
	}
}

// taskRef names a task of an engine.
type taskRef struct{ engine, taskID string }

func (t *taskRef) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.engine, "engine", "", "engine of the task, such as celery")
	cmd.Flags().StringVar(&t.taskID, "task-id", "", "whole id of the task in its engine")
	mustRequire(cmd, "engine", "task-id")
}

func (t *taskRef) body() map[string]any {
	return map[string]any{"engine": t.engine, "task_id": t.taskID}
}

// mustRequire marks flags as required and says so in their usage. It panics on a flag that was not defined, a mistake that any test run shows.
func mustRequire(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
		cmd.Flags().Lookup(name).Usage += " (required)"
	}
}

func retryTaskVerb() issueVerb {
	var (
		ref    taskRef
		args   = jsonFlag{kind: '['}
		kwargs = jsonFlag{kind: '{'}
		delay  time.Duration
	)
	return issueVerb{
		use: "retry-task", short: "Run a finished or lost task again",
		example: `  signalbox commands issue retry-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait
  signalbox commands issue retry-task --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --args '[1]' --kwargs '{"dry":true}' --delay 30s`,
		flags: func(cmd *cobra.Command) {
			ref.add(cmd)
			cmd.Flags().Var(&args, "args", "positional arguments instead of the original ones; needs --kwargs too")
			cmd.Flags().Var(&kwargs, "kwargs", "keyword arguments instead of the original ones; needs --args too")
			durationVar(cmd.Flags(), &delay, "delay", 0, "run it this much later, whole seconds up to 24h")
			cmd.MarkFlagsRequiredTogether("args", "kwargs")
		},
		request: func(cmd *cobra.Command) (issueRequest, error) {
			body := ref.body()
			if args.raw != nil {
				body["override_args"], body["override_kwargs"] = args.value(), kwargs.value()
			}
			if cmd.Flags().Changed("delay") {
				if delay < 0 || delay > 24*time.Hour || delay%time.Second != 0 {
					return issueRequest{}, usagef("--delay: must be whole seconds between 0s and 24h, got %s", shortDuration(delay))
				}
				body["eta_seconds"] = int64(delay / time.Second)
			}
			return issueRequest{route: "retry-task", body: body, task: &ref}, nil
		},
	}
}

func cancelTaskVerb() issueVerb {
	var ref taskRef
	return issueVerb{
		use: "cancel-task", short: "Revoke a task that waits or runs",
		example:  "  signalbox commands issue cancel-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --yes",
		question: "Cancel the task?",
		flags:    ref.add,
		request: func(*cobra.Command) (issueRequest, error) {
			return issueRequest{route: "cancel-task", body: ref.body(), task: &ref}, nil
		},
	}
}

func requeueDeadLetterVerb() issueVerb {
	var ref taskRef
	return issueVerb{
		use: "requeue-dead-letter", short: "Put a dead-lettered task back on its queue",
		example: "  signalbox commands issue requeue-dead-letter --agent web-1 --engine rq --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait",
		flags:   ref.add,
		request: func(*cobra.Command) (issueRequest, error) {
			return issueRequest{route: "requeue-dead-letter", body: ref.body(), task: &ref}, nil
		},
	}
}

func bulkRetryVerb() issueVerb {
	var (
		filter = jsonFlag{kind: '{'}
		engine string
		state  string
		queue  string
		name   string
		most   int

		taskIDs []string
	)
	return issueVerb{
		use: "bulk-retry", short: "Retry several tasks with one command; the published adapters want their ids",
		long: `Retry several tasks with one command, which one agent executes as a whole. See bulk-retries for a command per task that goes
on through restarts and shows its progress.`,
		example: `  signalbox commands issue bulk-retry --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --task-id 77ab0c5e-6b1d-4f0a-8a3e-1c2d3e4f5a6b --yes
  signalbox commands issue bulk-retry --agent web-1 --filter '{"engine":"celery","task_ids":["3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10","77ab0c5e-6b1d-4f0a-8a3e-1c2d3e4f5a6b"]}' --yes`,
		question: "Retry every matching task?",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Var(&filter, "filter", "filter as a JSON object of engine, state, status, queue, name, since, until, task_ids, in place of the other flags")
			cmd.Flags().StringVar(&engine, "engine", "", "only tasks of this engine, such as celery")
			cmd.Flags().StringArrayVar(&taskIDs, "task-id", nil, "only the task with this whole id; repeat for more")
			cmd.Flags().StringVar(&state, "state", "", "only tasks in this state, such as failure; needs an adapter that selects by itself")
			cmd.Flags().StringVar(&queue, "queue", "", "only tasks of this queue; needs an adapter that selects by itself")
			cmd.Flags().StringVar(&name, "name", "", "only tasks of this name; needs an adapter that selects by itself")
			cmd.Flags().IntVar(&most, "max", 1000, "most tasks to retry, 1 to 10000")
			for _, other := range []string{"engine", "task-id", "state", "queue", "name"} {
				cmd.MarkFlagsMutuallyExclusive("filter", other)
			}
			cmd.MarkFlagsOneRequired("filter", "engine")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			if most < 1 || most > 10000 {
				return issueRequest{}, usagef("--max: must be between 1 and 10000, got %d", most)
			}
			var value any = filter.value()
			if filter.raw == nil {
				fields := withoutEmpty(map[string]any{"engine": engine, "state": state, "queue": queue, "name": name})
				if len(taskIDs) > 0 {
					fields["task_ids"] = taskIDs
				}
				value = fields
			}
			// Its own route takes no task ids any more (agent protocol E.9); this one is for what the published adapters want.
			return genericRequest("bulk_retry", "bulk", "", map[string]any{"filter": value, "max": most}), nil
		},
	}
}

// withoutEmpty drops members that are empty strings.
func withoutEmpty(m map[string]any) map[string]any {
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}

func submitTaskVerb() issueVerb {
	var (
		name, queue, eta, engine string
		priority                 int
		args                     = jsonFlag{kind: '[', raw: json.RawMessage("[]")}
		kwargs                   = jsonFlag{kind: '{', raw: json.RawMessage("{}")}
	)
	return issueVerb{
		use: "submit-task", short: "Submit a new task",
		example: `  signalbox commands issue submit-task --agent web-1 --name app.tasks.add --args '[1,2]' --wait`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&name, "name", "", "task name as registered in the worker")
			cmd.Flags().Var(&args, "args", "positional arguments as a JSON list")
			cmd.Flags().Var(&kwargs, "kwargs", "keyword arguments as a JSON object")
			cmd.Flags().StringVar(&engine, "engine", "", "engine to submit to, when the agent has several")
			cmd.Flags().StringVar(&queue, "queue", "", "queue to submit to")
			cmd.Flags().IntVar(&priority, "priority", 0, "broker priority, 0 to 255")
			cmd.Flags().StringVar(&eta, "eta", "", "earliest start, an RFC 3339 time")
			mustRequire(cmd, "name")
		},
		request: func(cmd *cobra.Command) (issueRequest, error) {
			payload := map[string]any{"name": name, "args": args.value(), "kwargs": kwargs.value(),
				"queue": orNull(queue), "priority": nil, "eta": nil}
			if cmd.Flags().Changed("priority") {
				if priority < 0 || priority > 255 {
					return issueRequest{}, usagef("--priority: must be between 0 and 255, got %d", priority)
				}
				payload["priority"] = priority
			}
			if engine != "" {
				payload["engine"] = engine
			}
			if eta != "" {
				t, err := parseTime("--eta", eta)
				if err != nil {
					return issueRequest{}, err
				}
				payload["eta"] = float64(t.UnixMilli()) / 1000
			}
			return genericRequest("submit_task", "task", name, payload), nil
		},
	}
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func reconcileTaskVerb() issueVerb {
	var ref taskRef
	return issueVerb{
		use: "reconcile-task", short: "Ask the engine for the true state of a task",
		example: "  signalbox commands issue reconcile-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait",
		flags:   ref.add,
		request: func(*cobra.Command) (issueRequest, error) {
			req := genericRequest("reconcile_task", "task", ref.engine+":"+ref.taskID, ref.body())
			req.task = &ref
			return req, nil
		},
	}
}

// actionNames lists the actions, for completion. The server judges: a newer one may know more.
func actionNames() []string {
	var names []string
	for _, spec := range agent.Actions() {
		names = append(names, spec.Name)
	}
	return names
}

func rawVerb() issueVerb {
	var (
		action, targetType, targetID string
		payload                      = jsonFlag{kind: '{'}
	)
	return issueVerb{
		use: "raw", short: "Issue any action with a payload as given",
		long: "Issue any action of the agent protocol with a payload as given. The server checks it like the typed commands.",
		example: `  signalbox commands issue raw --agent web-1 --action rate_limit --target-type task --target-id app.mail \
      --payload '{"task_name":"app.mail","rate":"10/m"}' --yes`,
		question: "Issue the command as given?",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&action, "action", "", "action, such as retry_task")
			cmd.Flags().StringVar(&targetType, "target-type", "", "task, queue, worker, bulk, schedule or scheduler (default: the action's)")
			cmd.Flags().StringVar(&targetID, "target-id", "", "id of the target (default: what the payload implies)")
			cmd.Flags().Var(&payload, "payload", "payload as a JSON object")
			mustRequire(cmd, "action")
			_ = cmd.RegisterFlagCompletionFunc("action", cobra.FixedCompletions(actionNames(), cobra.ShellCompDirectiveNoFileComp))
		},
		request: func(*cobra.Command) (issueRequest, error) {
			req := genericRequest(action, targetType, targetID, rawPayload(&payload))
			if targetType == "" {
				delete(req.body, "target_type")
			}
			return req, nil
		},
	}
}
