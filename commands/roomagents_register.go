package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// agentsDir is where the stdio runtime looks for agents, below its working directory.
const agentsDir = ".switch/agents"

// keyOut says where a key that is shown once goes: to stdout, to a new file, or to the file that runtimes read.
type keyOut struct {
	endpoint, format, path, dir string
	write                       bool
}

func (k *keyOut) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.endpoint, "endpoint", "", "address the agent will use, when it differs from what this command sees")
	cmd.Flags().StringVar(&k.format, "format", formatShell, "shell: export lines; env: NAME=VALUE lines for an env file")
	cmd.Flags().StringVar(&k.path, "out", "", "new file for the environment, readable by its owner only; never overwrites")
	cmd.Flags().BoolVar(&k.write, "write", false, "write "+agentsDir+"/NAME.json, where the stdio runtime finds it")
	cmd.Flags().StringVar(&k.dir, "dir", ".", "with --write: the directory that the runtime works in")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatShell, formatEnv}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("dir")
	cmd.MarkFlagsMutuallyExclusive("out", "write")
}

func (k *keyOut) check() error {
	if k.endpoint != "" {
		if _, err := parseServer(k.endpoint); err != nil {
			return usagef("--endpoint: %w", err)
		}
	}
	if k.format != formatShell && k.format != formatEnv {
		return usagef("--format: must be shell or env, got %q", k.format)
	}
	return nil
}

func newRoomAgentsRegisterCommand(opts *options) *cobra.Command {
	var (
		out                                   keyOut
		description, display, model, kind, by string
		open, overwrite                       bool
	)
	models := []string{"session_addressable", "session_passive", "auto_session", "always_on"}
	kinds := []string{"claude-code", "codex", "opencode", "antigravity", "cursor"}
	cmd := &cobra.Command{
		Use:   "register NAME",
		Short: "Register an agent and print the environment it connects with",
		Long: `Register an agent of rooms and print its environment, this once: SWITCH_API_ENDPOINT, SWITCH_API_TOKEN, SWITCH_AGENT_ID.
With --write it goes to .switch/agents/NAME.json below the working directory, where the stdio runtime looks; with --out to a
new file that only its owner can read.

A new agent is owner-only: messages of anybody but its owner reach it, but do not address it. --open lets everybody
address it from the start; "roomagents policy NAME --open" does so later. With --overwrite an agent of this name gets a
new key and the given profile; its id, its rooms and its policy stay.`,
		Example: `  signalbox roomagents register build-bot --out build-bot.env
  signalbox roomagents register build-bot --type claude-code --open --write
  signalbox roomagents register ben-bot --owner ben@example.com --endpoint https://signalbox.example.com --format env --out ben-bot.env`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if kind != "" && cmd.Flags().Changed("model") {
				return usagef("--type and --model exclude each other: a known type has its model")
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			body := map[string]any{"name": args[0], "description": description, "overwrite": overwrite}
			if kind != "" {
				body["type"] = kind
			} else {
				body["connection_model"] = model
			}
			if display != "" {
				body["display_name"] = display
			}
			if open {
				body["open"] = true
			}
			if by != "" {
				if body["owner_id"], err = c.find(cmd.Context(), kindPerson, by); err != nil {
					return err
				}
			}
			return opts.showKeyOnce(cmd.Context(), c, args[0], out, overwrite, func(into *registeredAgent) error {
				return nameTaken(c.post(cmd.Context(), "/room-agents", body, into), args[0], overwrite)
			})
		},
	}
	cmd.Flags().StringVar(&description, "description", "", "what the agent does, shown to others in its rooms")
	cmd.Flags().StringVar(&display, "display-name", "", "name to show beside NAME")
	model = models[0]
	cmd.Flags().Var(&oneOf{into: &model, words: models}, "model", "how it is connected: "+strings.Join(models, ", "))
	cmd.Flags().Var(&oneOf{into: &kind, words: kinds}, "type", "known type, which sets the profile: "+strings.Join(kinds, ", "))
	cmd.Flags().StringVar(&by, "owner", "", "person that owns it: email, name or id (default: the operator person)")
	cmd.Flags().BoolVar(&open, "open", false, "let everybody address it")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "give an agent of this name a new key and this profile")
	out.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("model", cobra.FixedCompletions(models, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("owner", opts.completePeople())
	return cmd
}

// nameTaken adds the next step to a registration that the name refuses.
func nameTaken(err error, name string, overwrite bool) error {
	var api *apiError
	if !fault.Is(err, fault.Conflict) || !errors.As(err, &api) {
		return err
	}
	api.hint = "give it a new key with `signalbox roomagents rotate " + oneLine(name) + "`"
	if overwrite {
		api.hint += "; --overwrite is for an agent of the same owner"
	} else {
		api.hint += ", or a new key and this profile with --overwrite"
	}
	return err
}

func newRoomAgentsRotateCommand(opts *options) *cobra.Command {
	var (
		out     keyOut
		confirm confirmation
	)
	cmd := &cobra.Command{
		Use:   "rotate AGENT",
		Short: "Give an agent a new key; the old one is refused at once",
		Long: `Give an agent a new key and print its environment, this once. The old key is refused at once; connections that are open stay
open until they end. Profile, rooms and policy stay.`,
		Example: `  signalbox roomagents rotate build-bot --yes
  signalbox roomagents rotate build-bot --yes --write`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoomAgent, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Give room agent %s a new key? The one it has is refused at once.", args[0])); err != nil {
				return err
			}
			var a record[roomAgentRow]
			if err := c.get(cmd.Context(), roomPath("room-agents", id), nil, &a); err != nil {
				return err
			}
			return opts.showKeyOnce(cmd.Context(), c, a.V.Name, out, true, func(into *registeredAgent) error {
				return c.do(cmd.Context(), http.MethodPost, roomPath("room-agents", id, "rotate"), nil, nil, into)
			})
		},
	}
	out.add(cmd)
	confirm.add(cmd)
	return cmd
}

