package commands

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// ruleRow is NotificationRule.
type ruleRow struct {
	ID           string    `json:"id"`
	Name         string    `json:"name"`
	Trigger      string    `json:"trigger"`
	Pattern      *string   `json:"pattern"`
	GroupSeconds int       `json:"group_seconds"`
	IsEnabled    bool      `json:"is_enabled"`
	Channels     []string  `json:"channels"`
	CreatedAt    time.Time `json:"created_at"`
}

var notificationTriggers = []string{"task_failed", "agent_offline", "fire_buffered", "fire_expired", "command_timeout", "circuit_breaker",
	"system_trouble"}

func (s *scope) notificationRules(ctx context.Context) (rows []record[ruleRow], err error) {
	err = s.get(ctx, s.path("notifications", "rules"), nil, &rows)
	return rows, err
}

func (o *options) theRule(ctx context.Context, arg string) (*scope, record[ruleRow], error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, record[ruleRow]{}, err
	}
	rows, err := s.notificationRules(ctx)
	if err != nil {
		return nil, record[ruleRow]{}, err
	}
	r, err := pick("rule", arg, rows, func(r ruleRow) (string, string) { return r.ID, r.Name })
	return s, r, err
}

func newRulesCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rules",
		Short:   "Create, list, change and delete rules: what is told to which channels",
		Example: "  signalbox notifications rules list",
	}
	cmd.AddCommand(newRulesCreateCommand(opts), newRulesListCommand(opts), newRulesUpdateCommand(opts),
		newRulesSwitchCommand(opts, "enable", true), newRulesSwitchCommand(opts, "disable", false), newRulesDeleteCommand(opts))
	return cmd
}

func newRulesListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List rules",
		Example: `  signalbox notifications rules list
  signalbox notifications rules list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := s.notificationRules(cmd.Context())
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			channels, err := s.channels(cmd.Context())
			if err != nil {
				return err
			}
			names := map[string]string{}
			for _, c := range channels {
				names[c.V.ID] = c.V.Name
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				to := make([]string, 0, len(r.V.Channels))
				for _, id := range r.V.Channels {
					to = append(to, names[id])
				}
				table = append(table, []string{r.V.Name, r.V.Trigger, dash(text(r.V.Pattern)), roughly(time.Duration(r.V.GroupSeconds) * time.Second),
					dash(strings.Join(to, ", ")), onOff(r.V.IsEnabled), r.V.ID})
			}
			return opts.out.table([]string{"NAME", "TRIGGER", "PATTERN", "GROUP", "CHANNELS", "STATE", "ID"}, table)
		},
	}
}

// ruleFlags are the fields of a rule.
type ruleFlags struct {
	trigger, pattern string
	group            time.Duration
	channels         []string
}

func (f *ruleFlags) add(cmd *cobra.Command) {
	cmd.Flags().Var(&oneOf{into: &f.trigger, words: notificationTriggers}, "trigger", strings.Join(notificationTriggers, ", "))
	_ = cmd.RegisterFlagCompletionFunc("trigger", cobra.FixedCompletions(notificationTriggers, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&f.pattern, "pattern", "", "only names like this, with * and ?: of tasks, agents, schedules, actions, or disk, database and damage")
	durationVar(cmd.Flags(), &f.group, "group", 5*time.Minute, "one message at most in this time about the same, 10s to 24h")
	cmd.Flags().StringSliceVar(&f.channels, "channel", nil, "channel to tell: name, id or unique id prefix; repeatable")
}

// body is what was given.
func (f *ruleFlags) body(ctx context.Context, cmd *cobra.Command, s *scope) (map[string]any, error) {
	body := map[string]any{}
	if f.trigger != "" {
		body["trigger"] = f.trigger
	}
	if cmd.Flags().Changed("pattern") {
		body["pattern"] = f.pattern
	}
	if cmd.Flags().Changed("group") {
		if f.group < time.Second || f.group%time.Second != 0 {
			return nil, usagef("--group: must be whole seconds, from 10s to 24h, got %s", shortDuration(f.group))
		}
		body["group_seconds"] = int(f.group / time.Second)
	}
	if len(f.channels) > 0 {
		all, err := s.channels(ctx)
		if err != nil {
			return nil, err
		}
		ids := make([]string, 0, len(f.channels))
		for _, arg := range f.channels {
			c, err := pick("channel", arg, all, func(c channelRow) (string, string) { return c.ID, c.Name })
			if err != nil {
				return nil, err
			}
			ids = append(ids, c.V.ID)
		}
		body["channels"] = ids
	}
	return body, nil
}

func (o *options) showRule(r record[ruleRow], what string) error {
	if o.json {
		return o.out.object("rule", r)
	}
	o.out.text("rule %s %s", oneLine(r.V.Name), what)
	return nil
}

func newRulesCreateCommand(opts *options) *cobra.Command {
	var (
		f   ruleFlags
		off bool
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a rule",
		Long: `Create a rule. The first occurrence is told at once; those of the same kind that follow within --group are counted and told
