package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"
)

func newRoomAgentsKeysCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Mint, list and revoke keys that register agents",
		Long: `Mint, list and revoke keys that register agents. What a registration key registers belongs to the person it was made for;
what a bootstrap key registers belongs to nobody who signs in. The agents stay when the key is revoked.`,
		Example: `  signalbox roomagents keys mint laptop --person ben@example.com --out registration.key
  signalbox roomagents keys list
  signalbox roomagents keys revoke laptop --yes`,
	}
	cmd.AddCommand(newRegistrationKeysMintCommand(opts), newRegistrationKeysListCommand(opts), newRegistrationKeysRevokeCommand(opts))
	return cmd
}

func newRegistrationKeysMintCommand(opts *options) *cobra.Command {
	var (
		person, out string
		bootstrap   bool
	)
	cmd := &cobra.Command{
		Use:   "mint [LABEL]",
		Short: "Mint a registration key and print it once",
		Long: `Mint a registration key. The key alone goes to stdout, this once, or with --out to a new file that only its owner can
read; everything else goes to stderr.`,
		Example: `  signalbox roomagents keys mint laptop --out registration.key
  signalbox roomagents keys mint ben-laptop --person ben@example.com
  signalbox roomagents keys mint installer --bootstrap --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if bootstrap && person != "" {
				return usagef("--bootstrap and --person exclude each other: a bootstrap key belongs to no person")
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			body := map[string]any{"kind": "registration", "label": ""}
			if bootstrap {
				body["kind"] = "bootstrap"
			}
			if len(args) == 1 {
				body["label"] = args[0]
			}
			if person != "" {
				if body["person_id"], err = c.find(cmd.Context(), kindPerson, person); err != nil {
					return err
				}
			}
			return opts.mintRegistrationKey(cmd.Context(), c, body, out)
		},
	}
	cmd.Flags().StringVar(&person, "person", "", "who owns what it registers: email, name or id (default: the operator person)")
	cmd.Flags().BoolVar(&bootstrap, "bootstrap", false, "a key of the deployment: what it registers belongs to a person that nobody signs in as")
	cmd.Flags().StringVar(&out, "out", "", "new file for the key, readable by its owner only; never overwrites")
	_ = cmd.RegisterFlagCompletionFunc("person", opts.completePeople())
	return cmd
}

// mintRegistrationKey asks for a key and shows it once: on stdout, or in the new file. The file is made first.
func (o *options) mintRegistrationKey(ctx context.Context, c *client, body map[string]any, out string) (err error) {
	file, _, err := (&keyOut{path: out}).create("", false)
	if err != nil {
		return err
	}
	if file != nil {
		defer func() {
			if err = errors.Join(err, file.Close()); err != nil {
				err = errors.Join(err, os.Remove(file.Name()))
			}
		}()
	}
	var k record[registrationKeyRow]
	if err := c.post(ctx, "/registration-keys", body, &k); err != nil {
		return err
	}
	if file != nil {
		_, err := file.WriteString(k.V.Key + "\n")
		if err := errors.Join(err, file.Sync()); err != nil {
			return fmt.Errorf("write registration key %s: %w", k.V.ID, err)
		}
		k.V.Key = ""
	}
	switch {
	case file != nil && o.json:
		return o.out.document(field{"registration_key", k.V}, field{"path", out})
	case o.json:
		return o.out.object("registration_key", k)
	case file != nil:
		o.out.text("%s", out)
	default:
		o.out.text("%s", k.V.Key)
	}
	o.out.say("%s key %s (%s) minted for %s; it is not shown again", k.V.Kind, shortID(k.V.ID), oneLine(k.V.Label), oneLine(nameOf(k.V.Person)))
	return nil
}

func newRegistrationKeysListCommand(opts *options) *cobra.Command {
	var revoked bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List registration keys",
		Example: `  signalbox roomagents keys list
  signalbox roomagents keys list --revoked --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if revoked {
				query.Set("include_revoked", "true")
			}
			var keys []record[registrationKeyRow]
			if err := c.get(cmd.Context(), "/registration-keys", query, &keys); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(keys)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(keys))
			for _, k := range keys {
				rows = append(rows, []string{dash(k.V.Label), k.V.Kind, dash(nameOf(k.V.Person)), opts.out.when(&k.V.CreatedAt),
					opts.out.when(k.V.RevokedAt), k.V.ID})
			}
			return opts.out.table([]string{"LABEL", "KIND", "FOR", "CREATED", "REVOKED", "ID"}, rows)
		},
	}
	cmd.Flags().BoolVar(&revoked, "revoked", false, "include revoked keys")
	return cmd
}

func newRegistrationKeysRevokeCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "revoke KEY",
		Short: "Revoke a registration key for good; the agents it registered stay",
		Example: `  signalbox roomagents keys revoke laptop --yes
  signalbox roomagents keys revoke 0193 --yes --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRegistrationKey, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Revoke registration key %s? This cannot be undone.", args[0])); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("registration-keys", id), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"registration_key_id", id}, field{"revoked", true})
			}
			opts.out.text("registration key %s revoked", id)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}
