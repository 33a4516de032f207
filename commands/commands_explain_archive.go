package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// daemonCommand is a command to an archive daemon with its ledger.
type daemonCommand struct {
	ID          string           `json:"id"`
	Kind        string           `json:"kind"`
	Step        *string          `json:"step"`
	StepAttempt int              `json:"step_attempt"`
	Daemon      string           `json:"daemon"`
	State       string           `json:"state"`
	Attempts    int              `json:"attempts"`
	Deliveries  []daemonDelivery `json:"deliveries"`
}

type daemonDelivery struct {
	Attempt    int        `json:"attempt"`
	Generation int64      `json:"generation"`
	SentAt     *time.Time `json:"sent_at"`
	AckedAt    *time.Time `json:"acked_at"`
	Outcome    string     `json:"outcome"`
	Reason     *string    `json:"reason"`
}

// what is the command in words.
func (c *daemonCommand) what() string {
	if c.Step == nil {
		return words(c.Kind)
	}
	return words(c.Kind) + " " + strings.ToUpper(*c.Step)
}

type daemonCommandExplanation struct {
	Command daemonCommand `json:"command"`
	jobExplanation
}

// planeID is what an id of `commands explain` stands for: a command to an agent, a command to a daemon, or a job.
type planeID struct {
	kind, id string
	scope    *scope  // of the agents' plane
	client   *client // of the archive plane
}

const (
	planeAgentCommand  = "command to an agent"
	planeDaemonCommand = "command to a daemon"
	planeJob           = "archive job"
)

// onAnyPlane finds what an argument stands for. A whole id is looked for among the commands to agents, those to daemons and
// the archive jobs, in this order. A beginning of an id must be unique among all of them.
func (o *options) onAnyPlane(cmd *cobra.Command, arg string) (planeID, error) {
	ctx := cmd.Context()
	s, id, agentErr := o.resolveCommand(cmd, arg)
	if agentErr != nil && !fault.Is(agentErr, fault.NotFound) {
		return planeID{}, agentErr // also what is no id
	}
	whole, isWhole := fullID(arg)
	if isWhole && agentErr == nil {
		if agentErr = s.get(ctx, s.path("commands", id), nil, &struct{}{}); agentErr == nil {
			return planeID{planeAgentCommand, id, s, nil}, nil
		}
		if !fault.Is(agentErr, fault.NotFound) {
			return planeID{}, agentErr
		}
	}
	c, err := o.newClient()
	if err != nil {
		return planeID{}, err
	}
	var found []planeID
	if agentErr == nil {
		found = append(found, planeID{planeAgentCommand, id, s, nil})
	}
	if isWhole {
		arg = whole
	}
	for _, k := range []struct{ kind, of string }{{kindCommand, planeDaemonCommand}, {kindJob, planeJob}} {
		matches, err := c.archiveMatches(ctx, k.kind, arg)
		if err != nil {
			return planeID{}, err
		}
		for _, m := range matches {
			found = append(found, planeID{k.of, m.ID, nil, c})
		}
	}
	switch {
	case len(found) == 0:
		return planeID{}, agentErr
	case len(found) == 1:
		return found[0], nil
	}
	candidates := make([]string, 0, len(found))
	for _, f := range found {
		candidates = append(candidates, f.id+" "+f.kind)
	}
	return planeID{}, ambiguous("command", arg, candidates)
}

// archiveMatches asks the archive plane what a text stands for: for nothing where the plane is turned off, or where the
// caller may not look.
func (c *client) archiveMatches(ctx context.Context, kind, text string) ([]idName, error) {
	matches, err := c.matches(ctx, kind, text, nil)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Forbidden) {
		return nil, nil
	}
	return matches, err
}

// pointToArchive adds to the refusal of an id that is no command to an agent what it is instead.
func (o *options) pointToArchive(cmd *cobra.Command, arg string, err error) error {
	var api *apiError
	if !fault.Is(err, fault.NotFound) || !errors.As(err, &api) {
		return err
	}
	at, findErr := o.onAnyPlane(cmd, arg)
	if findErr != nil {
		return err
	}
	switch at.kind {
	case planeJob:
		api.hint = fmt.Sprintf("it is an archive job: `signalbox jobs show %s`", at.id)
	case planeDaemonCommand:
		api.hint = fmt.Sprintf("it is a command to an archive daemon: `signalbox commands explain %s`", at.id)
	}
	return err
}

// explainDaemonCommand says where a command to a daemon stands.
func (o *options) explainDaemonCommand(ctx context.Context, c *client, id string) error {
	var e record[daemonCommandExplanation]
	if err := c.get(ctx, roomPath("archive", "commands", id, "explain"), nil, &e); err != nil {
		return err
	}
	if o.json {
		return o.out.object("explanation", e)
	}
	return o.showArchiveExplanation(&e.V.jobExplanation, []daemonCommand{e.V.Command})
}

// explainJob says where a job stands.
func (o *options) explainJob(ctx context.Context, c *client, id string) error {
	var e record[jobExplanation]
	if err := c.get(ctx, roomPath("jobs", id, "explain"), nil, &e); err != nil {
		return err
	}
	if o.json {
		return o.out.object("explanation", e)
	}
	return o.showArchiveExplanation(&e.V, e.V.Commands)
}

func (o *options) showArchiveExplanation(e *jobExplanation, commands []daemonCommand) error {
	o.out.text("%s\n", printable(e.Summary))
	for _, sentence := range e.Sentences {
		o.out.text("%s", printable(sentence))
	}
	o.out.text("Waits for: %s.", printable(e.WaitsFor))
	o.out.text("Next: %s", printable(e.NextAction))
	var rows [][]string
	for i := range commands {
		c := &commands[i]
		row := []string{c.ID, c.what(), c.Daemon, words(c.State)}
		if len(c.Deliveries) == 0 {
			rows = append(rows, append(row, "-", "-", "-", "-", "-", ""))
		}
		for _, d := range c.Deliveries {
			rows = append(rows, append(row[:4:4], itoa(d.Attempt), itoa(d.Generation), words(d.Outcome), o.out.when(d.SentAt), o.out.when(d.AckedAt),
				text(d.Reason)))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	o.out.text("\nDeliveries:")
	return o.out.table([]string{"COMMAND", "WHAT", "DAEMON", "STATE", "ATTEMPT", "GENERATION", "OUTCOME", "SENT", "ACKED", "REASON"}, rows)
}
