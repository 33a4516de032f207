package commands

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

func newTasksCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tasks",
		Short:   "List and show the tasks that events tell of",
		Example: "  signalbox tasks list --state failure",
	}
	cmd.AddCommand(newTasksListCommand(opts), newTasksShowCommand(opts), newTasksTreeCommand(opts))
	return cmd
}

func newTasksListCommand(opts *options) *cobra.Command {
	var (
		f                                            filters
		name, search, queue, worker, priority, until string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, newest first",
		Example: `  signalbox tasks list --state failure --since 1h
  signalbox tasks list --queue mail --limit 500 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			since, err := f.sinceTime(opts.now())
			if err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := map[string][]string{}
			for key, value := range map[string]string{"state": f.state, "name": name, "search": search, "queue": queue,
				"worker": worker, "priority": priority, "since": since, "until": until, "cursor": f.cursor} {
				setNonEmpty(query, key, value)
			}
			rows, next, err := list[taskRow](cmd.Context(), s, s.path("tasks"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				t := r.V
				table = append(table, []string{t.Engine + ":" + t.TaskID, t.Name, t.State, dash(text(t.Queue)),
					dash(text(t.WorkerName)), opts.out.when(t.ReceivedAt), opts.out.when(t.FinishedAt)})
			}
			return opts.out.table([]string{"TASK", "NAME", "STATE", "QUEUE", "WORKER", "RECEIVED", "FINISHED"}, table)
		},
	}
	f.addState(cmd, "pending", "received", "started", "success", "failure", "retry", "revoked", "rejected", "unknown")
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	cmd.Flags().StringVar(&name, "name", "", "only this task name")
	cmd.Flags().StringVar(&search, "search", "", "only tasks whose id or name contains this")
	cmd.Flags().StringVar(&queue, "queue", "", "only this queue")
	cmd.Flags().StringVar(&worker, "worker", "", "only this worker")
	cmd.Flags().StringVar(&priority, "priority", "", "only this priority: critical, high, normal, low")
	cmd.Flags().StringVar(&until, "until", "", "only older than this RFC 3339 time")
	return cmd
}

var engineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// splitTask reads "engine:task_id", or a bare task id with the engine given beside it.
func splitTask(arg, engine string) (eng, taskID string, err error) {
	if engine != "" {
		return engine, arg, nil
	}
	head, tail, ok := strings.Cut(arg, ":")
	if !ok || tail == "" || !engineName.MatchString(head) {
		return "", "", usagef("task %q: write ENGINE:TASK_ID, or give --engine", arg)
	}
	return head, tail, nil
}

// unknownTask words the server's "not found" with the likeliest reason: the id is not whole.
func (s *scope) unknownTask(err error, engine, taskID string) error {
	if !fault.Is(err, fault.NotFound) || isUnknownProject(err) {
		return err
	}
	return notFound("no task %s:%s in project %s; task ids must be whole, try %q", oneLine(engine), oneLine(taskID), s.slug,
		"tasks list --search "+oneLine(taskID))
}

func newTasksShowCommand(opts *options) *cobra.Command {
	var (
		engine string
		events int
	)
	cmd := &cobra.Command{
		Use:   "show ENGINE:TASK_ID",
		Short: "Show one task with its events",
		Example: `  signalbox tasks show celery:3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10
  signalbox tasks show 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --engine celery --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			eng, taskID, err := splitTask(args[0], engine)
			if err != nil {
				return err
			}
			if events < 0 || events > 5000 {
				return usagef("--events: must be between 0 and 5000, got %d", events)
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var t record[taskRow]
			if err := s.get(cmd.Context(), s.path("tasks", eng, taskID), nil, &t); err != nil {
				return s.unknownTask(err, eng, taskID)
			}
			query := map[string][]string{"engine": {eng}, "task_id": {taskID}}
			rows, _, err := list[eventRow](cmd.Context(), s, s.path("events"), query, events)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"task", t}, field{"events", rows})
			}
			return opts.showTask(t.V, rows)
		},
	}
	cmd.Flags().StringVar(&engine, "engine", "", "engine, when the argument is a bare task id")
	cmd.Flags().IntVar(&events, "events", 50, "most events to show, newest first; 0 for none")
	return cmd
}

