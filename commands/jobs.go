package commands

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func newJobsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Preview, run, watch, explain, cancel and resolve archive jobs",
		Long: `Preview, run, watch, explain, cancel and resolve archive jobs.

A transfer copies a resource from one daemon to another and leaves the source as it is. An adoption takes over what is
already there. An eviction gives up the source's copy of what a completed job has verified elsewhere. Each begins with a
preview that changes nothing. A job is named by its id or a unique beginning of its id.`,
		Example: `  signalbox jobs preview transfer nas ubuntu-24.04 attic
  signalbox jobs transfer nas ubuntu-24.04 attic --watch
  signalbox jobs show 0193a2b4c5d6
  signalbox jobs explain 0193a2b4c5d6`,
	}
	cmd.AddCommand(newJobsPreviewCommand(opts), newJobsTransferCommand(opts, false), newJobsAdoptCommand(opts, false), newJobsEvictCommand(opts, false),
		newJobsListCommand(opts), newJobsShowCommand(opts), newJobsWatchCommand(opts), newJobsExplainCommand(opts), newJobsCancelCommand(opts),
		newJobsRetryCommand(opts), newJobsResolveCommand(opts))
	return cmd
}

var jobStates = []string{"pending", "preflight", "assigning", "running", "stalled", "waiting", "cancelling", "manual", "completed", "failed", "cancelled"}

var jobOperations = []string{"transfer", "adopt", "evict"}

func newJobsListCommand(opts *options) *cobra.Command {
	var (
		f                 filters
		open              bool
		daemon, operation string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, newest first",
		Example: `  signalbox jobs list --open
  signalbox jobs list --state manual --daemon nas --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			if open && f.state != "" {
				return usagef("--open and --state exclude each other")
			}
			ctx := cmd.Context()
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if daemon != "" {
				d, err := c.named(ctx, kindDaemon, daemon, nil)
				if err != nil {
					return err
				}
				query.Set("daemon", d.ID)
			}
			if open {
				query.Set("open", "true")
			}
			setNonEmpty(query, "state", f.state)
			setNonEmpty(query, "operation", operation)
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[jobRow](ctx, c, "/jobs", query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.ID, r.V.Operation, cut(r.V.Title, 40), r.V.way(), r.V.stateText(), dash(text(r.V.Step)),
					percent(r.V.Progress.OverallFraction), opts.out.when(r.V.CreatedAt)})
			}
			return opts.out.table([]string{"ID", "OPERATION", "TITLE", "DAEMONS", "STATE", "STEP", "DONE", "CREATED"}, table)
		},
	}
	f.addState(cmd, jobStates...)
	f.addLimit(cmd)
	f.addCursor(cmd, "go on after this cursor of an earlier list")
	cmd.Flags().BoolVar(&open, "open", false, "only jobs that have not ended")
	cmd.Flags().StringVar(&daemon, "daemon", "", "only jobs of this daemon: name, id or unique id prefix")
	cmd.Flags().Var(&oneOf{into: &operation, words: jobOperations}, "operation", "only "+strings.Join(jobOperations, ", "))
	_ = cmd.RegisterFlagCompletionFunc("daemon", opts.completeDaemons())
	_ = cmd.RegisterFlagCompletionFunc("operation", cobra.FixedCompletions(jobOperations, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newJobsShowCommand(opts *options) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "show JOB",
		Short: "Show one job with its story: commands, acknowledgements, events, evidence, decisions",
		Example: `  signalbox jobs show 0193a2b4c5d6
  signalbox jobs show 0193a2b4c5d6 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usagef("--limit: must be at least 1, got %d", limit)
			}
			ctx := cmd.Context()
			c, id, err := opts.archiveClient(ctx, kindJob, args[0])
			if err != nil {
				return err
			}
			var j record[jobDetail]
			if err := c.get(ctx, roomPath("jobs", id.ID), nil, &j); err != nil {
				return err
			}
			story, next, err := list[jobEntry](ctx, c, roomPath("jobs", id.ID, "timeline"), url.Values{}, limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"job", j}, field{"timeline", story}, field{"next_cursor", next})
			}
			if err := opts.showJob(&j.V); err != nil {
				return err
			}
			opts.out.text("")
			for i := range story {
				opts.out.text("%s", opts.storyLine(&story[i].V))
			}
			if next != nil && len(story) == limit {
				opts.out.say("the story may go on; --limit shows more")
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "most lines of the story, from its beginning")
	return cmd
}

