package commands

import (
	"regexp"

	"github.com/spf13/cobra"
)

func purgeQueueVerb() issueVerb {
	var (
		queue, token, engine string
		depth                int
		force                bool
	)
	return issueVerb{
		use: "purge-queue", short: "Delete all waiting tasks of a queue",
		long: `Delete all waiting tasks of a queue. The agent measures the queue again and refuses when the depth differs from the one
the confirmation token was made for; --force leaves that check out. Needs the admin role.`,
		example: `  signalbox commands issue purge-queue --agent web-1 --queue mail --confirm-token 9b2f… --observed-depth 120 --yes
  signalbox commands issue purge-queue --agent web-1 --queue mail --force --yes --wait`,
		question: "Delete every waiting task of the queue?",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&queue, "queue", "", "queue name")
			cmd.Flags().StringVar(&token, "confirm-token", "", "confirmation token made for the observed depth")
			cmd.Flags().IntVar(&depth, "observed-depth", 0, "queue depth the confirmation token was made for")
			addEngine(cmd, &engine)
			cmd.Flags().BoolVar(&force, "force", false, "purge whatever the depth is now")
			mustRequire(cmd, "queue")
			cmd.MarkFlagsOneRequired("confirm-token", "observed-depth", "force")
		},
		request: func(cmd *cobra.Command) (issueRequest, error) {
			body := withoutEmpty(map[string]any{"queue": queue, "confirm_token": token, "force": force, "engine": engine})
			if cmd.Flags().Changed("observed-depth") {
				if depth < 0 {
					return issueRequest{}, usagef("--observed-depth: must not be negative, got %d", depth)
				}
				body["observed_depth"] = depth
			}
			return issueRequest{route: "purge-queue", body: body}, nil
		},
	}
}

// addEngine is the optional engine of actions that most agents have one adapter for.
func addEngine(cmd *cobra.Command, engine *string) {
	cmd.Flags().StringVar(engine, "engine", "", "engine, for an agent with several")
}

func addWorker(cmd *cobra.Command, worker *string) {
	cmd.Flags().StringVar(worker, "worker", "", "worker name, such as celery@host")
}

func restartWorkerVerb() issueVerb {
	var worker, engine string
	return issueVerb{
		use: "restart-worker", short: "Restart a worker's processes",
		example:  "  signalbox commands issue restart-worker --agent web-1 --worker celery@host --yes",
		question: "Restart the worker?",
		flags: func(cmd *cobra.Command) {
			addWorker(cmd, &worker)
			addEngine(cmd, &engine)
			mustRequire(cmd, "worker")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			body := withoutEmpty(map[string]any{"worker_name": worker, "engine": engine})
			return issueRequest{route: "restart-worker", body: body}, nil
		},
	}
}

func poolResizeVerb() issueVerb {
	var (
		worker, engine string
		grow, shrink   int
	)
	return issueVerb{
		use: "pool-resize", short: "Grow or shrink a worker's pool",
		example: `  signalbox commands issue pool-resize --agent web-1 --worker celery@host --grow 2
  signalbox commands issue pool-resize --agent web-1 --worker celery@host --shrink 1`,
		flags: func(cmd *cobra.Command) {
			addWorker(cmd, &worker)
			addEngine(cmd, &engine)
			cmd.Flags().IntVar(&grow, "grow", 0, "processes to add, 1 to 100")
			cmd.Flags().IntVar(&shrink, "shrink", 0, "processes to remove, 1 to 100")
			mustRequire(cmd, "worker")
			cmd.MarkFlagsMutuallyExclusive("grow", "shrink")
			cmd.MarkFlagsOneRequired("grow", "shrink")
		},
		request: func(cmd *cobra.Command) (issueRequest, error) {
			name, delta := "grow", grow
			if cmd.Flags().Changed("shrink") {
				name, delta = "shrink", shrink
			}
			if delta < 1 || delta > 100 {
				return issueRequest{}, usagef("--%s: must be between 1 and 100, got %d", name, delta)
			}
			if name == "shrink" {
				delta = -delta
			}
			body := withoutEmpty(map[string]any{"worker_name": worker, "delta": delta, "engine": engine})
			return issueRequest{route: "pool-resize", body: body}, nil
		},
	}
}

func consumerVerb(route string) issueVerb {
	var worker, queue, engine string
	verb := issueVerb{
		use: route, short: "Make a worker consume from a queue",
		example: "  signalbox commands issue " + route + " --agent web-1 --worker celery@host --queue mail",
		flags: func(cmd *cobra.Command) {
			addWorker(cmd, &worker)
			addEngine(cmd, &engine)
			cmd.Flags().StringVar(&queue, "queue", "", "queue name")
			mustRequire(cmd, "worker", "queue")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			body := withoutEmpty(map[string]any{"worker_name": worker, "queue": queue, "engine": engine})
			return issueRequest{route: route, body: body}, nil
		},
	}
	if route == "cancel-consumer" {
		verb.short = "Make a worker stop consuming from a queue"
		verb.question = "Stop the worker consuming from the queue?"
		verb.example += " --yes"
	}
	return verb
}

// rateForm is the form of a rate limit (agent protocol E.9).
var rateForm = regexp.MustCompile(`^(0|[1-9][0-9]*(/[smh])?)$`)

func rateLimitVerb() issueVerb {
	var task, rate, worker, engine string
	return issueVerb{
		use: "rate-limit", short: "Limit how often a task may run",
		example: `  signalbox commands issue rate-limit --agent web-1 --task app.tasks.mail --rate 10/m
  signalbox commands issue rate-limit --agent web-1 --task app.tasks.mail --rate 0   # no limit`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&task, "task", "", "task name")
			cmd.Flags().StringVar(&rate, "rate", "", "0 for no limit, or a number with an optional /s, /m or /h")
			addWorker(cmd, &worker)
			addEngine(cmd, &engine)
			mustRequire(cmd, "task", "rate")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			if !rateForm.MatchString(rate) {
				return issueRequest{}, usagef("--rate: must be 0 for no limit, or a whole number with an optional /s, /m or /h, "+
					"such as 10/m; got %q", rate)
			}
			body := withoutEmpty(map[string]any{"task_name": task, "rate": rate, "worker_name": worker, "engine": engine})
			return issueRequest{route: "rate-limit", body: body}, nil
		},
	}
}

func deadLetterListVerb() issueVerb {
	var (
		engine, queue, cursor string
		limit                 int
	)
	return issueVerb{
		use: "dlq-list", short: "Ask an agent for its dead letters",
		example: "  signalbox commands issue dlq-list --agent web-1 --engine rq --queue default --wait --json",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&engine, "engine", "", "engine of the queue, such as celery")
			cmd.Flags().StringVar(&queue, "queue", "", "only this queue (default: all)")
			cmd.Flags().IntVar(&limit, "limit", 100, "most entries, 1 to 200")
			cmd.Flags().StringVar(&cursor, "cursor", "", "next_cursor of an earlier result")
			mustRequire(cmd, "engine")
		},
		request: func(*cobra.Command) (issueRequest, error) {
			if limit < 1 || limit > 200 {
				return issueRequest{}, usagef("--limit: must be between 1 and 200, got %d", limit)
			}
			payload := map[string]any{"engine": engine, "queue": orNull(queue), "limit": limit, "cursor": orNull(cursor)}
			return genericRequest("dlq.list", "queue", queue, payload), nil
		},
	}
}
