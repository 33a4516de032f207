package commands

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newPeopleCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "people",
		Short: "Create, list, show and disable people, and set their passwords",
		Long: `Create, list, show and disable people, and set their passwords. People speak in rooms, own agents, and sign in with their
email and password. A person is named by email, name, id or a unique beginning of the id.`,
		Example: `  signalbox people create ben@example.com --name Ben
  signalbox people password ben@example.com
  signalbox people list`,
	}
	cmd.AddCommand(newPeopleCreateCommand(opts), newPeopleListCommand(opts), newPeopleShowCommand(opts), newPeoplePasswordCommand(opts),
		newPeopleRoleCommand(opts), newPeopleDisableCommand(opts), newPeopleEnableCommand(opts))
	return cmd
}

func newPeopleListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List people",
		Example: `  signalbox people list
  signalbox people list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var people []record[personRow]
			if err := c.get(cmd.Context(), "/people", nil, &people); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(people)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(people))
			for _, p := range people {
				rows = append(rows, []string{p.V.Name, p.V.Email, p.V.Role, p.V.Kind, p.V.state(), opts.out.when(&p.V.CreatedAt), p.V.ID})
			}
			return opts.out.table([]string{"NAME", "EMAIL", "ROLE", "KIND", "STATE", "CREATED", "ID"}, rows)
		},
	}
}

func newPeopleShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show PERSON",
		Short: "Show one person",
		Example: `  signalbox people show ben@example.com
  signalbox people show operator@localhost --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completePeople()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindPerson, args[0])
			if err != nil {
				return err
			}
			var p record[personRow]
			if err := c.get(cmd.Context(), roomPath("people", id), nil, &p); err != nil {
				return err
			}
			return opts.showPerson(p)
		},
	}
}

func (o *options) showPerson(p record[personRow]) error {
	if o.json {
		return o.out.object("person", p)
	}
	return o.out.facts(
		[2]string{"name", p.V.Name}, [2]string{"email", p.V.Email}, [2]string{"id", p.V.ID}, [2]string{"role", p.V.Role},
		[2]string{"kind", p.V.Kind}, [2]string{"state", p.V.state()}, [2]string{"disabled", o.out.when(p.V.DisabledAt)},
		[2]string{"created", o.out.when(&p.V.CreatedAt)}, [2]string{"updated", o.out.when(&p.V.UpdatedAt)})
}

// personRoles are the roles of people (not of API keys).
var personRoles = []string{"user", "admin"}

func newPeopleCreateCommand(opts *options) *cobra.Command {
	var (
		name, role   string
		withPassword bool
	)
	cmd := &cobra.Command{
		Use:   "create EMAIL",
		Short: "Create a person",
		Long: `Create a person. Without a password a person cannot sign in, but can own agents and be spoken for with rooms say --as.

With --password it is asked for on the terminal, or read from the first line of stdin; never from the arguments, which
other users of the machine can see. Role admin may do everything to rooms and agents of others.`,
		Example: `  signalbox people create ben@example.com --name Ben
  signalbox people create ada@example.com --name Ada --role admin --password < ada.password`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"email": args[0], "name": name, "role": role}
			if name == "" {
				body["name"], _, _ = strings.Cut(args[0], "@")
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			if withPassword {
				if body["password"], err = opts.readPassword(args[0]); err != nil {
					return err
				}
			}
			var p record[personRow]
			if err := c.post(cmd.Context(), "/people", body, &p); err != nil {
				return err
			}
			return opts.showPerson(p)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name shown in rooms (default: the email's part before @)")
	role = "user"
	cmd.Flags().Var(&oneOf{into: &role, words: personRoles}, "role", "user or admin")
	cmd.Flags().BoolVar(&withPassword, "password", false, "set a password: asked for, or the first line of stdin")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(personRoles, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// maxPasswordInput bounds what is read as a password; the server has the rule.
const maxPasswordInput = 4096

// readPassword asks twice on a terminal, without showing it, and otherwise takes the first line of stdin.
func (o *options) readPassword(whose string) (string, error) {
	in, ok := o.stdio.In.(*os.File)
	if !ok || !o.stdio.InIsTerminal {
		line, err := bufio.NewReader(io.LimitReader(o.stdio.In, maxPasswordInput)).ReadString('\n')
		if err != nil && err != io.EOF {
			return "", fmt.Errorf("read the password from stdin: %w", err)
		}
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			return "", usagef("password: stdin holds none")
		}
		return line, nil
	}
	ask := func(prompt string) (string, error) {
		fmt.Fprint(o.stdio.Err, prompt)
		text, err := term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(o.stdio.Err)
		if errors.Is(err, io.EOF) {
			return "", exitf(ExitFailed, "no password given, nothing changed")
		}
		return string(text), err
	}
	first, err := ask("Password of " + oneLine(whose) + ": ")
	if err != nil {
		return "", err
	}
	if first == "" {
		return "", exitf(ExitFailed, "no password given, nothing changed")
	}
	second, err := ask("Again: ")
	if err != nil {
		return "", err
	}
	if first != second {
		return "", exitf(ExitFailed, "the two differ, nothing changed")
	}
	return first, nil
}

func newPeoplePasswordCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "password PERSON",
		Short: "Set a person's password and end the sessions it has",
		Long: `Set a person's password and end the sessions it has. It is asked for on the terminal, or read from the first line of stdin;
never from the arguments, which other users of the machine can see.`,
		Example: `  signalbox people password ben@example.com
  signalbox people password ben@example.com < ben.password`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completePeople()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindPerson, args[0])
			if err != nil {
				return err
			}
			password, err := opts.readPassword(args[0])
			if err != nil {
				return err
			}
			body := map[string]any{"password": password}
			if err := c.do(cmd.Context(), http.MethodPut, roomPath("people", id, "password"), nil, body, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"person_id", id}, field{"password_set", true})
			}
			opts.out.text("password of %s set", oneLine(args[0]))
			return nil
		},
	}
}

func newPeopleRoleCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "role PERSON ROLE",
		Short: "Make a person a user or an admin",
		Example: `  signalbox people role ben@example.com admin
  signalbox people role ben@example.com user --json`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return personRoles, cobra.ShellCompDirectiveNoFileComp
			}
			return firstArg(opts.completePeople())(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.changePerson(cmd, args[0], http.MethodPut, "role", map[string]any{"role": args[1]})
		},
	}
}

// changePerson asks for a change and shows the person.
func (o *options) changePerson(cmd *cobra.Command, arg, method, what string, body any) error {
	c, id, err := o.clientAnd(cmd.Context(), kindPerson, arg)
	if err != nil {
		return err
	}
	var p record[personRow]
	if err := c.do(cmd.Context(), method, roomPath("people", id, what), nil, body, &p); err != nil {
		return err
	}
	return o.showPerson(p)
}

func newPeopleDisableCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "disable PERSON",
		Short: "Keep a person from signing in, at once",
		Long: `Keep a person from signing in, and end the sessions it has. Its agents, its rooms and what it said stay; registration keys
made for it register nothing while it is disabled.`,
		Example: `  signalbox people disable ben@example.com
  signalbox people disable ben@example.com --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completePeople()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.changePerson(cmd, args[0], http.MethodPost, "disable", nil)
		},
	}
}

func newPeopleEnableCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "enable PERSON",
		Short: "Let a disabled person sign in again",
		Example: `  signalbox people enable ben@example.com
  signalbox people enable ben@example.com --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completePeople()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.changePerson(cmd, args[0], http.MethodPost, "enable", nil)
		},
	}
}
