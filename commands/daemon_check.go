package commands

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/daemonhost"
)

func daemonSocket(c *daemonconfig.Config) string {
	return filepath.Join(c.DataDir, daemonhost.SocketFile)
}

func newDaemonCheckCommand(opts *options, load func() (*daemonconfig.Config, error)) *cobra.Command {
	var offline bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the daemon's configuration, roots, token file and the way to control; exit code 1 when something is wrong",
		Long: `Check everything a daemon needs before it runs: the configuration file, the token file and its mode, every root (owner, space,
what its file system can do), shared outboxes, and whether control answers. The token itself is not sent, so a running daemon
is not disturbed. Roots that were never used are not marked.`,
		Example: `  signalbox daemon check --config nas.toml
  signalbox daemon check --config nas.toml --offline --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
			defer cancel()
			return opts.showDaemonCheck(daemonhost.Inspect(ctx, c, !offline))
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not call control")
	return cmd
}

func (o *options) showDaemonCheck(list []daemonhost.Finding) error {
	bad := 0
	for _, f := range list {
		if !f.OK {
			bad++
		}
	}
	if o.json {
		if err := o.out.document(field{"ok", bad == 0}, field{"findings", list}); err != nil {
			return err
		}
	} else {
		rows := make([][]string, 0, len(list))
		for _, f := range list {
			mark := "ok"
			if !f.OK {
				mark = "WRONG"
			}
			rows = append(rows, []string{mark, f.Subject, f.Text})
		}
		if err := o.out.table(nil, rows); err != nil {
			return err
		}
	}
	if bad > 0 {
		return exitf(ExitFailed, "%s to put right", count(bad, "finding", "findings"))
	}
	return nil
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
