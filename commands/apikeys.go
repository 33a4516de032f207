package commands

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func newAPIKeysCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "apikeys",
		Short:   "Create, list and revoke API keys of operators",
		Example: "  signalbox apikeys list",
	}
	cmd.AddCommand(newAPIKeysCreateCommand(opts), newAPIKeysListCommand(opts), newAPIKeysRevokeCommand(opts))
	return cmd
}

func newAPIKeysCreateCommand(opts *options) *cobra.Command {
	var (
		role        string
		scopes      []string
		expiresDays int
		bind        bool
	)
	roles := []string{"viewer", "operator", "admin", "auditor"}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an API key and print it once",
		Long: `Create an API key. The key alone goes to stdout, this once; everything else goes to stderr.

With --bind the key works in one project only: the one of --project, or the default project.`,
		Example: `  signalbox apikeys create ci --role operator --expires-in-days 90 > ci.key
  signalbox apikeys create dashboards --role viewer --project payments --bind --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"name": args[0], "role": role}
			if len(scopes) > 0 {
				body["scopes"] = scopes
			}
			if cmd.Flags().Changed("expires-in-days") {
				body["expires_in_days"] = expiresDays
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			if bind {
				s, err := opts.newScope(cmd.Context())
				if err != nil {
					return err
				}
				var p record[project]
				if err := s.get(cmd.Context(), s.path(), nil, &p); err != nil {
					return err
				}
				body["project_id"] = p.V.ID
			}
			var k record[apiKeyRow]
			if err := c.post(cmd.Context(), "/api-keys", body, &k); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("api_key", k)
			}
			opts.out.text("%s", k.V.Token)
			opts.out.say("API key %s (%s, role %s) created; it is not shown again", k.V.Name, shortID(k.V.ID), k.V.Role)
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", "viewer", strings.Join(roles, ", "))
	cmd.Flags().StringSliceVar(&scopes, "scope", nil, "scope such as commands:write; repeatable (default: all of the role)")
	cmd.Flags().IntVar(&expiresDays, "expires-in-days", 0, "days until it expires, 1 to 3650 (default: never)")
	cmd.Flags().BoolVar(&bind, "bind", false, "bind the key to one project")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newAPIKeysListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List API keys",
		Example: `  signalbox apikeys list
  signalbox apikeys list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var keys []record[apiKeyRow]
			if err := c.get(cmd.Context(), "/api-keys", nil, &keys); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(keys)}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(keys))
			for _, r := range keys {
				k := r.V
				table = append(table, []string{k.Name, k.Prefix, k.Role, dash(text(k.ProjectID)), opts.out.when(k.CreatedAt),
					opts.out.when(k.ExpiresAt), opts.out.when(k.LastUsedAt), k.ID})
			}
			return opts.out.table([]string{"NAME", "PREFIX", "ROLE", "PROJECT", "CREATED", "EXPIRES", "LAST USED", "ID"}, table)
		},
	}
}

func newAPIKeysRevokeCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:     "revoke KEY",
		Short:   "Revoke an API key for good",
		Long:    "Revoke an API key, named by its id or a unique prefix of it.",
		Example: "  signalbox apikeys revoke 91c4 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			id, err := resolveAPIKey(cmd, c, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Revoke API key %s? This cannot be undone.", id)); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, "/api-keys/"+id, nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"api_key_id", id}, field{"revoked", true})
			}
			opts.out.text("API key %s revoked", id)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

// resolveAPIKey matches against the list: keys belong to no project, and the resolve route is a project's.
func resolveAPIKey(cmd *cobra.Command, c *client, arg string) (string, error) {
	if id, ok := fullID(arg); ok {
		return id, nil
	}
	prefix := strings.ToLower(strings.ReplaceAll(arg, "-", ""))
	if !hexPrefix.MatchString(prefix) {
		return "", usagef("%q is not an id: give a UUID or at least its first four hex digits", arg)
	}
	var keys []record[apiKeyRow]
	if err := c.get(cmd.Context(), "/api-keys", nil, &keys); err != nil {
		return "", err
	}
	var ids, candidates []string
	for _, k := range keys {
		if strings.HasPrefix(strings.ReplaceAll(k.V.ID, "-", ""), prefix) {
			ids = append(ids, k.V.ID)
			candidates = append(candidates, k.V.ID+" "+k.V.Name)
		}
	}
	switch len(ids) {
	case 0:
		return "", notFound("no API key %q", arg)
	case 1:
		return ids[0], nil
	}
	return "", ambiguous("API key", arg, candidates)
}
