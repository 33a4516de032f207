package api

import (
	"context"
	"net/http"

	"signalbox/appliance/agent"
)

// transitionRecord is one change of a command, with the command as it is now.
type transitionRecord struct {
	Type    string        `json:"type"` // transition
	Cursor  string        `json:"cursor"`
	Seq     int64         `json:"seq"`
	At      stamp         `json:"at"`
	Event   string        `json:"event"`
	Status  agent.Status  `json:"status"` // after the change
	Detail  *string       `json:"detail"`
	Command commandPublic `json:"command"`
}

// streamQuery reads what every stream is asked with.
func (a *API) streamQuery(q *query) (at position, follow bool) {
	at, err := a.parseStreamCursor(q.values.Get("cursor"))
	if err != nil {
		q.bad("cursor", "must be a cursor of a stream, 0 for the oldest record, or absent for new records only")
	}
	return at, q.flag("follow", true)
}

func (a *API) streamCommands(w http.ResponseWriter, c *call) error {
	q := c.query()
	at, follow := a.streamQuery(q)
	f := agent.StreamFilter{CommandID: q.id("command_id"), Status: agent.Status(q.oneOf("status", statuses...)),
		AgentID: q.id("agent_id"), Action: q.text("action", maxActionLen)}
	if err := q.err(); err != nil {
		return err
	}
	no := c.project.No
	return a.serveStream(w, c, at, follow, logReader{
		key: agent.ProjectCommands(no),
		head: func(ctx context.Context) (int64, error) {
			b, err := a.Commands.Head(ctx, no)
			return b.Head, err
		},
		read: func(ctx context.Context, after int64) (logPage, error) {
			p, err := a.Commands.StreamSince(ctx, no, after, f, streamPage)
			return logPage{records: each(p.Items, a.showChange), next: p.Next, more: p.More, gap: p.Gap,
				resumed: p.Resumed, pruned: p.Bounds.Pruned, head: p.Bounds.Head}, err
		},
	})
}

func (a *API) showChange(i *agent.StreamItem) any {
	t := &i.Transition
	return transitionRecord{Type: "transition", Cursor: a.streamCursor(t.No), Seq: t.No, At: stamp(t.At), Event: t.Event,
		Status: t.Status, Detail: t.Detail, Command: showCommand(&i.Command)}
}

// eventRecord is one event in the order it was stored.
type eventRecord struct {
	Type   string      `json:"type"` // event
	Cursor string      `json:"cursor"`
	Event  eventPublic `json:"event"`
}

func (a *API) streamEvents(w http.ResponseWriter, c *call) error {
	q := c.query()
	at, follow := a.streamQuery(q)
	f := eventFilter(q)
	if err := q.err(); err != nil {
		return err
	}
	no := c.project.No
	return a.serveStream(w, c, at, follow, logReader{
		key: agent.ProjectEvents(no),
		head: func(ctx context.Context) (int64, error) {
			b, err := a.Records.EventBounds(ctx, no)
			return b.Head, err
		},
		read: func(ctx context.Context, after int64) (logPage, error) {
			p, err := a.Records.StreamEvents(ctx, no, after, f, streamPage)
			out := logPage{records: each(p.Events, a.showRecord), next: p.Next, more: p.More, gap: p.Gap,
				resumed: after, pruned: p.Bounds.Pruned, head: p.Bounds.Head}
			if after > p.Bounds.Head {
				out.resumed = p.Bounds.Head
			}
			return out, err
		},
	})
}

func (a *API) showRecord(e *agent.Event) any {
	return eventRecord{Type: "event", Cursor: a.streamCursor(e.No), Event: showEvent(e)}
}
