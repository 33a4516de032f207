package commands

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func newProjectsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "projects",
		Short:   "Create, list, change and archive projects",
		Example: "  signalbox projects list",
	}
	cmd.AddCommand(newProjectsListCommand(opts), newProjectsShowCommand(opts), newProjectsCreateCommand(opts),
		newProjectsUpdateCommand(opts), newProjectsArchiveCommand(opts), newProjectsActivateCommand(opts))
	return cmd
}

func newProjectsListCommand(opts *options) *cobra.Command {
	var archived bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List projects",
		Example: `  signalbox projects list
  signalbox projects list --archived --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			projects, err := listProjects(cmd.Context(), c, archived)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(projects)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(projects))
			for _, p := range projects {
				rows = append(rows, []string{p.V.Slug, p.V.Name, p.V.Environment, projectState(p.V),
					fmt.Sprintf("%dd", p.V.RetentionDays), opts.out.when(&p.V.CreatedAt), p.V.ID})
			}
			return opts.out.table([]string{"SLUG", "NAME", "ENVIRONMENT", "STATE", "RETENTION", "CREATED", "ID"}, rows)
		},
	}
	cmd.Flags().BoolVar(&archived, "archived", false, "include archived projects")
	return cmd
}

func projectState(p project) string {
	if p.IsActive {
		return "active"
	}
	return "archived"
}

func newProjectsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show [SLUG]",
		Short: "Show one project",
		Example: `  signalbox projects show
  signalbox projects show payments --json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstArg(opts.completeProjects),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				opts.project = args[0]
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var p record[project]
			if err := s.get(cmd.Context(), s.path(), nil, &p); err != nil {
				return err
			}
			return opts.showProject(p)
		},
	}
}

func (o *options) showProject(p record[project]) error {
	if o.json {
		return o.out.object("project", p)
	}
	return o.out.facts(
		[2]string{"slug", p.V.Slug}, [2]string{"name", p.V.Name}, [2]string{"id", p.V.ID},
		[2]string{"description", text(p.V.Description)}, [2]string{"environment", p.V.Environment},
		[2]string{"timezone", p.V.Timezone}, [2]string{"retention", fmt.Sprintf("%d days", p.V.RetentionDays)},
		[2]string{"state", projectState(p.V)}, [2]string{"created", o.out.when(&p.V.CreatedAt)},
		[2]string{"updated", o.out.when(&p.V.UpdatedAt)})
}

// projectFlags are the settable fields; only flags that were given are sent.
type projectFlags struct {
	name, description, environment, timezone string
	retentionDays                            int
}

func (f *projectFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "", "display name, 1 to 200 characters")
	cmd.Flags().StringVar(&f.description, "description", "", "description, up to 2000 characters")
	cmd.Flags().StringVar(&f.environment, "environment", "", "environment label, such as production or staging")
	cmd.Flags().StringVar(&f.timezone, "timezone", "", "IANA time zone, such as Europe/Oslo")
	cmd.Flags().IntVar(&f.retentionDays, "retention-days", 0, "days to keep events, 1 to 3650")
}

func (f *projectFlags) body(cmd *cobra.Command) map[string]any {
	body := map[string]any{}
	set := func(flag, key string, value any) {
		if cmd.Flags().Changed(flag) {
			body[key] = value
		}
	}
	set("name", "name", f.name)
	set("description", "description", f.description)
	set("environment", "environment", f.environment)
	set("timezone", "timezone", f.timezone)
	set("retention-days", "retention_days", f.retentionDays)
	return body
}

func newProjectsCreateCommand(opts *options) *cobra.Command {
	var flags projectFlags
	cmd := &cobra.Command{
		Use:   "create SLUG",
		Short: "Create a project",
		Long:  "Create a project. The slug is 3 to 50 lowercase letters, digits and hyphens; agents name it in Z4J_PROJECT_ID.",
		Example: `  signalbox projects create payments
  signalbox projects create payments-staging --name "Payments (staging)" --environment staging --retention-days 7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := flags.body(cmd)
			body["slug"] = args[0]
			if flags.name == "" {
				body["name"] = args[0]
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var p record[project]
			if err := c.post(cmd.Context(), "/projects", body, &p); err != nil {
				return err
			}
			return opts.showProject(p)
		},
	}
	flags.add(cmd)
	return cmd
}

func newProjectsUpdateCommand(opts *options) *cobra.Command {
	var flags projectFlags
	cmd := &cobra.Command{
		Use:               "update SLUG",
		Short:             "Change fields of a project",
		Example:           `  signalbox projects update payments --retention-days 14 --description "Card payments"`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeProjects),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := flags.body(cmd)
			if len(body) == 0 {
				return usagef("nothing to change: give at least one of --name, --description, --environment, --timezone, --retention-days")
			}
			return opts.patchProject(cmd.Context(), args[0], body)
		},
	}
	flags.add(cmd)
	return cmd
}

func (o *options) patchProject(ctx context.Context, slug string, body map[string]any) error {
	c, err := o.newClient()
	if err != nil {
		return err
	}
	s := &scope{client: c, slug: slug}
	var p record[project]
	if err := s.do(ctx, http.MethodPatch, s.path(), nil, body, &p); err != nil {
		return err
	}
	return o.showProject(p)
}

func newProjectsArchiveCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "archive SLUG",
		Short: "Archive a project: its agents are refused until it is activated again",
		Example: `  signalbox projects archive payments-old --yes
  signalbox projects activate payments-old`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeProjects),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Archive project %s? Its agents are disconnected.", args[0])); err != nil {
				return err
			}
			s := &scope{client: c, slug: args[0]}
			if err := s.do(cmd.Context(), http.MethodDelete, s.path(), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"slug", args[0]}, field{"archived", true})
			}
			opts.out.text("project %s archived", args[0])
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

func newProjectsActivateCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:     "activate SLUG",
		Short:   "Activate an archived project again",
		Example: "  signalbox projects activate payments-old",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.patchProject(cmd.Context(), args[0], map[string]any{"is_active": true})
		},
	}
}

// nonNil makes an empty list marshal as [] and not as null.
func nonNil[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
