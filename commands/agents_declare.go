package commands

import (
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// declaredRow is what was declared of an agent's engines.
type declaredRow struct {
	AgentID    string     `json:"agent_id"`
	Engines    []string   `json:"engines"`
	DeclaredBy *string    `json:"declared_by"`
	DeclaredAt *time.Time `json:"declared_at"`
	InUse      bool       `json:"in_use"`
}

func newAgentsDeclareCommand(opts *options) *cobra.Command {
	var drop bool
	cmd := &cobra.Command{
		Use:   "declare-engines AGENT [ENGINE[,ENGINE]...]",
		Short: "Declare the engines of an agent that reports none, so that fires are routed to it",
		Long: `Declare the engines of an agent that reports none, so that fires of schedules are routed to it.

An agent tells its engines when it connects over WebSocket. One that connects over long-poll alone never does, and no fire is
routed to it unless its engines are declared. Declared engines count only while the agent reports none, and an online
agent that reports the engine is always preferred. Without engines the command shows what is declared.`,
		Example: `  signalbox agents declare-engines web-1 celery,rq
  signalbox agents declare-engines web-1 --clear
  signalbox agents declare-engines web-1 --json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: firstArg(opts.completeAgents),
		RunE: func(cmd *cobra.Command, args []string) error {
			if drop && len(args) == 2 {
				return usagef("--clear: takes no engines")
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			id, err := s.resolve(cmd.Context(), "agent", args[0])
			if err != nil {
				return err
			}
			path := s.path("agents", id, "declared-engines")
			if drop {
				if err := s.do(cmd.Context(), http.MethodDelete, path, nil, nil, nil); err != nil {
					return err
				}
			} else if len(args) == 2 {
				engines := strings.FieldsFunc(args[1], func(r rune) bool { return r == ',' })
				if err := s.do(cmd.Context(), http.MethodPut, path, nil, map[string][]string{"engines": engines}, nil); err != nil {
					return err
				}
			}
			var d record[declaredRow]
			if err := s.get(cmd.Context(), path, nil, &d); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("declared_engines", d)
			}
			return opts.showDeclared(d.V)
		},
	}
	cmd.Flags().BoolVar(&drop, "clear", false, "take back what is declared")
	return cmd
}

func (o *options) showDeclared(d declaredRow) error {
	if len(d.Engines) == 0 {
		o.out.text("nothing is declared")
		return nil
	}
	used := "yes, while no online agent reports the engine"
	if !d.InUse {
		used = "no: the agent reports its own engines, or is revoked"
	}
	return o.out.facts([2]string{"declared engines", strings.Join(d.Engines, ", ")}, [2]string{"by", text(d.DeclaredBy)},
		[2]string{"at", o.out.when(d.DeclaredAt)}, [2]string{"in use", used})
}