in one message. Failures of tasks are of one kind when they have the same cause, as ` + "`signalbox failures`" + ` shows them.`,
		Example: `  signalbox notifications rules create mail-failures --trigger task_failed --pattern 'mail.*' --group 15m --channel ops
  signalbox notifications rules create agents --trigger agent_offline --channel ops --channel phone
  signalbox notifications rules create appliance --trigger system_trouble --channel phone`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.trigger == "" {
				return usagef("--trigger: is required: %s", strings.Join(notificationTriggers, ", "))
			}
			if len(f.channels) == 0 {
				return usagef("--channel: is required")
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			body, err := f.body(cmd.Context(), cmd, s)
			if err != nil {
				return err
			}
			body["name"], body["is_enabled"] = args[0], !off
			var r record[ruleRow]
			if err := s.post(cmd.Context(), s.path("notifications", "rules"), body, &r); err != nil {
				return err
			}
			return opts.showRule(r, "created")
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&off, "disabled", false, "create it turned off")
	return cmd
}

func newRulesUpdateCommand(opts *options) *cobra.Command {
	var (
		f    ruleFlags
		name string
	)
	cmd := &cobra.Command{
		Use:   "update RULE",
		Short: "Change some fields of a rule",
		Example: `  signalbox notifications rules update mail-failures --group 1h
  signalbox notifications rules update mail-failures --pattern '' --channel ops --channel phone`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := opts.theRule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			body, err := f.body(cmd.Context(), cmd, s)
			if err != nil {
				return err
			}
			if name != "" {
				body["name"] = name
			}
			if len(body) == 0 {
				return usagef("nothing to change: give at least one flag")
			}
			return opts.patchRule(cmd.Context(), s, r.V.ID, body, "changed")
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&name, "name", "", "new name")
	return cmd
}

func (o *options) patchRule(ctx context.Context, s *scope, id string, body map[string]any, what string) error {
	var out record[ruleRow]
	if err := s.do(ctx, http.MethodPatch, s.path("notifications", "rules", id), nil, body, &out); err != nil {
		return err
	}
	return o.showRule(out, what)
}

func newRulesSwitchCommand(opts *options, verb string, on bool) *cobra.Command {
	short := "Turn a rule on"
	if !on {
		short = "Turn a rule off; what it has collected and not told is forgotten"
	}
	return &cobra.Command{
		Use:     verb + " RULE",
		Short:   short,
		Example: fmt.Sprintf("  signalbox notifications rules %[1]s agents\n  signalbox notifications rules %[1]s agents --json", verb),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := opts.theRule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return opts.patchRule(cmd.Context(), s, r.V.ID, map[string]any{"is_enabled": on}, "turned "+onOff(on))
		},
	}
}

func newRulesDeleteCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:     "delete RULE",
		Short:   "Delete a rule; what it sent stays listed",
		Example: "  signalbox notifications rules delete agents --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := opts.theRule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return opts.deleteNamed(cmd.Context(), s, &confirm, "rule", "rules", r.V.ID, r.V.Name, "")
		},
	}
	confirm.add(cmd)
	return cmd
}
