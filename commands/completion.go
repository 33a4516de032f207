package commands

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newCompletionCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Write a completion script for a shell",
		Long: `Write a completion script for a shell. Project slugs and agent names are completed too while the appliance can be
reached.`,
		Example: `  source <(signalbox completion bash)
  signalbox completion zsh > "${fpath[1]}/_signalbox"
  signalbox completion fish | source`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var b strings.Builder
			var err error
			root := cmd.Root()
			switch args[0] {
			case "bash":
				err = root.GenBashCompletionV2(&b, true)
			case "zsh":
				err = root.GenZshCompletion(&b)
			case "fish":
				err = root.GenFishCompletion(&b, true)
			case "powershell":
				err = root.GenPowerShellCompletionWithDesc(&b)
			}
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"shell", args[0]}, field{"script", b.String()})
			}
			return opts.out.writeLine([]byte(strings.TrimRight(b.String(), "\n")))
		},
	}
	return cmd
}

// completionPatience bounds what a completion may ask the server: a shell must not hang on a tab.
const completionPatience = time.Second

func (o *options) completeProjects(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
	defer cancel()
	c, err := o.newClient()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	projects, err := listProjects(ctx, c, false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var slugs []string
	for _, p := range projects {
		if strings.HasPrefix(p.V.Slug, prefix) {
			slugs = append(slugs, p.V.Slug+"\t"+oneLine(p.V.Name))
		}
	}
	return slugs, cobra.ShellCompDirectiveNoFileComp
}

func (o *options) completeAgents(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
	defer cancel()
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var agents []record[agentRow]
	if err := s.get(ctx, s.path("agents"), nil, &agents); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, a := range agents {
		if strings.HasPrefix(a.V.Name, prefix) {
			names = append(names, oneLine(a.V.Name)+"\t"+a.V.State)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// firstArg completes the first argument only.
func firstArg(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
