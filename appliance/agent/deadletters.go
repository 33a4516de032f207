package agent

import (
	"context"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// Bounds of a listing of dead letters (agent protocol E.10).
const (
	deadLetterWait    = 15 * time.Second
	deadLetterCursor  = 200
	deadLetterExcerpt = 512
	deadLetterText    = 500 // names, and what else an entry tells
)

// DeadLetterRequest asks for a page of an engine's dead letters.
type DeadLetterRequest struct {
	ProjectNo int64
	Engine    string
	Queue     string // "" is every queue
	Limit     int    // 1..200
	Cursor    string // of the page before, as the agent gave it; "" is the beginning
}

// DeadLetter is one entry as an agent reports it.
type DeadLetter struct {
	TaskID       string
	TaskName     *string
	Queue        *string
	FailedAt     *string // as reported
	ErrorExcerpt *string // at most 512 characters
	Attempts     *int64
}

// DeadLetters is a page of dead letters.
type DeadLetters struct {
	Entries    []DeadLetter
	NextCursor *string
	Total      *int64
	Engine     string
	AgentID    uuid.UUID // who answered
	CommandID  uuid.UUID
}

// ListDeadLetters asks an agent for dead letters and waits at most 15 s for its answer (agent protocol E.10). The agent is
// one whose reported inventory lists list_dead_letters for the engine, otherwise one that reports nothing. Audited as
// dead_letters.list beside command.issue.dlq.list.
//
// Errors: Invalid naming the field; Conflict with the candidates when no agent can answer; AdapterError for a failure that
// the agent reports and for an answer that is none; Timeout when none comes.
func (c *Commands) ListDeadLetters(ctx context.Context, p Principal, r DeadLetterRequest) (DeadLetters, error) {
	req, err := deadLetterCommand(r)
	if err != nil {
		return DeadLetters{}, err
	}
	list, err := c.Able(ctx, r.ProjectNo, "dlq.list", r.Engine)
	if err != nil {
		return DeadLetters{}, err
	}
	best := Best(list)
	if len(best) == 0 {
		return DeadLetters{}, noCandidate(r.Engine, list)
	}
	req.AgentID = best[0].ID
	watch := c.hub.Watch(ProjectCommands(r.ProjectNo))
	defer watch.Stop()
	var cmd Command
	if err := c.st.Update(ctx, "list dead letters", func(tx CommandTx) error {
		issued, err := c.IssueIn(tx, p, req)
		if err != nil {
			return err
		}
		cmd = issued.Command
		return c.auditDeadLetters(tx, p, r, cmd)
	}); err != nil {
		return DeadLetters{}, fmt.Errorf("issue dlq.list: %w", err)
	}
	if cmd, err = c.awaitEnd(ctx, cmd, watch.C()); err != nil {
		return DeadLetters{}, err
	}
	name := best[0].Name
	switch cmd.Status {
	case Completed:
		return readDeadLetters(cmd, r, name)
	case Failed:
		return DeadLetters{}, fault.New(fault.AdapterError, "agent %s could not list the dead letters of %s%s", name, r.Engine, because(cmd.Error)).
			With("agent_id", cmd.AgentID.String()).With("command_id", cmd.ID.String())
	case Cancelled:
		return DeadLetters{}, fault.New(fault.AdapterError, "the listing was cancelled before agent %s answered", name).
			With("agent_id", cmd.AgentID.String()).With("command_id", cmd.ID.String())
	}
	return DeadLetters{}, fault.New(fault.Timeout, "agent %s did not answer within %s", name, deadLetterWait).
		With("agent_id", cmd.AgentID.String()).With("command_id", cmd.ID.String())
}

// deadLetterCommand checks a request by the rules of its action.
func deadLetterCommand(r DeadLetterRequest) (IssueRequest, error) {
	if !enginePattern.MatchString(r.Engine) {
		return IssueRequest{}, fault.Field("engine", "is required and must be a name of 1..40 letters, digits, '.', '_' or '-' that starts with a letter or digit")
	}
	payload := rawjson.AppendString([]byte(`{"engine":`), r.Engine)
	payload = strconv.AppendInt(append(payload, `,"limit":`...), int64(r.Limit), 10)
	if r.Queue != "" {
		payload = rawjson.AppendString(append(payload, `,"queue":`...), r.Queue)
	}
	if r.Cursor != "" {
		payload = rawjson.AppendString(append(payload, `,"cursor":`...), r.Cursor)
	}
	req := IssueRequest{ProjectNo: r.ProjectNo, Action: "dlq.list", Payload: append(payload, '}')}
	d, err := newDraft(req)
	if err != nil {
		return req, err
	}
	d.doc.Release()
	return req, nil
}

// maxCandidates bounds the agents that an error names.
const maxCandidates = 50

// noCandidate says why nobody can list dead letters, for each agent.
func noCandidate(engine string, list []Standing) error {
	candidates := make([]map[string]any, 0, len(list))
	for _, a := range list[:min(len(list), maxCandidates)] {
		candidates = append(candidates, map[string]any{"agent_id": a.ID.String(), "name": a.Name, "state": string(a.State), "reason": a.Reason})
	}
	return fault.New(fault.Conflict, "no agent can list the dead letters of %s now", engine).With("error", "no_capable_agent").
		With("engine", engine).With("candidates", candidates)
}

func (c *Commands) auditDeadLetters(tx CommandTx, p Principal, r DeadLetterRequest, cmd Command) error {
	meta := appendAgentID([]byte(`{"agent_id":`), cmd)
	meta = append(append(append(meta, `,"command_id":"`...), cmd.ID.String()...), '"')
	meta = rawjson.AppendString(append(meta, `,"engine":`...), r.Engine)
	meta = append(appendOptional(append(meta, `,"queue":`...), textOrNil(r.Queue)), '}')
	return c.log.Append(tx, audit.Entry{ProjectNo: r.ProjectNo, UserID: textOrNil(p.ID), Action: "dead_letters.list", TargetType: "queue",
		TargetID: textOrNil(r.Queue), Result: audit.Success, Outcome: audit.Allow, Metadata: meta, SourceIP: textOrNil(p.SourceIP),
		UserAgent: textOrNil(p.UserAgent)})
}

// awaitEnd returns the command once it has ended, or as it stands after 15 s.
func (c *Commands) awaitEnd(ctx context.Context, cmd Command, changed <-chan struct{}) (Command, error) {
	timer := c.opts.Clock.NewTimer(deadLetterWait)
	defer timer.Stop()
	for over := false; ; {
		now, err := c.Get(ctx, cmd.ProjectNo, cmd.ID)
		if err != nil || now.Status.Terminal() || over {
			return now, err
		}
		select {
		case <-changed:
		case <-timer.C():
			over = true
		case <-ctx.Done():
			return now, fault.Wrap(fault.Canceled, context.Cause(ctx), "the request was given up before the agent answered")
		}
	}
}

// readDeadLetters checks an answer: entries with a task id each, at most as many as were asked for, and a cursor that can be
// sent again. What is beside that and not as it should be reads as null.
func readDeadLetters(cmd Command, r DeadLetterRequest, agentName string) (DeadLetters, error) {
	malformed := func(rule string) error {
		return fault.New(fault.AdapterError, "agent %s gave an answer that is no list of dead letters: %s", agentName, rule).
			With("agent_id", cmd.AgentID.String()).With("command_id", cmd.ID.String())
	}
	out := DeadLetters{Entries: []DeadLetter{}, Engine: r.Engine, AgentID: cmd.AgentID, CommandID: cmd.ID}
	doc, err := rawjson.Parse(cmd.Result)
	if err != nil {
		return out, malformed("result must be an object")
	}
	defer doc.Release()
	entries := doc.Root().Get("entries")
	if entries.Kind() != rawjson.Array {
		return out, malformed("entries must be a list")
	}
	if entries.Len() > r.Limit {
		return out, malformed(fmt.Sprintf("entries must be at most the %d that were asked for", r.Limit))
	}
	for _, v := range entries.Each() {
		id, ok := v.Get("task_id").Str()
		if !ok || id == "" || utf8.RuneCountInString(id) > 200 {
			return out, malformed("task_id of an entry must be a string of 1 to 200 characters")
		}
		e := DeadLetter{TaskID: id, TaskName: reported(v.Get("task_name"), deadLetterText), Queue: reported(v.Get("queue"), deadLetterText),
			FailedAt: reported(v.Get("failed_at"), 64), ErrorExcerpt: reported(v.Get("error_excerpt"), deadLetterExcerpt)}
		if n, ok := v.Get("attempts").Int64(); ok && n >= 0 {
			e.Attempts = &n
		}
		out.Entries = append(out.Entries, e)
	}
	if v := doc.Root().Get("next_cursor"); !v.IsAbsent() {
		cursor, ok := v.Str()
		if !ok || !sendable(cursor) {
			return out, malformed("next_cursor must be a string of at most 200 printable ASCII characters or null")
		}
		out.NextCursor = textOrNil(cursor)
	}
	if n, ok := doc.Root().Get("total").Int64(); ok && n >= 0 {
		out.Total = &n
	}
	return out, nil
}

func reported(v rawjson.Value, limit int) *string {
	s, ok := v.Str()
	if !ok {
		return nil
	}
	s = cutRunes(s, limit)
	return &s
}

// sendable tells whether a cursor can be given back to the agent.
func sendable(cursor string) bool {
	for i := range len(cursor) {
		if cursor[i] < 0x20 || cursor[i] > 0x7e {
			return false
		}
	}
	return len(cursor) <= deadLetterCursor
}
