package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// agent is one of the agents of a run.
type agent struct {
	roomclient.Config
	name  string
	fresh bool // made here
}

func (a *agent) id() string { return a.AgentID.String() }

// runner is one run.
type runner struct {
	opts    Options
	tag     string
	made    int // agents and rooms, for their names
	a, b    *agent
	agents  []*agent
	rooms   []madeRoom
	sse     bool      // the server streams over HTTP
	removed *answered // what it says when it does not
	policy  policy
	lapses  time.Time // when the last connection that could not be closed has lapsed
}

// madeRoom is a room and the agent that made it.
type madeRoom struct {
	by *agent
	id string
}

// policy is whether b may address a.
type policy struct {
	asked, open bool
	why         string
}

func (r *runner) config(id uuid.UUID, key secret.Text) roomclient.Config {
	return roomclient.Config{Endpoint: r.opts.Endpoint, Token: key, AgentID: id, TLS: r.opts.TLS, HTTP: r.opts.HTTP,
		Clock: r.opts.Clock}
}

// setUp makes the agents, or finds them, and asks whether the server streams over HTTP.
func (r *runner) setUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	var err error
	switch {
	case !r.opts.Key.IsZero():
		if r.a, err = r.register(ctx, "a"); err == nil {
			r.b, err = r.register(ctx, "b")
		}
	case len(r.opts.Agents) == 2:
		if r.a, err = r.known(ctx, r.opts.Agents[0]); err == nil {
			r.b, err = r.known(ctx, r.opts.Agents[1])
		}
		if err == nil && r.a.AgentID == r.b.AgentID {
			err = errors.New("the two agents are the same")
		}
	default:
		err = errors.New("a registration key or two agents are needed")
	}
	if err != nil {
		return err
	}
	got, err := r.a.events(ctx)
	if err != nil {
		return err
	}
	if r.sse = got.status != http.StatusGone; !r.sse {
		r.removed = got
	}
	return nil
}

// register makes an agent that everybody may address, on servers that know how (A.3).
func (r *runner) register(ctx context.Context, suffix string) (*agent, error) {
	a := &agent{Config: r.config(uuid.Nil, r.opts.Key), name: "conformance-" + r.tag + "-" + suffix, fresh: true}
	var out struct {
		ID  uuid.UUID `json:"id"`
		Key string    `json:"api_key"`
	}
	err := a.Do(ctx, http.MethodPost, "/agents", map[string]any{
		"name": a.name, "description": "Made by the conformance runner, which deletes it at its end.", "connector_type": "external",
		"integration_profile": map[string]any{"connection_model": "session_addressable", "message_exchange": true,
			"pre_invocation_mediation": []any{}, "post_invocation_mediation": []any{}, "event_reporting": []any{},
			"task_protocol":        map[string]bool{"can_delegate": false, "can_accept": false},
			"command_capabilities": map[string]string{"reset": "unsupported", "compact": "unsupported", "interrupt": "unsupported"}},
		"tools": []any{}, "models": []any{}, "metadata": map[string]any{}, "overwrite": false,
		"addressing_policy": map[string]any{"rules": []any{}}}, nil, &out)
	if err != nil {
		return nil, fmt.Errorf("register an agent: %w", err)
	}
	if out.ID == uuid.Nil || out.Key == "" {
		return nil, errors.New("register an agent: the answer lacks id or api_key (A.3)")
	}
	a.Config = r.config(out.ID, secret.NewText(out.Key))
	r.agents = append(r.agents, a)
	return a, nil
}

// known finds the name of an agent that exists.
func (r *runner) known(ctx context.Context, x Agent) (*agent, error) {
	a := &agent{Config: r.config(x.ID, x.Key)}
	var detail struct {
		Name string `json:"name"`
	}
	if err := a.Op(ctx, roomclient.Caller{}, "get_agent_detail", nil, &detail); err != nil {
		return nil, fmt.Errorf("agent %s: %w", x.ID, err)
	}
	a.name = detail.Name
	return a, nil
}

// answered is an HTTP answer whose status is not judged.
type answered struct {
	status  int
	refused *roomclient.StatusError // nil for 2xx
}

// events asks for the stream without a connection id, which every server refuses.
func (a *agent) events(ctx context.Context) (*answered, error) {
	h := http.Header{"Accept": {"text/event-stream"}}
	return a.ask(ctx, http.MethodGet, "/agents/"+a.id()+"/events", nil, h)
}

func (a *agent) ask(ctx context.Context, method, path string, body any, h http.Header) (*answered, error) {
	err := a.Do(ctx, method, path, body, h, nil)
	var refused *roomclient.StatusError
	switch {
	case errors.As(err, &refused):
		return &answered{refused.Status, refused}, nil
	case err != nil:
		return nil, err
	}
	return &answered{status: http.StatusOK}, nil
}

// newRoom makes a room with the agents in it.
func (r *runner) newRoom(ctx context.Context, by *agent, others ...*agent) (string, error) {
	r.made++
	names := []string{by.name}
	for _, o := range others {
		names = append(names, o.name)
	}
	var out struct {
		ID string `json:"id"`
	}
	err := by.Op(ctx, roomclient.Caller{}, "create_room", map[string]any{"name": fmt.Sprintf("conformance-%s-%d", r.tag, r.made),
		"description": "Made by the conformance runner, which archives it at its end.", "agent_names": names}, &out)
	if err != nil {
		return "", fmt.Errorf("create_room: %w", err)
	}
	if out.ID == "" {
		return "", errors.New("create_room: the answer has no id (H.6)")
	}
	r.rooms = append(r.rooms, madeRoom{by, out.ID})
	return out.ID, nil
}

// cleanUp archives the rooms and deletes the agents. It returns what was left.
func (r *runner) cleanUp(ctx context.Context) (left []string) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	for _, m := range r.rooms {
		if err := m.by.Op(ctx, roomclient.Caller{}, "archive_room", map[string]string{"room_id": m.id}, nil); err != nil {
			left = append(left, fmt.Sprintf("room %s: archive_room: %v", m.id, err))
		}
	}
	for _, a := range r.agents {
		if err := a.Do(ctx, http.MethodDelete, "/agents/"+a.id(), nil, nil, nil); err != nil {
			left = append(left, fmt.Sprintf("agent %s (%s): %v", a.name, a.id(), err))
		}
	}
	return left
}

// replay runs one vector.
func (r *runner) replay(ctx context.Context, v *Vector) Result {
	out := Result{Number: v.Number, Name: v.Name, Outcome: Skipped, Detail: v.Skip}
	if v.Skip != "" {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout+v.wait)
	defer cancel()
	began := time.Now()
	t := &trial{runner: r, ctx: ctx}
	verdict := t.play(v.run)
	t.close()
	out.Took = time.Since(began)
	out.Seconds = out.Took.Seconds()
	out.Outcome, out.Rule, out.Detail = verdict.outcome, verdict.rule, verdict.text
	return out
}
