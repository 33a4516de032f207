package commands

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func newDaemonsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemons",
		Short: "List archive daemons, look at one, forget it, and see the alerts of the archive plane",
		Long: `List archive daemons, look at one, forget it, and see the alerts of the archive plane.

A daemon is known from its first registration on. It is named by its name, its id or a unique beginning of its id.`,
		Example: `  signalbox daemons list
  signalbox daemons show nas
  signalbox daemons alerts list`,
	}
	cmd.AddCommand(newDaemonsListCommand(opts), newDaemonsShowCommand(opts), newDaemonsForgetCommand(opts), newDaemonsAlertsCommand(opts))
	return cmd
}

func newDaemonsListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List archive daemons",
		Example: `  signalbox daemons list
  signalbox daemons list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var rows []record[daemonRow]
			if err := c.get(cmd.Context(), "/daemons", nil, &rows); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.Name, r.V.State, words(r.V.Role), r.V.Software, opts.out.when(r.V.LastSeenAt), dash(r.V.Remote), r.V.ID})
			}
			return opts.out.table([]string{"NAME", "STATE", "ROLE", "SOFTWARE", "LAST SEEN", "FROM", "ID"}, table)
		},
	}
}

func newDaemonsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show DAEMON",
		Short: "Show one daemon: what it can do, its storage, how fresh its inventory is, open alerts",
		Example: `  signalbox daemons show nas
  signalbox daemons show 5d0c --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeDaemons()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, daemon, err := opts.archiveClient(cmd.Context(), kindDaemon, args[0])
			if err != nil {
				return err
			}
			var d record[daemonRow]
			if err := c.get(cmd.Context(), roomPath("daemons", daemon.ID), nil, &d); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("daemon", d)
			}
			return opts.showDaemon(&d.V)
		},
	}
}

func (o *options) showDaemon(d *daemonRow) error {
	skew := ""
	if d.ClockSkewMS >= 1000 || d.ClockSkewMS <= -1000 {
		skew = fmt.Sprintf("%+.1fs", float64(d.ClockSkewMS)/1000)
	}
	err := o.out.facts([2]string{"name", d.Name}, [2]string{"id", d.ID}, [2]string{"state", d.State}, [2]string{"role", words(d.Role)},
		[2]string{"software", d.Software}, [2]string{"protocol", d.Version}, [2]string{"from", d.Remote},
		[2]string{"connected", yesNo(d.Attached)}, [2]string{"registered", o.out.when(d.RegisteredAt)}, [2]string{"last seen", o.out.when(d.LastSeenAt)},
		[2]string{"offline since", o.out.when(d.OfflineAt)}, [2]string{"clock is off by", skew}, [2]string{"known since", o.out.when(d.FirstSeenAt)},
		[2]string{"generation", itoa(d.Generation)}, [2]string{"can", strings.Join(d.Capabilities, ", ")})
	if err != nil {
		return err
	}
	if len(d.Storage) > 0 {
		o.out.text("")
		if err := o.storageTable(d.Storage); err != nil {
			return err
		}
	}
	if len(d.Views) > 0 {
		o.out.text("")
		rows := make([][]string, 0, len(d.Views))
		for _, v := range d.Views {
			rows = append(rows, []string{words(v.Scope), itoa(v.Entries), o.out.when(v.CommittedAt)})
		}
		if err := o.out.table([]string{"INVENTORY", "ENTRIES", "AS OF"}, rows); err != nil {
			return err
		}
	}
	if len(d.Alerts) > 0 {
		o.out.text("")
		return o.alertTable(d.Alerts)
	}
	return nil
}

func (o *options) alertTable(alerts []alertRow) error {
	rows := make([][]string, 0, len(alerts))
	for _, a := range alerts {
		about := "-"
		switch {
		case a.JobID != nil:
			about = "job " + *a.JobID
		case a.DaemonID != nil:
			about = "daemon " + *a.DaemonID
		}
		rows = append(rows, []string{itoa(a.ID), words(a.Kind), a.Detail, about, itoa(a.Times), o.out.when(a.LastAt), o.out.when(a.ClearedAt)})
	}
	return o.out.table([]string{"ALERT", "KIND", "DETAIL", "ABOUT", "TIMES", "LAST", "CLOSED"}, rows)
}

func newDaemonsForgetCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "forget DAEMON",
		Short: "Take a daemon that is no longer used off the list",
		Long: `Take a daemon that is no longer used off the list, with what is known of its inventory. It must be offline, and no active job
and no route may name it. The jobs that it took part in stay. When it registers again it is known again.`,
		Example: `  signalbox daemons forget old-nas --yes
  signalbox daemons forget 5d0c --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeDaemons()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, daemon, err := opts.archiveClient(cmd.Context(), kindDaemon, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Forget daemon %s and what is known of its inventory?", daemon.Name)); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("daemons", daemon.ID), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"daemon_id", daemon.ID}, field{"forgotten", true})
			}
			opts.out.text("daemon %s forgotten", oneLine(daemon.Name))
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

func newDaemonsAlertsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alerts",
		Short: "List and dismiss alerts: what a person has to look at",
		Example: `  signalbox daemons alerts list
  signalbox daemons alerts dismiss 12`,
	}
	var (
		all   bool
		limit int
	)
	show := &cobra.Command{
		Use:   "list",
		Short: "List open alerts, newest first",
		Example: `  signalbox daemons alerts list
  signalbox daemons alerts list --all --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit: must be at least 1, got %d", limit)
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{"limit": {strconv.Itoa(limit)}}
			if all {
				query.Set("cleared", "true")
			}
			var rows []record[alertRow]
			if err := c.get(cmd.Context(), "/alerts", query, &rows); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			return opts.alertTable(values(rows))
		},
	}
	show.Flags().BoolVar(&all, "all", false, "include closed ones")
	show.Flags().IntVar(&limit, "limit", 50, "most rows to show")
	dismiss := &cobra.Command{
		Use:   "dismiss ALERT",
		Short: "Close an alert that you have looked at; its cause may raise it again",
		Example: `  signalbox daemons alerts dismiss 12
  signalbox daemons alerts dismiss 12 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := strconv.ParseUint(args[0], 10, 63); err != nil {
				return usagef("%q is no alert: give the number that the list shows", args[0])
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			if err := c.post(cmd.Context(), roomPath("alerts", args[0], "dismiss"), nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"alert", args[0]}, field{"dismissed", true})
			}
			opts.out.text("alert %s dismissed", args[0])
			return nil
		},
	}
	cmd.AddCommand(show, dismiss)
	return cmd
}