func (o *options) showJob(j *jobDetail) error {
	moved := ""
	if !j.ended() {
		moved = o.out.when(j.Progress.MovedAt)
	}
	err := o.out.facts([2]string{"id", j.ID}, [2]string{"operation", j.Operation}, [2]string{"title", j.Title}, [2]string{"daemons", j.way()},
		[2]string{"state", j.stateText()}, [2]string{"done", percent(j.Progress.OverallFraction)}, [2]string{"committed", yesNo(j.Committed)},
		[2]string{"resource", j.ResourceID}, [2]string{"route", text(j.RouteID)}, [2]string{"parent", text(j.ParentID)},
		[2]string{"preview", text(j.PreviewID)}, [2]string{"error", j.Error.String()}, [2]string{"trash kept until", o.out.when(j.RetainUntil)},
		[2]string{"last movement", moved}, [2]string{"created", o.out.when(j.CreatedAt)}, [2]string{"by", j.CreatedBy},
		[2]string{"started", o.out.when(j.StartedAt)}, [2]string{"ended", o.out.when(j.EndedAt)})
	if err != nil {
		return err
	}
	if len(j.StepList) > 0 {
		rows := make([][]string, 0, len(j.StepList))
		for _, s := range j.StepList {
			rows = append(rows, []string{strings.ToUpper(s.Step), s.State, dash(text(s.Daemon)), fmt.Sprint(s.Attempts), dash(evidenceText(s.Evidence))})
		}
		o.out.text("")
		if err := o.out.table([]string{"STEP", "STATE", "BY", "ATTEMPTS", "EVIDENCE"}, rows); err != nil {
			return err
		}
	}
	if len(j.Participants) > 0 {
		rows := make([][]string, 0, len(j.Participants))
		for _, p := range j.Participants {
			reported := "-"
			if r := p.Reported; r != nil {
				reported = fmt.Sprintf("%s, revision %d, event %d, committed %s", r.State, r.Revision, r.LastEventSequence, yesNo(r.Committed))
			}
			rows = append(rows, []string{p.Daemon, p.Role, onlineText(p.Online), dash(p.State), fmt.Sprint(p.Revision), fmt.Sprint(p.Sequence), yesNo(p.Committed), reported})
		}
		o.out.text("")
		if err := o.out.table([]string{"DAEMON", "ROLE", "IS", "STATE", "REVISION", "EVENT", "COMMITTED", "REPORTED LAST"}, rows); err != nil {
			return err
		}
	}
	if len(j.Alerts) > 0 {
		o.out.text("")
		return o.alertTable(j.Alerts)
	}
	return nil
}

func newJobsExplainCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain JOB",
		Short: "Say what a job waits for, why, and what to do",
		Long:  `Say in sentences where a job stands: what it waits for, why, what to do, and every attempt to hand its commands to its daemons.`,
		Example: `  signalbox jobs explain 0193a2b4c5d6
  signalbox jobs explain 0193a2b4c5d6 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs("open=true"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.archiveClient(cmd.Context(), kindJob, args[0])
			if err != nil {
				return err
			}
			return opts.explainJob(cmd.Context(), c, id.ID)
		},
	}
}

// decideJob sends a decision and shows the job as it is then.
func (o *options) decideJob(ctx context.Context, c *client, id, verb string, body map[string]any) error {
	var j record[jobDetail]
	if err := c.post(ctx, roomPath("jobs", id, verb), body, &j); err != nil {
		return err
	}
	if o.json {
		return o.out.object("job", j)
	}
	o.out.text("job %s is %s", j.V.ID, j.V.stateText())
	if j.V.Explanation.NextAction != "" {
		o.out.say("%s", j.V.Explanation.NextAction)
	}
	return nil
}

// theJob reads the job that an argument names.
func (o *options) theJob(ctx context.Context, arg string) (*client, record[jobDetail], error) {
	var j record[jobDetail]
	c, id, err := o.archiveClient(ctx, kindJob, arg)
	if err == nil {
		err = c.get(ctx, roomPath("jobs", id.ID), nil, &j)
	}
	return c, j, err
}

func newJobsCancelCommand(opts *options) *cobra.Command {
	var (
		confirm confirmation
		reason  string
	)
	cmd := &cobra.Command{
		Use:   "cancel JOB",
		Short: "End a job that is not committed, and have the daemons undo their parts",
		Long: `End a job that is not committed, and have the daemons undo their parts, one after the other. The source stays as it was, and of
what the job made at the target nothing is left. A job that is committed cannot be cancelled.`,
		Example: `  signalbox jobs cancel 0193a2b4c5d6 --reason 'wrong target' --yes
  signalbox jobs cancel 0193a2b4c5d6 --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs("open=true"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, j, err := opts.theJob(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			question := fmt.Sprintf("Cancel %s of %s, %s, %s done?", j.V.Operation, j.V.Title, j.V.way(), percent(j.V.Progress.OverallFraction))
			if err := confirm.ask(opts, question); err != nil {
				return err
			}
			body := map[string]any{}
			if reason != "" {
				body["reason"] = reason
			}
			return opts.decideJob(cmd.Context(), c, j.V.ID, "cancel", body)
		},
	}
	confirm.add(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log and told to the daemons")
	return cmd
}