// showKeyOnce asks for a key and puts it where it was wanted. The place is made first: what is shown once must have one.
// replace allows an agent's file of before to be replaced.
func (o *options) showKeyOnce(ctx context.Context, c *client, name string, to keyOut, replace bool, ask func(*registeredAgent) error) (err error) {
	file, final, err := to.create(name, replace)
	if err != nil {
		return err
	}
	if file != nil {
		defer func() {
			err = errors.Join(err, file.Close())
			if err != nil {
				err = errors.Join(err, os.Remove(file.Name()))
			} else if final != file.Name() {
				err = os.Rename(file.Name(), final)
			}
		}()
	}
	var r registeredAgent
	if err := ask(&r); err != nil {
		return err
	}
	endpoint := to.endpoint
	if endpoint == "" {
		endpoint = o.findBrainURL(c)
	}
	env := envList{{"SWITCH_API_ENDPOINT", endpoint}, {"SWITCH_API_TOKEN", r.APIKey}, {"SWITCH_AGENT_ID", r.Agent.V.ID}}
	if endpoint == "" {
		env[0][1] = "https://REPLACE-WITH-THIS-SERVER"
	}
	if file != nil {
		if err := errors.Join(to.writeTo(file, r.Agent.V, env), file.Sync()); err != nil {
			return fmt.Errorf("write the key of room agent %s: %w", r.Agent.V.ID, err)
		}
		if o.json {
			err = o.out.document(field{"room_agent", r.Agent}, field{"path", final})
		} else {
			o.out.text("%s", final)
		}
	} else if o.json {
		err = o.out.document(field{"room_agent", r.Agent}, field{"api_key", r.APIKey}, field{"env", env})
	} else {
		o.out.wrote = true
		err = to.writeEnv(o.stdio.Out, env)
	}
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	o.adviseRegistered(r.Agent.V, endpoint, to.write)
	return nil
}

// create makes the file that the key goes to, if any. It is to be renamed to final when that differs.
func (k *keyOut) create(name string, replace bool) (file *os.File, final string, err error) {
	switch {
	case k.path != "":
		file, err = os.OpenFile(k.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		final = k.path
	case k.write:
		if strings.ContainsAny(name, `/\`) || name == "" || name[0] == '.' {
			return nil, "", usagef("--write: %q cannot be a file's name", name)
		}
		dir := filepath.Join(k.dir, filepath.FromSlash(agentsDir))
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return nil, "", usagef("--write: %w", err)
		}
		final = filepath.Join(dir, name+".json")
		if replace {
			file, err = os.CreateTemp(dir, "."+name+"-*")
		} else {
			file, err = os.OpenFile(final, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
	default:
		return nil, "", nil
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, "", exitf(ExitConflict, "%s exists already; it was left as it is, and no key was made", final)
	}
	if err != nil {
		return nil, "", usagef("make the file for the key: %w", err)
	}
	return file, final, nil
}

func (k *keyOut) writeTo(w io.Writer, a roomAgentRow, env envList) error {
	if !k.write {
		return k.writeEnv(w, env)
	}
	data, err := json.MarshalIndent(map[string]string{"name": a.Name, "agent_id": a.ID, "endpoint": env[0][1], "token": env[1][1]}, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

func (k *keyOut) writeEnv(w io.Writer, env envList) error {
	prefix := ""
	if k.format == formatShell {
		prefix = "export "
	}
	var b strings.Builder
	for _, pair := range env {
		fmt.Fprintf(&b, "%s%s=%s\n", prefix, pair[0], shellQuote(pair[1]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// adviseRegistered says what is worth knowing about a key that was just made, and about an agent that seems deaf.
func (o *options) adviseRegistered(a roomAgentRow, endpoint string, written bool) {
	o.out.say("room agent %s has a new key; it is not shown again", oneLine(a.Name))
	if written {
		o.out.say("the file holds the key: keep %s out of version control", agentsDir)
	}
	if endpoint == "" {
		o.out.say("set SWITCH_API_ENDPOINT to the address the agent reaches this server at")
	}
	if a.OpenCommand != nil {
		o.out.say("it is owner-only: only %s can address it; open it to everybody with: %s", oneLine(nameOf(a.Owner)), *a.OpenCommand)
	}
}
