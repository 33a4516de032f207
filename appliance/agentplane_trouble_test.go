package appliance_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// stalled holds the writer back inside a commit until a write of the operation stands in the queue behind it. The
// commit is that of a heartbeat of another agent.
func stalled(t *testing.T, s *appliancetest.Server, until string, behind func()) {
	t.Helper()
	bystander := openLP(t, s.Mint("bystander-"+batchID()).Config)
	committing, release := make(chan struct{}), make(chan struct{})
	queued := s.Faults.Queued(until)
	first := true
	s.Faults.BeforeCommit(func(ops []string) {
		if first && slices.Contains(ops, "dispatch frames") {
			first = false // only the writer's goroutine comes here
			close(committing)
			<-release
		}
	})
	want := queued + 1
	if until == "dispatch frames" {
		want++ // the bystander's own
	}
	s.Faults.OnQueued(func(string) {
		if s.Faults.Queued(until) == want {
			select {
			case <-release:
			default:
				close(release)
			}
		}
	})
	uploaded := make(chan error, 1)
	go func() {
		_, err := bystander.Upload(t.Context(), heartbeatOf())
		uploaded <- err
	}()
	select {
	case <-committing:
	case <-time.After(appliancetest.Wait):
		t.Fatal("the writer does not come to the commit")
	}
	behind()
	must(t, <-uploaded)
	s.Faults.BeforeCommit(nil)
	s.Faults.OnQueued(nil)
}

// Agent protocol F.5: a revocation, or an archive, that commits between the bearer check and the storing of an upload
// ends it with 401 or 403; nothing of it is stored and it is no liveness.
func TestUploadLosesToARevocation(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	s.NewProject("other")
	revoked, archived := s.Mint("a"), s.MintIn("other", "b")
	for _, c := range []struct {
		m      *appliancetest.Minted
		method string
		path   string
		status int
	}{
		{revoked, "DELETE", "/projects/default/agents/" + revoked.ID.String(), 401},
		{archived, "DELETE", "/projects/other", 403},
	} {
		lp := openLP(t, c.m.Config)
		frame := agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch("t", s.Now())}
		op := "revoke agent"
		if c.status == 403 {
			op = "archive project"
		}
		refused := make(chan error, 1)
		stalled(t, s, "dispatch frames", func() {
			changes := s.Faults.Queued(op)
			go s.Attempt(c.method, c.path)
			s.Faults.AwaitQueued(t, op, changes+1)
			go func() {
				_, err := lp.Upload(t.Context(), frame, frame)
				refused <- err
			}()
		})
		se := wantStatus(t, <-refused, c.status)
		if c.status == 403 && se.Code != "project_inactive" {
			t.Errorf("body %s", se.Body)
		}
		if n := s.Count("SELECT count(*) FROM events"); n != 0 {
			t.Errorf("%d events", n)
		}
		if n := s.Count("SELECT count(*) FROM agents WHERE name = ? AND state = 'online'", map[int]string{401: "a", 403: "b"}[c.status]); n != 0 {
			t.Error("the agent is online")
		}
	}
}

// Agent protocol B.6, B.8: frames behind a revocation end the session with 4003 and are not stored.
func TestFramesLoseToARevocation(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	settle(t, ws)
	stalled(t, s, "dispatch frames", func() {
		go s.Attempt("DELETE", "/projects/default/agents/"+m.ID.String())
		s.Faults.AwaitQueued(t, "revoke agent", 1)
		must(t, ws.Send(wire.TypeEventBatch, batchID(), batch("t", s.Now())))
	})
	if code := closed(t, ws); code != 4003 {
		t.Errorf("closed with %d", code)
	}
	if n := s.Count("SELECT count(*) FROM events"); n != 0 {
		t.Errorf("%d events", n)
	}
}

// Agent protocol F.5: a failing liveness write does not change the answer, and is made up for by the next upload.
func TestFailingLivenessWriteChangesNothing(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	failed, touches := s.Faults.Failed("touch agent"), s.Faults.Queued("touch agent")
	s.Faults.BeforeCommit(func(ops []string) {
		if slices.Contains(ops, "touch agent") { // the frame is stored by then
			s.Faults.FailCommits(appliancetest.ErrDatabase)
		}
	})
	up, err := lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch("t", s.Now())})
	if err != nil || up.Accepted != 1 || up.Rejected != 0 {
		t.Errorf("%+v, %v", up, err)
	}
	s.Faults.AwaitFailed(t, "touch agent", failed+1)
	s.Faults.AwaitQueued(t, "touch agent", touches+1) // counted after it was queued: it may have failed before
	if n := s.Faults.Queued("touch agent") - touches; n != 1 {
		t.Fatalf("%d liveness writes", n)
	}
	s.Faults.BeforeCommit(nil)
	s.Faults.FailCommits(nil)
	if got := state(s, m); got != "unknown" {
		t.Fatalf("agent is %s", got)
	}
	online(t, lp)
	if got := state(s, m); got != "online" {
		t.Errorf("agent is %s", got)
	}
}

