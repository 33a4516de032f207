package roomapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/media"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
	"signalbox/transport/roomapi"
	"signalbox/transport/roomhttp"
)

const maxFile = 1 << 20

// rig is the routes on real parts and a real database, behind a real HTTP server: ann owns fox, bob owns owl, fox is in
// the room.
type rig struct {
	t        *testing.T
	clk      *clock.Fake
	db       *store.DB
	people   *identity.Identity
	rooms    *directory.Directory
	log      *timeline.Timeline
	conns    *connection.Registry
	media    *media.Media
	ops      *table
	http     *httptest.Server
	ann      room.Person
	regKey   string // ann's
	fox, owl room.Agent
	keys     map[string]string // by agent name
	room     uuid.UUID
}

// table stands for the table of operations: it notes the call and answers as told.
type table struct {
	last   operation.Call
	result any
	err    error
}

func (t *table) Schemas() json.RawMessage {
	return json.RawMessage(`{"echo":{"description":"d","input_schema":{"type":"object","properties":{}}}}`)
}

func (t *table) Call(_ context.Context, c operation.Call) (any, error) {
	t.last = c
	if c.Name != "echo" {
		return nil, fault.New(fault.NotFound, "operation %s: there is none", c.Name)
	}
	return t.result, t.err
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), ops: &table{}, keys: map[string]string{}}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clk })
	master := secret.NewBytes([]byte(strings.Repeat("m", 32)))
	log := audit.New(audit.NewKeys(master))
	queue := feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clk})
	hub := wake.New()
	r.people = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, identity.Keys{Current: master},
		identity.Options{Clock: r.clk, OnDelete: func(tx identity.Tx, a room.Agent) error {
			wide := tx.(directory.Tx)
			if err := r.rooms.AgentDeleted(wide, a.No); err != nil {
				return err
			}
			return queue.ForgetAgent(wide, a.No)
		}})
	r.conns = connection.New(r.people, connection.Options{Clock: r.clk})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), queue, r.conns, hub, timeline.Options{})
	r.rooms = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](r.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](r.db), Audit: log, Log: r.log, Queue: queue, Changes: r.conns,
		Hub: hub})
	var err error
	r.media, err = media.New(t.Context(), store.Bind[media.Tx, media.ReadTx](r.db),
		media.Options{Dir: filepath.Join(t.TempDir(), "media"), MaxFile: maxFile, MaxFiles: 3, Clock: r.clk, Reserve: -1})
	r.ok("media", err)

	operator, err := r.people.Operator(t.Context())
	r.ok("operator", err)
	by := operator.Actor()
	by.Admin = true
	r.ann, err = r.people.CreatePerson(t.Context(), by, identity.NewPerson{Name: "ann", Email: "ann@example.org"})
	r.ok("ann", err)
	_, key, err := r.people.CreateKey(t.Context(), by, identity.NewKey{Kind: identity.KeyRegistration,
		Label: "ann's", For: r.ann.ID})
	r.ok("key", err)
	r.regKey = key.Reveal()
	r.fox, r.owl = r.agent("fox"), r.agent("owl")
	made, err := r.rooms.Create(t.Context(), operator.Actor(), directory.NewRoom{Name: "ops",
		Agents: []directory.Invitation{{Name: "fox"}}})
	r.ok("room", err)
	r.room = made.ID

	mux := http.NewServeMux()
	roomapi.New(roomapi.Services{Identity: r.people, Operations: r.ops, Timeline: r.log, Media: r.media, Connections: r.conns},
		roomapi.Options{Version: "1.2.3"}).Routes(mux)
	metrics, err := transport.NewMetrics(prometheus.NewRegistry())
	r.ok("metrics", err)
	r.http = httptest.NewServer(transport.Front{Log: zerolog.Nop(), Metrics: metrics,
		Bodies: transport.NewBodies(func(q *http.Request) int64 {
			if roomapi.IsUpload(q) {
				return roomhttp.UploadLimit(maxFile, 3)
			}
			return 1 << 20
		}, roomapi.IsUpload)}.Wrap(transport.Mux(mux)))
	t.Cleanup(r.http.Close)
	return r
}

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) agent(name string) room.Agent {
	r.t.Helper()
	got, err := r.people.Register(r.t.Context(), identity.RegistrantOf(r.ann), identity.NewAgent{Name: name,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}})
	r.ok(name, err)
	r.keys[name] = got.Key.Reveal()
	return got.Agent
}

// answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

// json decodes the body.
func (a answer) json(t *testing.T) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// do sends a request with a key; headers are pairs.
func (r *rig) do(method, path, key, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.http.URL+path, strings.NewReader(body))
	r.ok("request", err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	r.ok(method+" "+path, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	r.ok("body", err)
	return answer{res.StatusCode, res.Header, string(b)}
}

// want fails the test unless the answer has the status and the words.
func (r *rig) want(what string, a answer, status int, words string) {
	r.t.Helper()
	if a.status != status || !strings.Contains(a.body, words) {
		r.t.Errorf("%s: %d %s, want %d with %q", what, a.status, a.body, status, words)
	}
}

// part is one part of an upload.
type part struct{ field, filename, mimetype, content string }

// send uploads parts to the room as fox.
func (r *rig) send(parts ...part) answer {
	r.t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		cd := `form-data; name="` + p.field + `"`
		if p.filename != "" {
			cd += `; filename="` + p.filename + `"`
		}
		h.Set("Content-Disposition", cd)
		if p.mimetype != "" {
			h.Set("Content-Type", p.mimetype)
		}
		pw, err := w.CreatePart(h)
		r.ok("part", err)
		_, err = io.WriteString(pw, p.content)
		r.ok("part", err)
	}
	r.ok("close", w.Close())
	return r.do("POST", r.mediaPath(), r.keys["fox"], b.String(), "Content-Type", w.FormDataContentType())
}

func (r *rig) mediaPath() string {
	return "/agents/" + r.fox.ID.String() + "/rooms/" + r.room.String() + "/media"
}

// count runs a query for one number.
func (r *rig) count(query string) (n int) {
	r.t.Helper()
	r.ok(query, r.db.View(r.t.Context(), func(tx *store.ReadTx) error { return tx.QueryRow(query).Scan(&n) }))
	return n
}
