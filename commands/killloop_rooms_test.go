package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

const (
	killReceivers = 50
	// defaultRoomKills keeps the loop short in `go test`; with SIGNALBOX_KILLS it is a quarter of that.
	defaultRoomKills = 4
)

// TestKillLoopRooms kills the real binary with SIGKILL at random instants while people and agents post to rooms and 50
// agents follow them over both transports, and compares the ledgers of all with the database after each restart and in
// the end: nothing acknowledged is lost, no request is stored twice, every event reaches its agent, once, in order, under
// a number that means nothing else, without a gap.
func TestKillLoopRooms(t *testing.T) {
	kills := defaultRoomKills
	if text := os.Getenv("SIGNALBOX_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SIGNALBOX_KILLS: must be a positive number, got %q", text)
		}
		kills = max(n/4, 1)
	}
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--room-retained-events=1000000"} // everything is compared in the end
	p.start()
	l := p.crowd(killReceivers)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	posting, stopPosting := context.WithCancel(ctx)
	defer stopPosting()
	var receivers, posters sync.WaitGroup
	for _, r := range l.receivers {
		receivers.Go(func() { r.run(ctx) })
	}
	for _, post := range l.posters() {
		posters.Go(func() { post(posting) })
	}
	db := openLedgerDB(t, filepath.Join(p.dir, "signalbox.db"))
	for n := range kills {
		p.kill(50*time.Millisecond + rand.N(350*time.Millisecond))
		if n%5 == 4 { // and once in a while before it is ready
			p.launch()
			p.kill(rand.N(80 * time.Millisecond))
			p.forgetReady()
		}
		p.start()
		l.checkRestart(t, db)
		if t.Failed() {
			break
		}
	}
	stopPosting()
	posters.Wait()
	l.drain(t, db)
	cancel()
	receivers.Wait()
	t.Logf("%d kills, %s", kills, l)
	p.stop()
	l.check(t, db)
}

// roomLedger is what the clients of the rooms know, whatever the server says later.
type roomLedger struct {
	p         *process
	receivers []*killReceiver
	speakers  []roomclient.Config
	rooms     []string // ids; the first has everybody in it
	operator  string   // key
	cookie    string   // of a person

	mu      sync.Mutex
	sent    map[string]int    // body -> attempts
	acked   map[string]string // body -> id of the item
	repeats int               // requests that were answered after more than one attempt
	twice   []string          // bodies whose request was answered with two items
	wrong   []string
}

func (l *roomLedger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, streams := int64(0), 0
	for _, r := range l.receivers {
		events += r.cursor
		streams += r.streams
	}
	return fmt.Sprintf("%d posts acknowledged of %d, %d of them after a repetition; %d events received on %d streams",
		len(l.acked), len(l.sent), l.repeats, events, streams)
}

func (l *roomLedger) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrong) < 20 {
		l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
	}
}

// killReceiver is an agent that follows its rooms. Its fields are under the ledger's lock.
type killReceiver struct {
	l       *roomLedger
	name    string
	cfg     roomclient.Config
	client  *roomclient.Client
	start   int64 // it has asked for what follows
	cursor  int64
	items   []string // ids of items by sequence, from 1; "" for a join
	streams int
}

func (r *killReceiver) run(ctx context.Context) {
	end := r.client.Run(ctx)
	if end.Stop != "stopped" {
		r.l.fail("%s gave up, %s: %v", r.name, end.Stop, &end.Closed)
	}
}

