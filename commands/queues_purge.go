package commands

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

func newQueuesPurgeCommand(opts *options) *cobra.Command {
	var f issueFlags
	var engine string
	var depth int
	var yes, force bool
	cmd := &cobra.Command{
		Use:   "purge QUEUE",
		Short: "Delete all waiting tasks of a queue, after showing how many there are",
		Long: `Delete all waiting tasks of a queue. Its depth as last measured is shown, and the name of the queue asked for; the server
turns the depth into a confirmation. The agent measures again and refuses when the depth has changed meanwhile: then look and
purge again. --force purges whatever the depth is. For scripts: --yes, with --depth N or --force. Needs the admin role.

The exit code is 0 when the queue was purged, 1 when the agent refused or failed, 7 without an answer within --timeout.`,
		Example: `  signalbox queues purge mail
  signalbox queues purge mail --engine celery --agent web-1 --depth 120 --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if depth < 0 {
				return usagef("--depth: must not be negative, got %d", depth)
			}
			if f.timeout <= 0 {
				return usagef("--timeout: must be positive, got %s", f.timeout)
			}
			given := cmd.Flags().Changed("depth")
			if yes && !given && !force {
				return usagef("--yes needs --depth, the number of tasks that you have seen, or --force")
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			q, err := s.queue(cmd.Context(), args[0], engine)
			if err != nil {
				return err
			}
			if engine == "" {
				engine = q.Engine
			}
			if !given && q.PendingCount != nil {
				depth = int(*q.PendingCount)
			}
			opts.out.say("%s", opts.depthText(args[0], q))
			if !given && q.PendingCount == nil && !force {
				return usagef("--depth: nobody has measured the queue; give the number of tasks that wait in it, or --force")
			}
			if err := opts.askName(yes, args[0], depth, force); err != nil {
				return err
			}
			body := withoutEmpty(map[string]any{"queue": args[0], "engine": engine, "force": force})
			if !force {
				body["observed_depth"] = depth
			}
			return opts.purge(cmd.Context(), s, body, f, depth)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&engine, "engine", "", "engine of the queue, when several have one of this name")
	fs.StringVar(&f.agent, "agent", "", "agent: name, id or unique id prefix (default: the project's only agent)")
	fs.IntVar(&depth, "depth", 0, "number of waiting tasks that you have seen (default: as last measured)")
	fs.BoolVarP(&yes, "yes", "y", false, "do not ask for the name of the queue")
	fs.BoolVar(&force, "force", false, "purge whatever the depth is now")
	durationVar(fs, &f.timeout, "timeout", time.Minute, "longest wait for the result")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeAgents)
	return cmd
}

// queue finds a queue by name; the zero value when no agent has reported it.
func (s *scope) queue(ctx context.Context, name, engine string) (queueRow, error) {
	var all []record[queueRow]
	if err := s.get(ctx, s.path("queues"), nil, &all); err != nil {
		return queueRow{}, err
	}
	found := keep(all, len(all), func(q queueRow) bool { return q.Name == name && (engine == "" || q.Engine == engine) })
	switch len(found) {
	case 0:
		return queueRow{}, nil
	case 1:
		return found[0].V, nil
	}
	var engines []string
	for _, q := range found {
		engines = append(engines, q.V.Engine)
	}
	return queueRow{}, usagef("--engine: %s have a queue %s, name one", strings.Join(engines, " and "), name)
}

func (o *options) depthText(name string, q queueRow) string {
	switch {
	case q.Name == "":
		return fmt.Sprintf("queue %s is not known here: no agent has reported it", name)
	case q.PendingCount == nil:
		return fmt.Sprintf("queue %s of %s: its depth is unknown", q.Name, q.Engine)
	}
	age := ""
	if q.LastSeenAt != nil {
		age = ", measured " + relative(q.LastSeenAt.Sub(o.now()))
	}
	return fmt.Sprintf("queue %s of %s: %d tasks wait%s", q.Name, q.Engine, *q.PendingCount, age)
}

// askName asks for the name of the queue, unless yes says that this was settled.
func (o *options) askName(yes bool, name string, depth int, force bool) error {
	if yes {
		return nil
	}
	if !o.stdio.InIsTerminal || o.stdio.In == nil {
		return usagef("Purge queue %s? Say so with --yes, and --depth %d or --force.", oneLine(name), depth)
	}
	what := fmt.Sprintf("its %d waiting tasks", depth)
	if force {
		what = "every waiting task"
	}
	fmt.Fprintf(o.stdio.Err, "This deletes %s for good. Type the name of the queue to go on: ", what)
	line, err := bufio.NewReader(io.LimitReader(o.stdio.In, 1024)).ReadString('\n')
	if err != nil && err != io.EOF {
		return fmt.Errorf("read confirmation: %w", err)
	}
	if strings.TrimSpace(line) != name {
		return exitf(ExitFailed, "not confirmed, nothing changed")
	}
	return nil
}

// purge issues the command and waits for its result.
func (o *options) purge(ctx context.Context, s *scope, body map[string]any, f issueFlags, depth int) error {
	var err error
	if body["agent_id"], err = s.theAgent(ctx, f.agent); err != nil {
		return err
	}
	var c record[commandRow]
	if err := s.post(ctx, s.path("commands", "purge-queue"), body, &c); err != nil {
		if fault.Is(err, fault.AgentOffline) {
			if kept, kerr := s.keptCommand(ctx, err); kerr == nil {
				o.out.say("the command stays pending until its time is over: `signalbox commands cancel %s` takes it back", kept.V.ID)
			}
		}
		return err
	}
	err = o.waitFor(ctx, s, c, f.timeout)
	var ended record[commandRow]
	if err == nil || body["force"] == true || s.get(ctx, s.path("commands", c.V.ID), nil, &ended) != nil || ended.V.Status != "failed" {
		return err
	}
	exit := exitf(ExitFailed, "queue %s was not purged: %s", oneLine(fmt.Sprint(body["queue"])), oneLine(text(ended.V.Error)))
	exit.hint = fmt.Sprintf("the agent measures the queue again and refuses when it does not hold the %d tasks that were confirmed: count "+
		"again, with `signalbox queues` or at the broker, and purge again, or use --force", depth)
	return exit
}
