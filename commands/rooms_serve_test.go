package commands

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// roomAgentClient is an agent that is connected to a room and answers what is addressed to it.
type roomAgentClient struct {
	config roomclient.Config
	id     string // of the connection
	heard  chan string
}

// connectRoomAgent registers an agent and connects it with the room claimed.
func connectRoomAgent(t *testing.T, r *run, name, room string) *roomAgentClient {
	t.Helper()
	var made struct {
		Env map[string]string `json:"env"`
	}
	runJSON(t, r, ExitOK, &made, "roomagents", "register", name)
	runJSON(t, r, ExitOK, &struct{}{}, "rooms", "invite", room, name)
	var shown struct {
		Room struct {
			ID string `json:"id"`
		} `json:"room"`
	}
	runJSON(t, r, ExitOK, &shown, "rooms", "show", room)
	a := &roomAgentClient{id: uuid.NewString(), heard: make(chan string, 16), config: roomclient.Config{
		Endpoint: made.Env["SWITCH_API_ENDPOINT"], Token: secret.NewText(made.Env["SWITCH_API_TOKEN"]),
		AgentID: uuid.MustParse(made.Env["SWITCH_AGENT_ID"])}}
	open := roomclient.Current(a.id)
	open.Rooms = []string{shown.Room.ID}
	connected := make(chan struct{}, 1)
	client := &roomclient.Client{Config: a.config, Open: open, Handler: roomclient.Handler{
		Connected: func(roomclient.State) {
			select {
			case connected <- struct{}{}:
			default:
			}
		},
		Event: func(ctx context.Context, f roomclient.Frame) error { return a.answer(ctx, f) },
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case <-connected:
	case <-time.After(2 * time.Minute):
		t.Fatal("the agent never connected")
	}
	return a
}

func (a *roomAgentClient) answer(ctx context.Context, f roomclient.Frame) error {
	var e struct {
		Payload struct {
			Addressed bool   `json:"addressed"`
			Body      string `json:"body"`
			Command   string `json:"command"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(f.Data, &e); err != nil {
		return err
	}
	a.heard <- f.Event + ": " + e.Payload.Body + e.Payload.Command
	if !e.Payload.Addressed {
		return nil
	}
	return a.config.Op(ctx, roomclient.Caller{ConnectionID: a.id}, "post_message", map[string]any{"body": "building"}, nil)
}

func (a *roomAgentClient) hears(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-a.heard:
		if got != want {
			t.Errorf("the agent hears %q, want %q", got, want)
		}
	case <-time.After(2 * time.Minute):
		t.Fatalf("the agent never hears %q", want)
	}
}

// A person runs a room from the command line alone: an agent is asked, answers, seems deaf to others until it is opened,
// and each step can be explained.
func TestRoomFromTheCommandLineToAnAgentAndBack(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	runJSON(t, r, ExitOK, &struct{}{}, "people", "create", "ben@example.com", "--name", "Ben")
	runJSON(t, r, ExitOK, &struct{}{}, "rooms", "create", "plaza", "--person", "ben@example.com")
	bot := connectRoomAgent(t, r, "build-bot", "plaza")

	var posted struct {
		Posted struct {
			Item struct {
				ID       string `json:"id"`
				Position int64  `json:"position"`
			} `json:"item"`
			Statuses []struct {
				Status string `json:"status"`
			} `json:"statuses"`
			Answers []struct {
				Body      string `json:"body"`
				Automatic bool   `json:"automatic"`
			} `json:"answers"`
		} `json:"posted"`
	}
	runJSON(t, r, ExitOK, &posted, "rooms", "say", "plaza", "@build-bot status?")
	asked := posted.Posted.Item.ID
	if s := posted.Posted.Statuses; len(s) != 1 || s[0].Status != "live" {
		t.Errorf("statuses %+v", s)
	}
	bot.hears(t, "message: @build-bot status?")

	opts, out, talk := r.options("", false) // its answer, from what was said on
	if got := opts.execute(t.Context(), []string{"rooms", "tail", "plaza", "--cursor", "0", "--limit", "3"}); got != ExitOK ||
		!strings.Contains(out.String(), "build-bot: building") || !strings.Contains(out.String(), "Operator: @build-bot status?") {
		t.Errorf("tail: exit code %d: %s%s", got, out, talk)
	}
	var explained struct {
		Explanation struct {
			Code       string `json:"code"`
			Deliveries []struct {
				ConnectionID string `json:"connection_id"`
			} `json:"deliveries"`
			Addressed struct {
				Value bool   `json:"value"`
				Rule  string `json:"rule"`
				Text  string `json:"text"`
			} `json:"addressed"`
		} `json:"explanation"`
	}
	runJSON(t, r, ExitOK, &explained, "rooms", "explain", asked, "--agent", "build-bot")
	if e := explained.Explanation; e.Code != "delivered" || len(e.Deliveries) != 1 || e.Deliveries[0].ConnectionID != bot.id || e.Addressed.Rule != "name" {
		t.Errorf("explained as %+v", e)
	}

	runJSON(t, r, ExitOK, &posted, "rooms", "say", "plaza", "@build-bot and mine?", "--as", "ben@example.com")
	bot.hears(t, "message: @build-bot and mine?")
	if a := posted.Posted.Answers; len(a) != 1 || !a[0].Automatic {
		t.Errorf("answers to who may not direct the agent: %+v", a)
	}
	runJSON(t, r, ExitOK, &explained, "rooms", "explain", posted.Posted.Item.ID, "--agent", "build-bot")
	if e := explained.Explanation; e.Code != "delivered" || e.Addressed.Value || !strings.Contains(e.Addressed.Text, "roomagents policy build-bot --open") {
		t.Errorf("explained as %+v", e)
	}
	runJSON(t, r, ExitOK, &struct{}{}, "roomagents", "policy", "build-bot", "--open")
	runJSON(t, r, ExitOK, &posted, "rooms", "say", "plaza", "@build-bot and now?", "--as", "ben@example.com")
	if s := posted.Posted.Statuses; len(s) != 1 || s[0].Status != "live" {
		t.Errorf("statuses of an open agent %+v", s)
	}
	bot.hears(t, "message: @build-bot and now?")

	var conns struct {
		Items []struct {
			ConnectionID string   `json:"connection_id"`
			Transport    string   `json:"transport"`
			Claims       []idName `json:"claims"`
			Client       string   `json:"client"`
		} `json:"items"`
	}
	runJSON(t, r, ExitOK, &conns, "connections", "list", "--agent", "build-bot")
	if len(conns.Items) != 1 || conns.Items[0].ConnectionID != bot.id || conns.Items[0].Transport != "websocket" ||
		len(conns.Items[0].Claims) != 1 || conns.Items[0].Claims[0].Name != "plaza" || conns.Items[0].Client != roomclient.Artifact {
		t.Errorf("connections %+v", conns.Items)
	}
	opts, out, talk = r.options("", false)
	if got := opts.execute(t.Context(), []string{"status"}); got != ExitOK || !strings.Contains(out.String(), "1 over websocket, 0 detached") ||
		!strings.Contains(out.String(), "\ntask agents: ") || !strings.Contains(out.String(), "\ntask sessions: ") {
		t.Errorf("status: exit code %d: %s%s", got, out, talk)
	}
	runJSON(t, r, ExitOK, &struct{}{}, "connections", "evict", bot.id[:8], "--yes")
}