func (r *killReceiver) event(_ context.Context, f roomclient.Frame) error {
	var data struct {
		Payload struct {
			ID string `json:"message_id"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(f.Data, &data); err != nil {
		r.l.fail("%s: event %d: %v", r.name, f.ID, err)
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if f.ID != r.cursor+1 {
		r.l.wrong = append(r.l.wrong, fmt.Sprintf("%s: event %d came after %d", r.name, f.ID, r.cursor))
	}
	for int64(len(r.items)) <= f.ID {
		r.items = append(r.items, "")
	}
	r.items[f.ID] = data.Payload.ID
	r.cursor = f.ID
	return nil
}

// crowd makes the agents, the rooms and the person of the loop.
func (p *process) crowd(receivers int) *roomLedger {
	p.t.Helper()
	key, err := os.ReadFile(filepath.Join(p.dir, "admin.key"))
	if err != nil {
		p.t.Fatal(err)
	}
	l := &roomLedger{p: p, operator: strings.TrimSpace(string(key)), sent: map[string]int{}, acked: map[string]string{}}
	make := func(path string, body, out any) {
		p.t.Helper()
		if err := l.call(context.Background(), http.DefaultClient, "POST", "/api/v1"+path, body, out); err != nil {
			p.t.Fatal(err)
		}
	}
	var person struct{ ID string }
	make("/people", map[string]string{"name": "Ada", "email": "ada@example.com", "password": "correct horse battery"}, &person)
	members := [4][]string{}
	clock := appliancetest.Hurry(20, 100*time.Millisecond)
	zero := int64(0)
	register := func(name string) roomclient.Config {
		var made struct {
			Agent struct{ ID uuid.UUID }
			Key   string `json:"api_key"`
		}
		make("/room-agents", map[string]any{"name": name, "open": true}, &made)
		cfg := roomclient.Config{Endpoint: p.baseURL(), Token: secret.NewText(made.Key), AgentID: made.Agent.ID, Clock: clock,
			HTTP: &http.Client{Transport: &http.Transport{}}}
		p.t.Cleanup(cfg.HTTP.CloseIdleConnections)
		return cfg
	}
	for i := range 2 {
		l.speakers = append(l.speakers, register(fmt.Sprintf("speaker-%d", i)))
		members[0] = append(members[0], l.speakers[i].AgentID.String())
	}
	for i := range receivers {
		r := &killReceiver{l: l, name: fmt.Sprintf("receiver-%d", i)}
		r.cfg = register(r.name)
		o := roomclient.Current(uuid.NewString())
		o.Scope, o.StartFrom = "all", &zero
		r.client = &roomclient.Client{Config: r.cfg, Open: o, SSEOnly: i%2 == 1, Handler: roomclient.Handler{Event: r.event,
			Connected: func(roomclient.State) { l.mu.Lock(); r.streams++; l.mu.Unlock() },
			Gap: func(_ context.Context, g roomclient.Gap) error {
				l.fail("%s: a gap from %d to %d: %s", r.name, g.From, g.ResumedAt, g.Reason)
				return nil
			}}}
		l.receivers = append(l.receivers, r)
		for n := range members {
			if n == 0 || i%(len(members)-1) == n-1 {
				members[n] = append(members[n], r.cfg.AgentID.String())
			}
		}
	}
	for n, ids := range members {
		var made struct{ ID string }
		make("/rooms", map[string]any{"name": fmt.Sprintf("room-%d", n), "person_ids": []string{person.ID}}, &made)
		l.rooms = append(l.rooms, made.ID)
		for some := range slices.Chunk(ids, 200) {
			make("/rooms/"+made.ID+"/agents", map[string]any{"agent_ids": some}, &made)
		}
	}
	resp, err := http.Post(p.baseURL()+"/gateway/auth/login", "application/json",
		strings.NewReader(`{"email":"ada@example.com","password":"correct horse battery"}`))
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	for _, c := range resp.Cookies() {
		if c.Name == "switch_auth" {
			l.cookie = c.Value
		}
	}
	if l.cookie == "" {
		p.t.Fatalf("login: answered %d without a cookie", resp.StatusCode)
	}
	return l
}

// call sends a request as the operator, or below /gateway as the person.
func (l *roomLedger) call(ctx context.Context, c *http.Client, method, path string, body, out any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, l.p.baseURL()+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(path, "/gateway") {
		req.AddCookie(&http.Cookie{Name: "switch_auth", Value: l.cookie})
	} else {
		req.Header.Set("Authorization", "Bearer "+l.operator)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return &roomclient.StatusError{Status: resp.StatusCode, Body: answer}
	}
	return json.Unmarshal(answer, out)
}

// posters are those who speak: the operator and a person, who repeat a request until it is answered, and two agents, who
// cannot and say something new.
func (l *roomLedger) posters() []func(context.Context) {
	operator := func(ctx context.Context, c *http.Client, room, body string) (string, error) {
		var out struct{ Item struct{ ID string } }
		err := l.call(ctx, c, "POST", "/api/v1/rooms/"+room+"/messages", map[string]string{"body": body, "request_id": body}, &out)
		return out.Item.ID, err
	}
	person := func(ctx context.Context, c *http.Client, room, body string) (string, error) {
		var out struct {
			Messages []struct {
				ID string `json:"messageId"`
			}
		}
		err := l.call(ctx, c, "POST", "/gateway/chats/"+room+"/messages",
			map[string]any{"body": body, "requestId": body, "uploadIds": []string{}}, &out)
		if err == nil && len(out.Messages) == 0 {
			err = fmt.Errorf("an answer without the message")
		}
		if err != nil {
			return "", err
		}
		return out.Messages[0].ID, nil
	}
	agent := func(cfg roomclient.Config) func(context.Context, *http.Client, string, string) (string, error) {
		who := roomclient.Caller{ConnectionID: uuid.NewString()}
		var s *roomclient.Stream // what it holds the first room with
		return func(ctx context.Context, c *http.Client, _, body string) (id string, err error) {
			cfg.HTTP = c
			defer func() {
				if err != nil && s != nil {
					s.Drop()
					s = nil
				}
			}()
			if s == nil {
				if s, err = roomclient.Dial(ctx, &cfg, roomclient.Current(who.ConnectionID)); err != nil {
					return "", err
				}
				if _, err := s.AwaitState(ctx); err != nil {
					return "", err
				}
				if err := cfg.Op(ctx, who, "connect_to_room", map[string]string{"room_id": l.rooms[0]}, nil); err != nil {
					return "", err
				}
			}
			var out struct {
				ID string `json:"event_id"`
			}
			err = cfg.Op(ctx, who, "post_message", map[string]string{"body": body}, &out)
			return out.ID, err
		}
	}
	return []func(context.Context){
		func(ctx context.Context) { l.speak(ctx, "operator", true, operator) },
		func(ctx context.Context) { l.speak(ctx, "person", true, person) },
		func(ctx context.Context) { l.speak(ctx, "agent-a", false, agent(l.speakers[0])) },
		func(ctx context.Context) { l.speak(ctx, "agent-b", false, agent(l.speakers[1])) },
	}
}

// speak posts until ctx ends. What has begun is brought to an answer.
func (l *roomLedger) speak(ctx context.Context, who string, repeats bool,
	post func(ctx context.Context, c *http.Client, room, body string) (string, error)) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		body, room := fmt.Sprintf("%s-%d", who, n), l.rooms[n%len(l.rooms)]
		for attempt := 1; ; attempt++ {
			if !repeats {
				body = fmt.Sprintf("%s-%d-%d", who, n, attempt)
			}
			l.mu.Lock()
			l.sent[body]++
			l.mu.Unlock()
			call, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			id, err := post(call, client, room, body)
			cancel()
			if err == nil {
				l.acknowledge(body, id, attempt)
				if repeats && n%7 == 0 { // an answer that was lost on the way would be asked for again
					l.again(client, room, body, id, post)
				}
				break
			}
			if status, ok := err.(*roomclient.StatusError); ok && status.Status < 500 && repeats {
				l.fail("%s: %v", body, err)
				return
			}
			if ctx.Err() != nil && !repeats {
				return
			}
			<-time.After(again)
		}
		<-time.After(again)
	}
}

func (l *roomLedger) acknowledge(body, id string, attempt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[body] = id
	if attempt > 1 {
		l.repeats++
	}
}

// again repeats a request that was answered; only a server that is away may leave it unanswered.
func (l *roomLedger) again(c *http.Client, room, body, id string,
	post func(context.Context, *http.Client, string, string) (string, error)) {
	second, err := post(context.Background(), c, room, body)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && second != id {
		l.twice = append(l.twice, body)
	}
}

// drain waits until every receiver has read all that is queued for it.
func (l *roomLedger) drain(t *testing.T, db *ledgerDB) {
	t.Helper()
	heads := db.heads(t, l)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		behind := slices.IndexFunc(l.receivers, func(r *killReceiver) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return r.cursor < heads[r.cfg.AgentID]
		})
		if behind < 0 || t.Failed() {
			return
		}
		if time.Now().After(deadline) {
			r := l.receivers[behind]
			t.Errorf("%s has read up to %d of %d two minutes after the last kill", r.name, r.cursor, heads[r.cfg.AgentID])
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}
