package commands

import (
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// scheduleRef names a schedule that a scheduler adapter of the agent owns.
type scheduleRef struct{ scheduler, id, engine string }

func (r *scheduleRef) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.scheduler, "scheduler", "", "scheduler that owns the schedule, such as celery-beat")
	cmd.Flags().StringVar(&r.id, "schedule-id", "", "id of the schedule")
	addEngine(cmd, &r.engine)
	mustRequire(cmd, "scheduler", "schedule-id")
}

func (r *scheduleRef) request(action string) issueRequest {
	payload := withoutEmpty(map[string]any{"scheduler": r.scheduler, "schedule_id": r.id, "engine": r.engine})
	return genericRequest(action, "schedule", r.id, payload)
}

func scheduleFireVerb() issueVerb {
	var (
		scheduleID, name, task, engine, queue, fireID, at string
		args                                              = jsonFlag{kind: '[', raw: []byte("[]")}
		kwargs                                            = jsonFlag{kind: '{', raw: []byte("{}")}
	)
	return issueVerb{
		use: "schedule-fire", short: "Run the task of a schedule once, as a fire",
		long: `Run the task of a schedule once, as a fire. An agent runs each fire id once, however often it is delivered.
The fire id is made up when --fire-id is not given.`,
		example: `  signalbox commands issue schedule-fire --agent web-1 --schedule-id 5b1e… --name nightly --task app.nightly --engine celery`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&scheduleID, "schedule-id", "", "id of the schedule")
			cmd.Flags().StringVar(&name, "name", "", "name of the schedule")
			cmd.Flags().StringVar(&task, "task", "", "task name")
			cmd.Flags().StringVar(&engine, "engine", "", "engine, such as celery")
			cmd.Flags().StringVar(&queue, "queue", "", "queue to submit to")
			cmd.Flags().Var(&args, "args", "positional arguments as a JSON list")
			cmd.Flags().Var(&kwargs, "kwargs", "keyword arguments as a JSON object")
			cmd.Flags().StringVar(&fireID, "fire-id", "", "UUID of the fire")
			cmd.Flags().StringVar(&at, "scheduled-for", "", "RFC 3339 time of the tick (default: now)")
			mustRequire(cmd, "schedule-id", "task", "engine")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			now := time.Now().UTC()
			scheduled := now
			if at != "" {
				t, err := parseTime("--scheduled-for", at)
				if err != nil {
					return issueRequest{}, err
				}
				scheduled = t.UTC()
			}
			if fireID == "" {
				fireID = uuid.NewString()
			}
			id, ok := fullID(fireID)
			if !ok {
				return issueRequest{}, usagef("--fire-id: %q is not a UUID", fireID)
			}
			if name == "" {
				name = scheduleID
			}
			payload := map[string]any{"schedule_id": scheduleID, "schedule_name": name, "task_name": task, "engine": engine,
				"queue": orNull(queue), "args": args.value(), "kwargs": kwargs.value(), "fire_id": id,
				"scheduled_for": scheduled.Format(time.RFC3339Nano), "fired_at": now.Format(time.RFC3339Nano)}
			return genericRequest("schedule.fire", "schedule", scheduleID, payload), nil
		},
	}
}

func scheduleTriggerVerb() issueVerb {
	var (
		ref scheduleRef
		via bool
	)
	return issueVerb{
		use: "schedule-trigger-now", short: "Trigger a schedule that the agent's scheduler owns",
		example: `  signalbox commands issue schedule-trigger-now --agent web-1 --scheduler celery-beat --schedule-id 12
  signalbox commands issue schedule-trigger-now --agent web-1 --scheduler celery-beat --schedule-id 12 --via-scheduler`,
		flags: func(cmd *cobra.Command) {
			ref.add(cmd)
			cmd.Flags().BoolVar(&via, "via-scheduler", false, "let the scheduler itself submit the task")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			if via {
				return ref.request("schedule.trigger_now.via_scheduler"), nil
			}
			return ref.request("schedule.trigger_now"), nil
		},
	}
}

// scheduleSwitchVerb is enable or disable.
func scheduleSwitchVerb(word string) issueVerb {
	var ref scheduleRef
	verb := issueVerb{
		use: "schedule-" + word, short: "Let a schedule fire again",
		example: "  signalbox commands issue schedule-" + word + " --agent web-1 --scheduler celery-beat --schedule-id 12",
		flags:   ref.add,
		request: func(*cobra.Command) (issueRequest, error) { return ref.request("schedule." + word), nil },
	}
	if word == "disable" {
		verb.short = "Keep a schedule from firing"
	}
	return verb
}

func scheduleDeleteVerb() issueVerb {
	var ref scheduleRef
	return issueVerb{
		use: "schedule-delete", short: "Delete a schedule from the agent's scheduler",
		example:  "  signalbox commands issue schedule-delete --agent web-1 --scheduler celery-beat --schedule-id 12 --yes",
		question: "Delete the schedule?",
		flags:    ref.add,
		request:  func(*cobra.Command) (issueRequest, error) { return ref.request("schedule.delete"), nil },
	}
}

func scheduleResyncVerb() issueVerb {
	var scheduler, engine string
	return issueVerb{
		use: "schedule-resync", short: "Ask a scheduler for a full snapshot of its schedules",
		example: "  signalbox commands issue schedule-resync --agent web-1 --scheduler celery-beat",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&scheduler, "scheduler", "", "scheduler, such as celery-beat")
			addEngine(cmd, &engine)
			mustRequire(cmd, "scheduler")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			payload := withoutEmpty(map[string]any{"scheduler": scheduler, "engine": engine})
			return genericRequest("schedule.resync", "scheduler", scheduler, payload), nil
		},
	}
}

// scheduleExternalVerb is activate or control of the external schedule projection. Its parameters are a closed set that
// belongs to a projection in progress, so they are passed as one object.
func scheduleExternalVerb(word string) issueVerb {
	var (
		owner   string
		payload = jsonFlag{kind: '{'}
	)
	verb := issueVerb{
		use: "schedule-external-" + word, short: "Start the external schedule projection of an agent",
		example:  "  signalbox commands issue schedule-external-" + word + ` --agent web-1 --owner beat-1 --payload '{"scheduler":"celery-beat", …}' --yes`,
		question: "Issue it with the parameters as given?",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&owner, "owner", "", "scheduler owner, the target of the command")
			cmd.Flags().Var(&payload, "payload", "parameters as a JSON object")
			mustRequire(cmd, "owner", "payload")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			return genericRequest("schedule.external."+word, "scheduler", owner, rawPayload(&payload)), nil
		},
	}
	if word == "control" {
		verb.short = "Change a schedule of the external schedule projection"
	}
	return verb
}
