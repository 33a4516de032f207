package commands

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// issueRequest is one command to issue: the route below /commands ("" for the generic one) and its body without the
// fields all routes share.
type issueRequest struct {
	route string
	body  map[string]any
	task  *taskRef // the task it is about, when an agent has to know it already
}

// genericRequest goes to the route that takes any action.
func genericRequest(action, targetType, targetID string, payload any) issueRequest {
	body := map[string]any{"action": action, "target_type": targetType, "target_id": nil, "payload": payload}
	if targetID != "" {
		body["target_id"] = targetID
	}
	return issueRequest{body: body}
}

// issueFlags are common to all actions.
type issueFlags struct {
	agent          string
	idempotencyKey string
	wait           bool
	timeout        time.Duration
}

// issueVerb describes one `commands issue` subcommand.
type issueVerb struct {
	use, short, long, example string
	question                  string // asked before issuing; empty: the action is not destructive
	flags                     func(cmd *cobra.Command)
	request                   func(cmd *cobra.Command) (issueRequest, error)
}

const issueLong = `Issue a command to an agent. The command is stored before this returns and survives restarts of either side.

Without --wait the exit code says how it was taken: 0 when the agent is online; 8 when the agent is offline and the
command stays pending (its id is printed). With --wait it says how the command ended: 0 completed, 1 failed or cancelled,
7 not finished within --timeout, or the server gave the agent up (state timeout).

--agent may be left out when the project has one agent. Repeating a request with the same --idempotency-key never issues
it twice.`

func newCommandsIssueCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Issue a command to an agent",
		Long:  issueLong,
		Example: `  signalbox commands issue retry-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait
  signalbox commands issue raw --agent web-1 --action rate_limit --target-type task --target-id app.mail \
      --payload '{"task_name":"app.mail","rate":"10/m"}'`,
	}
	for _, verb := range issueVerbs() {
		cmd.AddCommand(newIssueVerbCommand(opts, verb))
	}
	return cmd
}

func newIssueVerbCommand(opts *options, verb issueVerb) *cobra.Command {
	var (
		f       issueFlags
		confirm confirmation
	)
	cmd := &cobra.Command{
		Use:     verb.use,
		Short:   verb.short,
		Long:    verb.long,
		Example: verb.example,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := verb.request(cmd)
			if err != nil {
				return err
			}
			if verb.question != "" {
				if err := confirm.ask(opts, verb.question); err != nil {
					return err
				}
			}
			return opts.issue(cmd.Context(), req, f)
		},
	}
	verb.flags(cmd)
	if verb.question != "" {
		confirm.add(cmd)
	}
	fs := cmd.Flags()
	fs.StringVar(&f.agent, "agent", "", "agent: name, id or unique id prefix (default: the project's only agent)")
	fs.StringVar(&f.idempotencyKey, "idempotency-key", "", "repeat-safe key, 1 to 200 characters, unique in the project")
	fs.BoolVar(&f.wait, "wait", false, "wait for the result")
	durationVar(fs, &f.timeout, "timeout", time.Minute, "longest wait of --wait; then exit code 7, and the command lives on")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeAgents)
	return cmd
}

