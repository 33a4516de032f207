package gateway_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/media"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
	"signalbox/transport/gateway"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// rig is a server with the real parts behind it, on a database of its own.
type rig struct {
	t      *testing.T
	db     *store.DB
	clk    *clock.Fake
	people *identity.Identity
	dir    *directory.Directory
	silent *directory.Directory // dir, but nobody is woken
	log    *timeline.Timeline
	hub    *wake.Hub
	logged *bytes.Buffer
	url    string

	admin    room.Person // the operator
	ann, bob room.Person
	fox, owl room.Agent // ann's and bob's
	cookies  map[string]string
}

func newRig(t *testing.T, change ...func(*gateway.Options)) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewFake(start), hub: wake.New(), logged: &bytes.Buffer{}, cookies: map[string]string{}}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clk })
	master := secret.NewBytes([]byte(strings.Repeat("m", 32)))
	log := audit.New(audit.NewKeys(master))
	f := feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clk})
	r.people = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, identity.Keys{Current: master},
		identity.Options{Clock: r.clk, OnDelete: func(tx identity.Tx, a room.Agent) error {
			wide := tx.(directory.Tx)
			if err := r.dir.AgentDeleted(wide, a.No); err != nil {
				return err
			}
			return f.ForgetAgent(wide, a.No)
		}})
	conns := connection.New(r.people, connection.Options{Clock: r.clk})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), f, conns, r.hub, timeline.Options{})
	parts := directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](r.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](r.db), Audit: log, Log: r.log, Queue: f, Changes: conns, Hub: r.hub}
	r.dir = directory.New(parts)
	parts.Hub = wake.New()
	r.silent = directory.New(parts)
	r.log.UseDirectory(r.dir)
	files, err := media.New(t.Context(), store.Bind[media.Tx, media.ReadTx](r.db),
		media.Options{Dir: filepath.Join(t.TempDir(), "media"), MaxFile: 1000, Clock: r.clk, Reserve: -1})
	r.ok("media", err)

	o := gateway.Options{Version: "9.9", Clock: r.clk, Log: zerolog.New(r.logged), StreamsEach: 2}
	for _, fn := range change {
		fn(&o)
	}
	mux := http.NewServeMux()
	gateway.New(gateway.Services{Identity: r.people, Directory: r.dir, Timeline: r.log, Media: files, Connections: conns,
		Hub: r.hub}, o).Routes(mux)
	srv := httptest.NewServer(transport.Chain(transport.Mux(mux), transport.ClientAddresses(&transport.Networks{})))
	t.Cleanup(srv.Close)
	r.url = srv.URL

	operator, err := r.people.Operator(t.Context())
	r.ok("operator", err)
	by := operator.Actor()
	by.Admin = true
	r.admin, err = r.people.CreatePerson(t.Context(), by, identity.NewPerson{Name: "root", Email: "root@example.org",
		Role: room.RoleAdmin})
	r.ok("admin", err)
	r.ann, r.bob = r.person("ann"), r.person("bob")
	r.fox, r.owl = r.agent(r.ann, "fox"), r.agent(r.bob, "owl")
	return r
}

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) person(name string) room.Person {
	r.t.Helper()
	p, err := r.people.CreatePerson(r.t.Context(), r.admin.Actor(), identity.NewPerson{Name: name, Email: name + "@example.org"})
	r.ok("person "+name, err)
	return p
}

// password gives people the password that is their name and "-password".
func (r *rig) password(people ...room.Person) {
	r.t.Helper()
	for _, p := range people {
		r.ok("password", r.people.SetPassword(r.t.Context(), r.admin.Actor(), p.ID, secret.NewText(p.Name+"-password")))
	}
}

func (r *rig) agent(owner room.Person, name string) room.Agent {
	r.t.Helper()
	got, err := r.people.Register(r.t.Context(), identity.RegistrantOf(owner), identity.NewAgent{Name: name,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}})
	r.ok("agent "+name, err)
	return got.Agent
}

