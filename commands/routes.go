package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newRoutesCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "Make, test and remove routes: the ways of files from one daemon to another",
		Long: `Make, test and remove routes: the ways of files from one daemon to another.

A route is proven before it carries anything: the source leaves a probe file, and the target must find it. A route is named
by its name, its id or a unique beginning of its id.`,
		Example: `  signalbox routes create nas-to-attic --from nas --to attic
  signalbox routes test nas-to-attic
  signalbox routes list`,
	}
	cmd.AddCommand(newRoutesCreateCommand(opts), newRoutesListCommand(opts), newRoutesShowCommand(opts), newRoutesTestCommand(opts),
		newRoutesRemoveCommand(opts))
	return cmd
}

// notReady is the exit of a route that cannot carry anything now.
func notReady(r *routeRow, code int) error {
	if r.Ready {
		return nil
	}
	exit := exitf(code, "route %s is not ready (%s)", r.Name, r.State)
	if len(r.NotReadyBecause) > 0 {
		exit.msg += ":\n  " + strings.Join(r.NotReadyBecause, "\n  ")
	}
	exit.hint = "`signalbox routes show " + shellQuote(r.Name) + "` tells what each side reported; `signalbox routes test " + shellQuote(r.Name) + "` tries again"
	return exit
}

func newRoutesCreateCommand(opts *options) *cobra.Command {
	var (
		from, to, sourceRoot, targetRoot, marker string
		wait                                     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a route over a directory that both daemons reach, and have it tested",
		Long: `Make a route over a directory that both daemons reach, such as a share of one that the other mounts, and have it tested.

The source writes into one of its outbox roots, and the target reads the same files in one of its receive roots. Where a
daemon has only one, it need not be named. The route is made in any case; the exit code is 8 while it is not ready.`,
		Example: `  signalbox routes create nas-to-attic --from nas --to attic
  signalbox routes create nas-to-attic --from nas --to attic --source-root outbox --target-root incoming --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" || to == "" {
				return usagef("--from and --to: name the daemons that have the files and get them")
			}
			ctx := cmd.Context()
			c, source, err := opts.archiveClient(ctx, kindDaemon, from)
			if err != nil {
				return err
			}
			target, err := c.named(ctx, kindDaemon, to, nil)
			if err != nil {
				return err
			}
			for _, end := range []struct {
				daemon idName
				root   string
			}{{source, sourceRoot}, {target, targetRoot}} {
				if end.root == "" { // the server takes the only one that it knows of
					if _, err := opts.storage(ctx, c, end.daemon, &freshness{wait: max(wait, time.Minute)}); err != nil {
						return err
					}
				}
			}
			body := map[string]any{"name": args[0], "source": source.ID, "target": target.ID}
			for key, value := range map[string]string{"source_root": sourceRoot, "target_root": targetRoot, "shared_marker": marker} {
				if value != "" {
					body[key] = value
				}
			}
			var r record[routeRow]
			if err := c.post(ctx, "/routes", body, &r); err != nil {
				return err
			}
			if wait > 0 {
				if r, err = opts.awaitRoute(ctx, c, http.MethodGet, roomPath("routes", r.V.ID), wait); err != nil {
					return err
				}
			}
			if err := opts.showRoute(r); err != nil || wait <= 0 {
				return err
			}
			return notReady(&r.V, ExitDegraded)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "daemon that has the files: name, id or unique id prefix")
	cmd.Flags().StringVar(&to, "to", "", "daemon that gets them: name, id or unique id prefix")
	cmd.Flags().StringVar(&sourceRoot, "source-root", "", "outbox root of the source (default: its only one)")
	cmd.Flags().StringVar(&targetRoot, "target-root", "", "receive root of the target (default: its only one)")
	cmd.Flags().StringVar(&marker, "marker", "", "name under which the target knows the source's directory (default: the outbox root's)")
	durationVar(cmd.Flags(), &wait, "wait", 30*time.Second, "longest wait for the verdict, up to 2m; 0: do not wait")
	_ = cmd.RegisterFlagCompletionFunc("from", opts.completeDaemons())
	_ = cmd.RegisterFlagCompletionFunc("to", opts.completeDaemons())
	return cmd
}

// awaitRoute asks for a route and lets the server wait for the verdict of its probe.
func (o *options) awaitRoute(ctx context.Context, c *client, method, path string, wait time.Duration) (r record[routeRow], err error) {
	seconds := min(max(int(wait/time.Second), 1), 120)
	patient := *c
	patient.timeout = max(c.timeout, time.Duration(seconds)*time.Second+c.timeout/2)
	if o.stdio.IsTerminal {
		o.out.say("waiting for the verdict, up to %ds", seconds)
	}
	return r, patient.do(ctx, method, path, url.Values{"wait": {itoa(seconds)}}, nil, &r)
}

func newRoutesListCommand(opts *options) *cobra.Command {
	var removed bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List routes",
		Example: `  signalbox routes list
  signalbox routes list --removed --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if removed {
				query.Set("include_removed", "true")
			}
			var rows []record[routeRow]
			if err := c.get(cmd.Context(), "/routes", query, &rows); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				why := ""
				if len(r.V.NotReadyBecause) > 0 {
					why = r.V.NotReadyBecause[0]
				}
				table = append(table, []string{r.V.Name, r.V.State, r.V.Source.Daemon + " → " + r.V.Target.Daemon, words(r.V.Kind), r.V.ID, cut(why, 80)})
			}
			return opts.out.table([]string{"NAME", "STATE", "WAY", "KIND", "ID", "NOT READY BECAUSE"}, table)
		},
	}
	cmd.Flags().BoolVar(&removed, "removed", false, "include removed ones")
	return cmd
}

func newRoutesShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show ROUTE",
		Short: "Show one route: both sides, what they reported, and what keeps it from being ready",
		Example: `  signalbox routes show nas-to-attic
  signalbox routes show 5d0c --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeRoutes()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.archiveClient(cmd.Context(), kindRoute, args[0])
			if err != nil {
				return err
			}
			var r record[routeRow]
			if err := c.get(cmd.Context(), roomPath("routes", id.ID), nil, &r); err != nil {
				return err
			}
			return opts.showRoute(r)
		},
	}
}

func (o *options) showRoute(r record[routeRow]) error {
	if o.json {
		return o.out.object("route", r)
	}
	err := o.out.facts([2]string{"name", r.V.Name}, [2]string{"id", r.V.ID}, [2]string{"kind", words(r.V.Kind)}, [2]string{"state", r.V.State},
		[2]string{"marker", text(r.V.SharedMarker)}, [2]string{"created", o.out.when(r.V.CreatedAt)}, [2]string{"removed", o.out.when(r.V.RemovedAt)})
	if err != nil {
		return err
	}
	for _, why := range r.V.NotReadyBecause {
		o.out.text("not ready: %s", oneLine(why))
	}
	o.out.text("")
	rows := [][]string{}
	for i, s := range []routeSide{r.V.Source, r.V.Target} {
		state := dash(s.State)
		if s.Quarantined {
			state += ", in quarantine"
		}
		rows = append(rows, []string{[]string{"source", "target"}[i], s.Daemon, onlineText(s.Online), s.RootID, state, o.out.when(s.UpdatedAt), dash(s.Error.String())})
	}
	if err := o.out.table([]string{"SIDE", "DAEMON", "DAEMON IS", "ROOT", "REPORTS", "LAST", "ERROR"}, rows); err != nil {
		return err
	}
	if len(r.V.Updates) == 0 {
		return nil
	}
	o.out.text("")
	rows = rows[:0]
	for _, u := range r.V.Updates {
		rows = append(rows, []string{o.out.when(u.At), u.Side, fmt.Sprint(u.Sequence), u.State, dash(u.Error.String())})
	}
	return o.out.table([]string{"REPORT", "SIDE", "NUMBER", "STATE", "ERROR"}, rows)
}

func onlineText(b bool) string {
	if b {
		return "online"
	}
	return "offline"
}

func newRoutesTestCommand(opts *options) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "test ROUTE",
		Short: "Probe a route anew over both sides, wait for the verdict, and say what is wrong",
		Long: `Probe a route anew over both sides, wait for the verdict, and say what is wrong. The exit code is 0 when the route is ready,
1 when it is not, and 7 when there is no verdict yet.`,
		Example: `  signalbox routes test nas-to-attic
  signalbox routes test nas-to-attic --wait 2m --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeRoutes()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.archiveClient(cmd.Context(), kindRoute, args[0])
			if err != nil {
				return err
			}
			r, err := opts.awaitRoute(cmd.Context(), c, http.MethodPost, roomPath("routes", id.ID, "test"), wait)
			if err != nil {
				return err
			}
			if err := opts.showRoute(r); err != nil {
				return err
			}
			code := ExitFailed
			if r.V.State == "probing" || r.V.State == "provisioning" {
				code = ExitTimeout
			}
			return notReady(&r.V, code)
		},
	}
	durationVar(cmd.Flags(), &wait, "wait", 30*time.Second, "longest wait for the verdict, up to 2m")
	return cmd
}

func newRoutesRemoveCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "remove ROUTE",
		Short: "Remove a route that no active job uses",
		Long: `Remove a route that no active job uses. Its name is free at once. Both daemons are told, and remove what they had set up for
it; no content is touched.`,
		Example: `  signalbox routes remove nas-to-attic --yes
  signalbox routes remove 5d0c --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeRoutes()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.archiveClient(cmd.Context(), kindRoute, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Remove route %s?", id.Name)); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("routes", id.ID), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"route_id", id.ID}, field{"removed", true})
			}
			opts.out.text("route %s removed", oneLine(id.Name))
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

// theRoute resolves --route. Without it, the only route between the daemons is meant.
func (c *client) theRoute(ctx context.Context, arg string, source, target idName) (idName, error) {
	if arg != "" {
		return c.named(ctx, kindRoute, arg, nil)
	}
	var rows []routeRow
	if err := c.get(ctx, "/routes", nil, &rows); err != nil {
		return idName{}, err
	}
	var found []idName
	var names []string
	for _, r := range rows {
		if r.Source.DaemonID == source.ID && r.Target.DaemonID == target.ID {
			found = append(found, idName{r.ID, r.Name})
			names = append(names, oneLine(r.Name)+" ("+r.State+")")
		}
	}
	switch len(found) {
	case 0:
		err := notFound("there is no route from %s to %s", source.Name, target.Name)
		var api *apiError
		if errors.As(err, &api) {
			api.hint = "make one: `signalbox routes create NAME --from " + shellQuote(source.Name) + " --to " + shellQuote(target.Name) + "`"
		}
		return idName{}, err
	case 1:
		return found[0], nil
	}
	return idName{}, usagef("--route: there are %d routes from %s to %s, name one of\n  %s", len(found), source.Name, target.Name, strings.Join(names, "\n  "))
}