// issue sends the request and shows what became of it.
func (o *options) issue(ctx context.Context, req issueRequest, f issueFlags) error {
	if f.timeout <= 0 {
		return usagef("--timeout: must be positive, got %s", f.timeout)
	}
	s, err := o.newScope(ctx)
	if err != nil {
		return err
	}
	req.body["agent_id"], err = s.theAgent(ctx, f.agent)
	if err != nil {
		return err
	}
	if req.task != nil {
		s.adviseUnknownTask(ctx, o, *req.task)
	}
	if f.idempotencyKey != "" {
		req.body["idempotency_key"] = f.idempotencyKey
	}
	path := s.path("commands")
	if req.route != "" {
		path = s.path("commands", req.route)
	}
	var c record[commandRow]
	err = s.post(ctx, path, req.body, &c)
	offline := err != nil && fault.Is(err, fault.AgentOffline)
	if offline {
		if c, err = s.keptCommand(ctx, err); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if f.wait {
		if offline {
			o.out.say("the agent is offline; waiting for it to take command %s", c.V.ID)
		}
		return o.waitFor(ctx, s, c, f.timeout)
	}
	if !offline {
		return o.showCommand(ctx, s, c)
	}
	if err := o.showCommand(ctx, s, c, field{"agent_offline", true}); err != nil {
		return err
	}
	exit := exitf(ExitDegraded, "the agent is offline: command %s stays pending", c.V.ID)
	exit.hint = "`signalbox commands explain " + c.V.ID + "` says what it waits for"
	return exit
}

// adviseUnknownTask says so when no event ever told of the task: ids are easily cut when copied. The agent may know it all
// the same, so the command is issued whatever the answer is.
func (s *scope) adviseUnknownTask(ctx context.Context, o *options, task taskRef) {
	err := s.get(ctx, s.path("tasks", task.engine, task.taskID), nil, nil)
	if fault.Is(err, fault.NotFound) && !isUnknownProject(err) {
		o.out.say("no task %s:%s is known here; sent as it is", oneLine(task.engine), oneLine(task.taskID))
	}
}

// keptCommand finds the row that an agent_offline answer says was kept pending.
func (s *scope) keptCommand(ctx context.Context, offline error) (record[commandRow], error) {
	var c record[commandRow]
	var api *apiError
	if !errors.As(offline, &api) {
		return c, offline
	}
	id, _ := api.fault.Details["command_id"].(string)
	if id, ok := fullID(id); ok {
		return c, s.get(ctx, s.path("commands", id), nil, &c)
	}
	return c, offline
}

// waitFor follows the command until it is finished. The row is read again each time the stream has been opened: what
// happened before that the stream does not tell.
func (o *options) waitFor(ctx context.Context, s *scope, c record[commandRow], timeout time.Duration) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	waitCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !c.V.terminal() {
		follow := &stream{
			client: s.client, path: s.path("commands", "stream"), query: url.Values{"command_id": {c.V.ID}},
			follow: true, delay: o.retryDelay, notice: o.out.say,
			opened: func(ctx context.Context) error { return s.recheck(ctx, &c) },
		}
		err := follow.run(waitCtx, func(*streamRecord) error { return s.recheck(waitCtx, &c) })
		if err != nil && waitCtx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return exitf(ExitFailed, "stopped waiting; command %s goes on", c.V.ID)
		}
	}
	if err := o.showCommand(ctx, s, c, field{"timed_out", !c.V.terminal()}); err != nil {
		return err
	}
	return outcome(c.V, timeout)
}

// recheck reads the row and ends the stream when the command is finished.
func (s *scope) recheck(ctx context.Context, c *record[commandRow]) error {
	var latest record[commandRow]
	if err := s.get(ctx, s.path("commands", c.V.ID), nil, &latest); err != nil {
		return err
	}
	*c = latest
	if latest.V.terminal() {
		return errStop
	}
	return nil
}

// outcome is the exit of a waiting command: how the awaited command ended.
func outcome(c commandRow, waited time.Duration) error {
	switch c.Status {
	case "completed":
		return nil
	case "failed":
		return exitf(ExitFailed, "command %s failed: %s", c.ID, oneLine(text(c.Error)))
	case "cancelled":
		return exitf(ExitFailed, "command %s was cancelled", c.ID)
	case "timeout":
		return exitf(ExitTimeout, "command %s timed out: %s", c.ID, oneLine(text(c.Error)))
	}
	exit := exitf(ExitTimeout, "command %s is still %s after %s", c.ID, c.Status, waited)
	exit.hint = "`signalbox commands explain " + c.ID + "` says what it waits for"
	return exit
}

// rawPayload parses --payload; absent means an empty object.
func rawPayload(j *jsonFlag) json.RawMessage {
	if j.raw == nil {
		return json.RawMessage("{}")
	}
	return j.raw
}