func (o *options) showTask(t taskRow, events []record[eventRow]) error {
	runtime := ""
	if t.RuntimeMS != nil {
		runtime = strings.TrimSuffix(strings.TrimRight(formatFloat(*t.RuntimeMS), "0"), ".") + " ms"
	}
	err := o.out.facts(
		[2]string{"task", t.Engine + ":" + t.TaskID}, [2]string{"name", t.Name}, [2]string{"state", t.State},
		[2]string{"queue", text(t.Queue)}, [2]string{"priority", t.Priority}, [2]string{"worker", text(t.WorkerName)},
		[2]string{"args", jsonText(t.Args)}, [2]string{"kwargs", jsonText(t.Kwargs)}, [2]string{"result", jsonText(t.Result)},
		[2]string{"retries", itoa(t.RetryCount)}, [2]string{"parent", text(t.ParentTaskID)}, [2]string{"root", text(t.RootTaskID)},
		[2]string{"received", o.out.when(t.ReceivedAt)}, [2]string{"started", o.out.when(t.StartedAt)},
		[2]string{"finished", o.out.when(t.FinishedAt)}, [2]string{"runtime", runtime},
		[2]string{"exception", text(t.Exception)})
	if err != nil {
		return err
	}
	if tb := text(t.Traceback); tb != "" {
		o.out.text("\n%s", printable(tb))
	}
	if len(events) == 0 {
		return nil
	}
	o.out.text("\nEvents:")
	return o.eventTable(events)
}

func newTasksTreeCommand(opts *options) *cobra.Command {
	var engine string
	cmd := &cobra.Command{
		Use:   "tree ENGINE:TASK_ID",
		Short: "Show the tasks that belong together as a tree",
		Example: `  signalbox tasks tree celery:3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10
  signalbox tasks tree celery:3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			eng, taskID, err := splitTask(args[0], engine)
			if err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var t record[taskTree]
			if err := s.get(cmd.Context(), s.path("tasks", eng, taskID, "tree"), nil, &t); err != nil {
				return s.unknownTask(err, eng, taskID)
			}
			if opts.json {
				return opts.out.object("tree", t)
			}
			opts.showTree(t.V)
			return nil
		},
	}
	cmd.Flags().StringVar(&engine, "engine", "", "engine, when the argument is a bare task id")
	return cmd
}

// showTree prints nodes below their parents. A node whose parent is not among them, or that sits in a ring, stands at the
// left; each is printed once.
func (o *options) showTree(t taskTree) {
	known := make(map[string]bool, len(t.Nodes))
	for _, n := range t.Nodes {
		known[n.TaskID] = true
	}
	children := map[string][]treeNode{}
	var roots []treeNode
	for _, n := range t.Nodes {
		parent := text(n.ParentTaskID)
		if parent == "" || parent == n.TaskID || !known[parent] {
			roots = append(roots, n)
			continue
		}
		children[parent] = append(children[parent], n)
	}
	printed := make(map[string]bool, len(t.Nodes))
	var walk func(n treeNode, depth int)
	walk = func(n treeNode, depth int) {
		if printed[n.TaskID] {
			return
		}
		printed[n.TaskID] = true
		o.out.text("%s%s  %s  %s", strings.Repeat("  ", depth), oneLine(n.TaskID), oneLine(n.Name), oneLine(n.State))
		for _, child := range children[n.TaskID] {
			walk(child, depth+1)
		}
	}
	for _, n := range roots {
		walk(n, 0)
	}
	for _, n := range t.Nodes {
		walk(n, 0)
	}
	if t.Truncated {
		o.out.say("the tree is larger; it is cut at %d tasks", t.NodeCount)
	}
}
