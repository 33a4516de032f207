package commands

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// filters are the flags that list commands share. Each command registers the ones its route knows.
type filters struct {
	state  string
	agent  string
	action string
	since  string
	limit  int
	cursor string
}

func (f *filters) addState(cmd *cobra.Command, states ...string) {
	cmd.Flags().Var(&oneOf{into: &f.state, words: states}, "state", "only this state: "+strings.Join(states, ", "))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
}

func (f *filters) addAgent(cmd *cobra.Command, o *options) {
	cmd.Flags().StringVar(&f.agent, "agent", "", "only this agent: name, id or unique id prefix")
	_ = cmd.RegisterFlagCompletionFunc("agent", o.completeAgents)
}

func (f *filters) addAction(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.action, "action", "", "only this action, such as retry_task")
	_ = cmd.RegisterFlagCompletionFunc("action", cobra.FixedCompletions(actionNames(), cobra.ShellCompDirectiveNoFileComp))
}

func (f *filters) addSince(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.since, "since", "", "only newer than this: a duration back from now (90s, 15m, 2h, 7d) or an RFC 3339 time")
}

func (f *filters) addLimit(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.limit, "limit", 50, "most rows to show; pages are fetched as needed")
}

func (f *filters) addCursor(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&f.cursor, "cursor", "", usage)
}

func (f *filters) checkLimit() error {
	if f.limit < 1 || f.limit > 1_000_000 {
		return usagef("--limit: must be between 1 and 1000000, got %d", f.limit)
	}
	return nil
}

// sinceTime parses --since; "" when it is not set.
func (f *filters) sinceTime(now time.Time) (string, error) {
	if f.since == "" {
		return "", nil
	}
	t, err := parseSince(f.since, now)
	if err != nil {
		return "", err
	}
	return t.UTC().Format(time.RFC3339Nano), nil
}

// oneOf is a flag that takes one of some words, or nothing.
type oneOf struct {
	into  *string
	words []string
}

func (f *oneOf) String() string {
	if f.into == nil {
		return ""
	}
	return *f.into
}

func (f *oneOf) Type() string { return "word" }

func (f *oneOf) Set(text string) error {
	if text != "" && !slices.Contains(f.words, text) {
		return fmt.Errorf("must be one of %s", strings.Join(f.words, ", "))
	}
	*f.into = text
	return nil
}

// jsonFlag is a flag whose value is JSON of one kind: '[' for a list, '{' for an object. Its tokens are passed on as given.
type jsonFlag struct {
	raw  json.RawMessage
	kind byte
}

func (j *jsonFlag) String() string { return string(j.raw) }

func (j *jsonFlag) Type() string {
	if j.kind == '[' {
		return "json-list"
	}
	return "json-object"
}

func (j *jsonFlag) Set(text string) error {
	text = strings.TrimSpace(text)
	if !json.Valid([]byte(text)) || text[0] != j.kind {
		if j.kind == '[' {
			return errors.New("must be a JSON list, such as '[1,2]'")
		}
		return errors.New("must be a JSON object, such as '{\"name\":1}'")
	}
	j.raw = json.RawMessage(text)
	return nil
}

// value is the JSON, or null when the flag was not set.
func (j *jsonFlag) value() json.RawMessage {
	if j.raw == nil {
		return json.RawMessage("null")
	}
	return j.raw
}

// confirmation guards a destructive verb: --yes, or an answer on the terminal.
type confirmation struct{ yes bool }

func (c *confirmation) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask for confirmation")
}

func (c *confirmation) ask(o *options, question string) error {
	if c.yes {
		return nil
	}
	question = oneLine(question)
	if !o.stdio.InIsTerminal || o.stdio.In == nil {
		return usagef("%s Say so with --yes.", question)
	}
	fmt.Fprintf(o.stdio.Err, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(o.stdio.In, 1024)).ReadString('\n')
	if err != nil && err != io.EOF {
		return fmt.Errorf("read confirmation: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return exitf(ExitFailed, "not confirmed, nothing changed")
}