// Agent protocol I.4: a refusal stands when its audit row cannot be written; the next one writes it.
func TestAuditRowOfARefusalIsMadeUpFor(t *testing.T) {
	s := appliancetest.Start(t)
	unknown := s.With(s.Mint("a"), func(c *agentclient.Config) { c.Token = secret.NewToken() })
	rows := func() int {
		return s.Count("SELECT count(*) FROM audit_log WHERE action = 'agent.auth.bearer_failed'")
	}
	s.Faults.FailCommits(appliancetest.ErrDatabase)
	_, err := agentclient.DialWS(t.Context(), unknown)
	wantClose(t, err, 4401)
	s.Faults.FailCommits(nil)
	if n := rows(); n != 0 {
		t.Errorf("%d rows", n)
	}
	for range 2 {
		_, err = agentclient.DialWS(t.Context(), unknown)
		wantClose(t, err, 4401)
	}
	if n := rows(); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// A commit whose outcome nobody knows is neither acknowledged nor lost: the frame comes again and is stored once.
func TestUnknownCommitIsNotAcknowledged(t *testing.T) {
	s := appliancetest.Start(t)
	m, other := s.Mint("a"), s.Mint("b")
	ws, lp := dial(t, m.Config), openLP(t, other.Config)
	settle(t, ws)
	failed := s.Faults.Failed("dispatch frames")
	s.Faults.LoseReplies(errors.New("lost"))
	id, payload := batchID(), batch("t-1", s.Now())
	must(t, ws.Send(wire.TypeEventBatch, id, payload))
	s.Faults.AwaitFailed(t, "dispatch frames", failed+1)
	frame := agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch("t-2", s.Now())}
	up, err := lp.Upload(t.Context(), frame)
	if err != nil || up.Accepted != 0 || up.Rejected != 1 {
		t.Errorf("%+v, %v", up, err)
	}
	s.Faults.LoseReplies(nil)
	settle(t, ws) // fails on an acknowledgement of the first frame
	if ack := send(t, ws, id, payload); ack.Received != 1 || ack.Accepted != 0 {
		t.Errorf("second copy: %+v", ack)
	}
	if up, err = lp.Upload(t.Context(), frame); err != nil || up.Accepted != 1 {
		t.Errorf("second copy: %+v, %v", up, err)
	}
	if n := s.Count("SELECT count(*) FROM events"); n != 2 {
		t.Errorf("%d events", n)
	}
}

// Database trouble on the way in is no reason to say that a token is wrong, nor to tell anybody what broke.
func TestDatabaseTroubleAtTheDoor(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	m.Features = []string{"retry_by_reference"}
	s.Faults.FailCommits(appliancetest.ErrDatabase)
	_, err := agentclient.DialWS(t.Context(), m.Config)
	wantClose(t, err, 1011)
	_, err = agentclient.OpenLP(t.Context(), m.Config) // its features cannot be stored
	if se := wantStatus(t, err, 503); strings.Contains(string(se.Body), "sqlite") {
		t.Errorf("body %s", se.Body)
	}
	s.Faults.FailCommits(nil)
	dial(t, m.Config)
	openLP(t, m.Config)
	if got := s.Text("SELECT runtime_features FROM agents"); got != `["retry_by_reference"]` {
		t.Errorf("features %s", got)
	}
}

// Agent protocol F.1: a probe's features are stored, kept when the header is absent, cleared when it is empty; other
// requests do not touch them.
func TestRuntimeFeaturesOfAProbe(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	features := func(path, want string, headers ...string) {
		t.Helper()
		r := request(t, s, "GET", commandsPath+path, "", append([]string{"Authorization", bearer(m), noncePath, "n"}, headers...)...)
		if r.status != 200 {
			t.Fatalf("answered %d %s", r.status, r.body)
		}
		if got := s.Text("SELECT runtime_features FROM agents"); got != want {
			t.Errorf("features %s, want %s", got, want)
		}
	}
	const probe, header = "?wait=0&max_frames=0", "X-Z4J-Runtime-Features"
	features(probe, "")
	features("?wait=0", "", header, "a")
	features(probe, `["a","b"]`, header, "a, b,a")
	features(probe, `["a","b"]`)
	features("?wait=0", `["a","b"]`, header, "c")
	features(probe, `[]`, header, "")
	names := make([]string, 70)
	for i := range names {
		names[i] = fmt.Sprint("f", i)
	}
	features(probe, `["`+strings.Join(names[:64], `","`)+`"]`, header, strings.Join(names, ","))
}

// Agent protocol F.6: a poll whose session became a marker claims nothing more.
func TestPollUnderAMarkerClaimsNothing(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	done := park(t, s, lp, 60*time.Second, 50)
	_, err := lp.UploadRaw(t.Context(), raw("99", `"n"`, stamp(s.Now())))
	wantStatus(t, err, 409)
	issued := s.Issue(m, "restart-worker", restartFields())
	wantStatus(t, ended(t, done).err, 409)
	if c := s.Command(m, issued.ID); c.Status != "pending" {
		t.Errorf("command is %s", c.Status)
	}
	fresh := openLP(t, m.Config)
	got, err := fresh.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, issued.ID)
}
