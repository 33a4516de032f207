package commands

import (
	"strings"

	"github.com/spf13/cobra"
)

func newWorkersCommand(opts *options) *cobra.Command {
	var (
		f      filters
		engine string
	)
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List workers",
		Example: `  signalbox workers
  signalbox workers --state online --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var all []record[workerRow]
			if err := s.get(cmd.Context(), s.path("workers"), nil, &all); err != nil {
				return err
			}
			workers := keep(all, f.limit, func(w workerRow) bool {
				return (f.state == "" || w.State == f.state) && (engine == "" || w.Engine == engine)
			})
			if opts.json {
				return opts.out.document(field{"items", workers}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(workers))
			for _, r := range workers {
				w := r.V
				table = append(table, []string{w.Name, w.Engine, w.State, dash(text(w.Hostname)), number(w.PID), number(w.Concurrency),
					number(w.ActiveTasks), dash(strings.Join(w.Queues, ",")), opts.out.when(w.LastHeartbeat)})
			}
			return opts.out.table([]string{"NAME", "ENGINE", "STATE", "HOST", "PID", "CONCURRENCY", "ACTIVE", "QUEUES", "LAST HEARTBEAT"}, table)
		},
	}
	f.addState(cmd, "online", "offline", "draining", "unknown")
	f.addLimit(cmd)
	cmd.Flags().StringVar(&engine, "engine", "", "only this engine")
	return cmd
}

func newQueuesCommand(opts *options) *cobra.Command {
	var (
		f      filters
		engine string
	)
	cmd := &cobra.Command{
		Use:   "queues",
		Short: "List queues, and purge one",
		Example: `  signalbox queues
  signalbox queues purge mail --agent web-1
  signalbox queues --engine celery --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var all []record[queueRow]
			if err := s.get(cmd.Context(), s.path("queues"), nil, &all); err != nil {
				return err
			}
			queues := keep(all, f.limit, func(q queueRow) bool { return engine == "" || q.Engine == engine })
			if opts.json {
				return opts.out.document(field{"items", queues}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(queues))
			for _, r := range queues {
				q := r.V
				table = append(table, []string{q.Name, q.Engine, number(q.PendingCount), dash(text(q.BrokerType)), opts.out.when(q.LastSeenAt)})
			}
			return opts.out.table([]string{"NAME", "ENGINE", "PENDING", "BROKER", "LAST SEEN"}, table)
		},
	}
	f.addLimit(cmd)
	cmd.Flags().StringVar(&engine, "engine", "", "only this engine")
	cmd.AddCommand(newQueuesPurgeCommand(opts))
	return cmd
}
