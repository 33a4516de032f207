package commands

import (
	"fmt"

	"github.com/spf13/cobra"

	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/daemonhost"
)

func newDaemonAcceptCommand(opts *options, load func() (*daemonconfig.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "accept ROOT",
		Short: "Take over a root whose disk was moved here from another machine",
		Long: `Take over a root that belongs to another daemon. Every root carries a file .archive-control/owner with its id and the id of
its daemon. Root ids are alike on many machines; by the daemon's id a disk that comes from another one is told from this
machine's own, and the daemon does not start with it.

Say this only when the disk stays here. Jobs that the other daemon had begun on it do not go on, what they left in
.archive-control and in outbox and receive roots is not removed, and the other daemon no longer starts with this disk. The
root's id in the configuration must be the one that the disk carries.`,
		Example: `  signalbox daemon accept media --config nas.toml
  signalbox daemon accept media --config nas.toml --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			a, err := daemonhost.Accept(c, args[0])
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("accepted", a)
			}
			switch a.Was {
			case a.Daemon:
				_, err = fmt.Fprintf(opts.stdio.Out, "root %s (%s) is this daemon's already\n", a.Root, a.Path)
			case "":
				_, err = fmt.Fprintf(opts.stdio.Out, "root %s (%s) is this daemon's now\n", a.Root, a.Path)
			default:
				_, err = fmt.Fprintf(opts.stdio.Out, "root %s (%s) is this daemon's now; it was daemon %s's\n", a.Root, a.Path, a.Was)
			}
			return err
		},
	}
}
