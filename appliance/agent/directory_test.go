package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var dirStart = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func dirMaster(s string) secret.Bytes { return secret.NewBytes([]byte(strings.Repeat(s, 32))) }

// dirBench is a Directory on a database of its own, with one project "shop".
type dirBench struct {
	*agent.Directory
	t    *testing.T
	db   *store.DB
	clk  *clock.Fake
	hub  *wake.Hub
	log  *audit.Log
	shop agent.Project
	who  agent.Principal
}

func newDirBench(t *testing.T) *dirBench {
	t.Helper()
	clk := clock.NewFake(dirStart)
	b := &dirBench{t: t, clk: clk, hub: wake.New(), who: agent.LocalPrincipal(),
		db: storetest.Open(t, func(o *store.Options) { o.Clock = clk })}
	b.use(agent.SecretSet{Current: dirMaster("a")}, 30)
	p, err := b.CreateProject(t.Context(), b.who, agent.NewProject{Slug: "shop", Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
	b.shop = p
	return b
}

// use puts a Directory with other settings on the database, as a restart would.
func (b *dirBench) use(s agent.SecretSet, pruneDays int) {
	b.log = audit.New(s.AuditKeys())
	b.Directory = agent.NewDirectory(store.Bind[agent.DirectoryTx, agent.DirectoryReadTx](b.db), s, b.log, b.hub,
		agent.DirectoryOptions{StalePruneDays: pruneDays, Trouble: func(op string, err error) { b.t.Errorf("%s: %v", op, err) }})
}

func (b *dirBench) mint(name string) (agent.Minted, agent.Peer) {
	b.t.Helper()
	m, err := b.MintAgent(b.t.Context(), b.who, "shop", name)
	if err != nil {
		b.t.Fatal(err)
	}
	return m, agent.Peer{ProjectNo: m.Agent.ProjectNo, ProjectID: m.Agent.ProjectID, AgentNo: m.Agent.No,
		AgentID: m.Agent.ID, Transport: agent.WebSocket}
}

func (b *dirBench) agent(p agent.Peer) agent.Agent {
	b.t.Helper()
	a, err := b.GetAgent(b.t.Context(), p.ProjectNo, p.AgentID)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func (b *dirBench) online(p agent.Peer, h agent.Hello) time.Time {
	b.t.Helper()
	h.WorkerID = p.Worker
	at, err := b.MarkOnline(b.t.Context(), p, h)
	if err != nil {
		b.t.Fatal(err)
	}
	return at
}

// audits returns the actions recorded, oldest first, and checks the chain.
func (b *dirBench) audits() []string {
	b.t.Helper()
	st := store.Bind[audit.PruneTx, audit.ReadTx](b.db)
	rows, err := b.log.List(b.t.Context(), st, audit.Filter{}, 0, 5000)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, r := range slices.Backward(rows) {
		out = append(out, r.Action)
	}
	if r, err := b.log.Verify(b.t.Context(), st); err != nil || !r.OK() {
		b.t.Fatalf("audit chain: %+v, %v", r, err)
	}
	return out
}

func (b *dirBench) wantAudits(want ...string) {
	b.t.Helper()
	if got := b.audits(); !slices.Equal(got, want) {
		b.t.Errorf("audit rows %q, want %q", got, want)
	}
}

func wantDirFault(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("got %v, want %s", err, code)
	}
}

// dirWoken reports whether the watch was hinted.
func dirWoken(w *wake.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func TestProjectLife(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	if b.shop.Environment != "production" || b.shop.Timezone != "UTC" || b.shop.RetentionDays != 30 ||
		b.shop.DefaultSchedulerOwner != "z4j-scheduler" || b.shop.AllowedSchedulers != nil || !b.shop.IsActive {
		t.Errorf("defaults: %+v", b.shop)
	}
	_, err := b.CreateProject(ctx, b.who, agent.NewProject{Slug: "shop", Name: "Again"})
	wantDirFault(t, err, fault.Conflict)
	_, err = b.CreateProject(ctx, b.who, agent.NewProject{Slug: "-", Name: "Bad"})
	wantDirFault(t, err, fault.Conflict)
	_, err = b.CreateProject(ctx, b.who, agent.NewProject{Slug: "abc", Name: ""})
	wantDirFault(t, err, fault.Invalid)

	two, err := b.CreateProject(ctx, b.who, agent.NewProject{Slug: "two", Name: "Two", AllowedSchedulers: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	b.clk.Advance(time.Minute)
	got, err := b.UpdateProject(ctx, b.who, "two", agent.ProjectPatch{Name: agent.SetTo("Deux"), Slug: agent.SetTo("deux")})
	if err != nil || got.Name != "Deux" || got.Slug != "deux" || !slices.Equal(got.AllowedSchedulers, []string{"x"}) ||
		!got.UpdatedAt.Equal(dirStart.Add(time.Minute)) {
		t.Fatalf("%+v, %v", got, err)
	}
	stored, err := b.GetProject(ctx, "deux", false)
	if err != nil || stored.ID != two.ID || !stored.CreatedAt.Equal(dirStart) || stored.Name != "Deux" {
		t.Fatalf("%+v, %v", stored, err)
	}
	_, err = b.UpdateProject(ctx, b.who, "deux", agent.ProjectPatch{Slug: agent.SetTo("shop")})
	wantDirFault(t, err, fault.Conflict)
	_, err = b.UpdateProject(ctx, b.who, "deux", agent.ProjectPatch{RetentionDays: agent.SetTo(0)})
	wantDirFault(t, err, fault.Invalid)
	_, err = b.UpdateProject(ctx, b.who, "two", agent.ProjectPatch{})
	wantDirFault(t, err, fault.NotFound)
	b.wantAudits("project.created", "project.created", "project.updated")
}

func TestArchiveAndActivate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	m, p := b.mint("one")
	wantDirFault(t, b.ArchiveProject(ctx, b.who, "shop"), fault.Conflict) // the last active one
	wantDirFault(t, b.ArchiveProject(ctx, b.who, "nope"), fault.NotFound)
	wantDirFault(t, b.ArchiveProject(ctx, b.who, "NOT A SLUG"), fault.NotFound)
	if _, err := b.CreateProject(ctx, b.who, agent.NewProject{Slug: "two", Name: "Two"}); err != nil {
		t.Fatal(err)
	}
	w := b.hub.Watch(agent.AgentKey(p.AgentNo))
	defer w.Stop()
	for range 2 { // the second time changes nothing
		if err := b.ArchiveProject(ctx, b.who, "shop"); err != nil {
			t.Fatal(err)
		}
	}
	if !dirWoken(w) {
		t.Error("archive woke nobody")
	}
	wantDirFault(t, b.ArchiveProject(ctx, b.who, "two"), fault.Conflict)

	_, err := b.GetProject(ctx, "shop", false)
	wantDirFault(t, err, fault.NotFound)
	if _, err := b.GetProject(ctx, "shop", true); err != nil {
		t.Error(err)
	}
	_, err = b.UpdateProject(ctx, b.who, "shop", agent.ProjectPatch{Name: agent.SetTo("x")})
	wantDirFault(t, err, fault.NotFound)
	_, err = b.MintAgent(ctx, b.who, "shop", "two")
	wantDirFault(t, err, fault.NotFound)
	for archived, want := range map[bool]int{false: 1, true: 2} {
		if list, err := b.ListProjects(ctx, archived); err != nil || len(list) != want {
			t.Errorf("list of %d, %v", len(list), err)
		}
	}

	// Its agents are refused, and known.
	id, err := b.Authenticate(ctx, "Bearer "+m.Token.Reveal())
	wantDirFault(t, err, fault.ProjectInactive)
	if id.Agent.ID != m.Agent.ID || fault.Details(err)["agent_id"] != m.Agent.ID.String() ||
		fault.Details(err)["project_id"] != b.shop.ID.String() {
		t.Errorf("identity %+v, details %v", id, fault.Details(err))
	}
	wantDirFault(t, b.CheckAlive(ctx, p.AgentNo), fault.ProjectInactive)
	_, err = b.MarkOnline(ctx, p, agent.Hello{ProtocolVersion: "2"})
	wantDirFault(t, err, fault.ProjectInactive)
	if err := b.TouchLongPoll(ctx, p); err != nil || b.agent(p).State != agent.Unknown {
		t.Errorf("touched: %v, %s", err, b.agent(p).State)
	}

	for range 2 {
		if got, err := b.ActivateProject(ctx, b.who, "shop"); err != nil || !got.IsActive {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if !dirWoken(w) {
		t.Error("activation woke nobody")
	}
	if _, err := b.Authenticate(ctx, "Bearer "+m.Token.Reveal()); err != nil {
		t.Error(err)
	}
	b.wantAudits("project.created", "agent.token.minted", "project.created", "project.archived", "project.updated")
}

func TestMintAndRevoke(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	m, p := b.mint("one")
	if raw, err := base64.URLEncoding.DecodeString(m.HMACSecret.Reveal()); err != nil || len(raw) != 32 ||
		!bytes.Equal(raw, secret.ProjectSecret(dirMaster("a").Reveal(), b.shop.ID).Reveal()) {
		t.Errorf("hmac secret: %v", err)
	}
	a := b.agent(p)
	if a.State != agent.Unknown || a.ProtocolVersion != "0" || a.FrameworkAdapter != "unknown" || len(a.EngineAdapters) != 0 ||
		a.EngineAdapters == nil || a.SchedulerAdapters == nil || a.Capabilities == nil || string(a.Host) != "{}" ||
		a.RuntimeFeatures != nil || a.LastSeenAt != nil || a.ReportedInventory() {
		t.Errorf("minted %+v", a)
	}
	_, err := b.MintAgent(ctx, b.who, "shop", "one")
	wantDirFault(t, err, fault.Conflict)
	if fault.Details(err)["name"] != "one" {
		t.Errorf("details %v", fault.Details(err))
	}
	_, err = b.MintAgent(ctx, b.who, "shop", "")
	wantDirFault(t, err, fault.Invalid)

	id, err := b.Authenticate(ctx, "bearer  "+m.Token.Reveal()+" ")
	if err != nil || id.Agent.ID != m.Agent.ID || id.Project.ID != b.shop.ID {
		t.Fatalf("%+v, %v", id, err)
	}
	for _, bad := range []string{"", "Bearer", "Bearer nope", "Basic " + m.Token.Reveal(), "Bearer " + m.Token.Reveal() + "x"} {
		_, err := b.Authenticate(ctx, bad)
		wantDirFault(t, err, fault.Unauthenticated)
	}

	w := b.hub.Watch(agent.AgentKey(p.AgentNo))
	defer w.Stop()
	b.online(p, agent.Hello{ProtocolVersion: "2", Framework: "bare"})
	wantDirFault(t, b.RevokeAgent(ctx, b.who, "shop", uuid.New()), fault.NotFound)
	if dirWoken(w) {
		t.Error("woken before the revocation")
	}
	for range 2 {
		if err := b.RevokeAgent(ctx, b.who, "shop", m.Agent.ID); err != nil {
			t.Fatal(err)
		}
	}
	if !dirWoken(w) {
		t.Error("revocation woke nobody")
	}
	if a := b.agent(p); a.State != agent.Offline || a.RevokedAt == nil {
		t.Errorf("revoked %+v", a)
	}
	slots, err := b.AgentWorkers(ctx, b.shop.No, m.Agent.ID)
	if err != nil || len(slots) != 1 || slots[0].State != agent.Offline {
		t.Errorf("slots %+v, %v", slots, err)
	}
	_, err = b.Authenticate(ctx, "Bearer "+m.Token.Reveal())
	wantDirFault(t, err, fault.Unauthenticated)
	wantDirFault(t, b.CheckAlive(ctx, p.AgentNo), fault.Unauthenticated)
	wantDirFault(t, b.CheckAlive(ctx, 999), fault.Unauthenticated)
	_, err = b.MarkOnline(ctx, p, agent.Hello{ProtocolVersion: "2"})
	wantDirFault(t, err, fault.Unauthenticated)
	if err := b.TouchLongPoll(ctx, p); err != nil || b.agent(p).State != agent.Offline {
		t.Errorf("touched a revoked agent: %v", err)
	}

	m2, _ := b.mint("one") // the name is free again
	if m2.Token.Equal(m.Token) || !m2.HMACSecret.Equal(m.HMACSecret) {
		t.Error("token reused, or another secret in one project")
	}
	for revoked, want := range map[bool]int{false: 1, true: 2} {
		if list, err := b.ListAgents(ctx, b.shop.No, revoked); err != nil || len(list) != want {
			t.Errorf("list of %d, %v", len(list), err)
		}
	}
	b.wantAudits("project.created", "agent.token.minted", "agent.token.revoked", "agent.token.minted")
}

func TestConcurrentMintsOfOneName(t *testing.T) {
	t.Parallel()
	b := newDirBench(t)
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := b.MintAgent(context.Background(), b.who, "shop", "same")
			errs <- err
		}()
	}
	won := 0
	for range 8 {
		err := <-errs
		if err == nil {
			won++
			continue
		}
		wantDirFault(t, err, fault.Conflict)
	}
	if won != 1 {
		t.Errorf("%d mints won", won)
	}
	b.wantAudits("project.created", "agent.token.minted")
}

func TestTokensSurviveRotation(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	old, _ := b.mint("old")
	b.use(agent.SecretSet{Current: dirMaster("b"), Previous: []secret.Bytes{dirMaster("z"), dirMaster("a")}}, 30)
	fresh, _ := b.mint("fresh")
	for name, m := range map[string]agent.Minted{"old": old, "fresh": fresh} {
		if id, err := b.Authenticate(ctx, "Bearer "+m.Token.Reveal()); err != nil || id.Agent.Name != name {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	if fresh.HMACSecret.Equal(old.HMACSecret) {
		t.Error("signing secret of the previous master")
	}
	b.wantAudits("project.created", "agent.token.minted", "agent.token.minted")
	b.use(agent.SecretSet{Current: dirMaster("b")}, 30)
	_, err := b.Authenticate(ctx, "Bearer "+old.Token.Reveal())
	wantDirFault(t, err, fault.Unauthenticated)
}

func TestSecretsAreNotInTheFile(t *testing.T) {
	t.Parallel()
	b := newDirBench(t)
	m, _ := b.mint("one")
	_, key, err := b.CreateAPIKey(t.Context(), b.who, agent.NewAPIKey{Name: "ci", Role: agent.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	hmacRaw, err := base64.URLEncoding.DecodeString(m.HMACSecret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	tokenRaw, err := base64.RawURLEncoding.DecodeString(m.Token.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	keyBody := strings.TrimPrefix(key.Reveal(), secret.APIKeyPrefix)
	needles := map[string][]byte{"token": []byte(m.Token.Reveal()), "token bytes": tokenRaw,
		"hmac secret": []byte(m.HMACSecret.Reveal()), "hmac secret bytes": hmacRaw,
		"api key": []byte(keyBody), "most of the api key": []byte(keyBody[6:]), "master": dirMaster("a").Reveal()}
	found := false
	for _, suffix := range []string{"", "-wal"} {
		file, err := os.ReadFile(b.db.Path() + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found = found || bytes.Contains(file, []byte(secret.TokenHash(dirMaster("a").Reveal(), m.Token.Reveal())))
		for name, needle := range needles {
			if bytes.Contains(file, needle) {
				t.Errorf("%s is in the file%s", name, suffix)
			}
		}
	}
	if !found {
		t.Error("the token's hash is nowhere: the search is wrong")
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", m, m, m)} {
		if strings.Contains(text, m.Token.Reveal()) || strings.Contains(text, m.HMACSecret.Reveal()) {
			t.Error("a minted agent prints its secrets")
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	m, _ := b.mint("one")
	other, _ := b.mint("two")
	id := m.Agent.ID.String()
	named, _ := b.mint(id[:8]) // a name that looks like another agent's id wins
	for text, want := range map[string][]uuid.UUID{"one": {m.Agent.ID}, id: {m.Agent.ID}, id[:13]: {m.Agent.ID},
		id[:8]: {named.Agent.ID}, "nobody": nil, "": nil, other.Agent.ID.String(): {other.Agent.ID}} {
		if got, err := b.ResolveAgents(ctx, b.shop.No, text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := b.ResolveAgents(ctx, b.shop.No+1, id); err != nil || got != nil {
		t.Errorf("another project: %v, %v", got, err)
	}
	if err := b.RevokeAgent(ctx, b.who, "shop", m.Agent.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := b.ResolveAgents(ctx, b.shop.No, "one"); err != nil || got != nil {
		t.Errorf("revoked: %v, %v", got, err)
	}
}

func TestFirstProject(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	if created, err := b.EnsureFirstProject(ctx); created || err != nil {
		t.Errorf("beside another: %v, %v", created, err)
	}
	b.db = storetest.Open(t)
	b.use(agent.SecretSet{Current: dirMaster("a")}, 0)
	for i := range 2 {
		if created, err := b.EnsureFirstProject(ctx); created != (i == 0) || err != nil {
			t.Errorf("%d: %v, %v", i, created, err)
		}
	}
	if p, err := b.GetProject(ctx, "default", false); err != nil || p.Name != "Default" {
		t.Errorf("%+v, %v", p, err)
	}
	b.wantAudits("project.created")
}

func TestRecordRefusal(t *testing.T) {
	t.Parallel()
	b := newDirBench(t)
	ip := "192.0.2.9"
	err := b.RecordRefusal(t.Context(), audit.Entry{Action: "auth.ip_denied", TargetType: "auth_surface", TargetID: &ip,
		Result: audit.Failed, Outcome: audit.Deny, SourceIP: &ip})
	if err != nil {
		t.Fatal(err)
	}
	b.wantAudits("project.created", "auth.ip_denied")
}