func newJobsRetryCommand(opts *options) *cobra.Command {
	var attempts int
	cmd := &cobra.Command{
		Use:   "retry JOB",
		Short: "Have a waiting job tried again, and grant it attempts",
		Long: `Grant attempts to a job that waits because its step failed too often, or because a command was sent as often as allowed and
never acknowledged. A job that waits for free space, for what holds the content, or for the end of a pause is tried at once. A
job that has failed is not retried: make a new one.`,
		Example: `  signalbox jobs retry 0193a2b4c5d6
  signalbox jobs retry 0193a2b4c5d6 --attempts 10 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs("state=waiting"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if attempts < 0 || attempts > 100 {
				return usagef("--attempts: must be 1 to 100, got %d", attempts)
			}
			c, id, err := opts.archiveClient(cmd.Context(), kindJob, args[0])
			if err != nil {
				return err
			}
			body := map[string]any{}
			if attempts > 0 {
				body["attempts"] = attempts
			}
			return opts.decideJob(cmd.Context(), c, id.ID, "retry", body)
		},
	}
	cmd.Flags().IntVar(&attempts, "attempts", 0, "how many; 0: as many as a new job has")
	return cmd
}

// resolutions say what each decision about a held job means, where it is another thing for an operation with its name.
var resolutions = map[string]string{
	"resume": "Resume it from where control stands? The daemons are told control's place in the job, and go on from there; what contradicts it holds the job again.",
	"complete": "Take it as completed? Control believes from now on that the content is whole and in effect at the target, without further proof; an eviction can " +
		"rest on it only if the target had reported its commit. The daemons forget the job, and its files stay as they are.",
	"complete evict": "Take it as completed? Control believes from now on that the source's copy is given up, without further proof. The daemons forget the job: what is " +
		"in the trash of the source stays there until you remove it, and what is not there yet stays in its place.",
	"abandon": "Abandon it? It ends as failed. The daemons forget the job, and every file of it stays where it is, for you to look at and remove.",
}

func newJobsResolveCommand(opts *options) *cobra.Command {
	var (
		confirm                   confirmation
		reason                    string
		resume, complete, abandon bool
	)
	cmd := &cobra.Command{
		Use:   "resolve JOB",
		Short: "Decide about a job that is held because control and the daemons cannot agree",
		Long: `Decide about a job that is held (state manual) because control and the daemons cannot agree, or because work failed after the
commit. Nothing is cleaned up before you decide. Read jobs show and jobs explain first.

  --resume    go on from where control stands; the daemons follow, or the job is held again
  --complete  take the job as completed, without further proof; every file stays where it is, also in a trash
  --abandon   end the job as failed; its files stay, for you to look at and remove`,
		Example: `  signalbox jobs resolve 0193a2b4c5d6 --resume --reason 'database of nas was restored' --yes
  signalbox jobs resolve 0193a2b4c5d6 --abandon --reason 'disk lost' --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs("state=manual"),
		RunE: func(cmd *cobra.Command, args []string) error {
			decision := ""
			for name, given := range map[string]bool{"resume": resume, "complete": complete, "abandon": abandon} {
				if given {
					decision = name
				}
			}
			if strings.TrimSpace(reason) == "" {
				return usagef("--reason: say why; the audit log keeps it, and nobody else will know")
			}
			c, j, err := opts.theJob(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			meaning := resolutions[decision]
			if special := resolutions[decision+" "+j.V.Operation]; special != "" {
				meaning = special
			}
			question := fmt.Sprintf("Job %s is %s: %s of %s, %s. %s", shortID(j.V.ID), j.V.stateText(), j.V.Operation, j.V.Title, j.V.way(), meaning)
			if err := confirm.ask(opts, question); err != nil {
				return err
			}
			return opts.decideJob(cmd.Context(), c, j.V.ID, "resolve", map[string]any{"decision": decision, "reason": reason})
		},
	}
	confirm.add(cmd)
	cmd.Flags().BoolVar(&resume, "resume", false, "go on from where control stands")
	cmd.Flags().BoolVar(&complete, "complete", false, "take the job as completed")
	cmd.Flags().BoolVar(&abandon, "abandon", false, "end the job as failed; its files stay")
	cmd.Flags().StringVar(&reason, "reason", "", "why; required, and kept in the audit log")
	cmd.MarkFlagsOneRequired("resume", "complete", "abandon")
	cmd.MarkFlagsMutuallyExclusive("resume", "complete", "abandon")
	return cmd
}