// cookie signs the person in, once.
func (r *rig) cookie(p room.Person) string {
	r.t.Helper()
	if c := r.cookies[p.Name]; c != "" {
		return c
	}
	r.password(p)
	s, err := r.people.Login(r.t.Context(), p.Email, secret.NewText(p.Name+"-password"), "192.0.2.1")
	r.ok("login", err)
	r.cookies[p.Name] = s.Token.Reveal()
	return r.cookies[p.Name]
}

// reply is an answer with its body.
type reply struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// into decodes the body.
func (a reply) into(v any) reply {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		a.t.Fatalf("body %q: %v", a.body, err)
	}
	return a
}

// wants fails the test unless the answer has the status, and the words in its body.
func (a reply) wants(status int, words ...string) reply {
	a.t.Helper()
	for _, w := range words {
		if !strings.Contains(a.body, w) {
			a.t.Errorf("answer %d %s, want %q in it", a.status, a.body, w)
		}
	}
	if a.status != status {
		a.t.Fatalf("answer %d %s, want %d", a.status, a.body, status)
	}
	if a.status >= 400 && !strings.Contains(a.body, `{"detail":`) {
		a.t.Errorf("answer %d %s has no detail", a.status, a.body)
	}
	return a
}

// request makes a request to a path below /gateway; body may be nil, a text or something to encode.
func (r *rig) request(method, path string, body any, change ...func(*http.Request)) reply {
	r.t.Helper()
	req := r.newRequest(method, path, body, change...)
	res, err := http.DefaultClient.Do(req)
	r.ok(method+" "+path, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	r.ok("body", err)
	return reply{r.t, res.StatusCode, res.Header, string(b)}
}

func (r *rig) newRequest(method, path string, body any, change ...func(*http.Request)) *http.Request {
	r.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		r.ok("encode", err)
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+"/gateway"+path, in)
	r.ok("request", err)
	for _, fn := range change {
		fn(req)
	}
	return req
}

func with(cookie string) func(*http.Request) {
	return func(req *http.Request) { req.AddCookie(&http.Cookie{Name: gateway.Cookie, Value: cookie}) }
}

func header(name, value string) func(*http.Request) {
	return func(req *http.Request) { req.Header.Set(name, value) }
}

// as makes a request as a signed-in person.
func (r *rig) as(p room.Person, method, path string, body any, change ...func(*http.Request)) reply {
	r.t.Helper()
	return r.request(method, path, body, append([]func(*http.Request){with(r.cookie(p))}, change...)...)
}

// chat opens a chat of the person with the agents and returns its room.
func (r *rig) chat(p room.Person, requestID string, agents ...room.Agent) uuid.UUID {
	r.t.Helper()
	ids := []string{}
	for _, a := range agents {
		ids = append(ids, a.ID.String())
	}
	var got struct{ Chat struct{ RoomID uuid.UUID } }
	r.as(p, "POST", "/chats", map[string]any{"agentIds": ids, "requestId": requestID}).wants(200).into(&got)
	return got.Chat.RoomID
}

type chatMessage struct {
	MessageID    uuid.UUID
	Seq          int64
	RoomID       uuid.UUID
	SentAt       time.Time
	Sender       struct{ ClientID, Name, Kind, AgentID, UserID string }
	Source, Body string
	Format       string
	ThreadRootID string
	Attachments  []struct{ MediaID, Filename, Mimetype string }
	ClientTxn    *string
}

// say posts in a room and returns what was answered.
func (r *rig) say(p room.Person, id uuid.UUID, requestID, body string) []chatMessage {
	r.t.Helper()
	var got struct{ Messages []chatMessage }
	r.as(p, "POST", "/chats/"+id.String()+"/messages", map[string]any{"requestId": requestID, "body": body}).wants(200).into(&got)
	return got.Messages
}

// reports is how the agent says something.
func (r *rig) reports(a room.Agent, id uuid.UUID, body string) room.Item {
	r.t.Helper()
	got, err := r.log.Post(r.t.Context(), timeline.Draft{Actor: a.Actor(), RoomID: id, Body: body})
	r.ok("post", err)
	return got.Item
}
