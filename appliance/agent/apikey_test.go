package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/store"
)

func TestAPIKeyLife(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	days := 2
	k, text, err := b.CreateAPIKey(ctx, b.who, agent.NewAPIKey{Name: "ci", Role: agent.Operator, ProjectID: &b.shop.ID,
		Scopes: []string{"tasks:write", "agents:read", "tasks:write"}, ExpiresInDays: &days})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text.Reveal(), "z4k_") || !strings.HasPrefix(text.Reveal(), k.Prefix) || len(k.Prefix) > 10 ||
		!slices.Equal(k.Scopes, []string{"agents:read", "tasks:write"}) || !k.ExpiresAt.Equal(dirStart.Add(48*time.Hour)) {
		t.Errorf("%+v", k)
	}
	header := "Bearer " + text.Reveal()
	who, err := b.AuthenticateAPIKey(ctx, header)
	if err != nil || who.Kind != "api_key" || who.ID != k.ID.String() || who.Role != agent.Operator || *who.ProjectID != b.shop.ID ||
		!slices.Equal(who.Scopes, k.Scopes) || who.Name != "ci" {
		t.Fatalf("%+v, %v", who, err)
	}
	for _, bad := range []string{"", "Bearer x", "Bearer z4k_", header + "x", "Bearer " + strings.TrimPrefix(text.Reveal(), "z4k_")} {
		_, err := b.AuthenticateAPIKey(ctx, bad)
		wantDirFault(t, err, fault.Unauthenticated)
	}
	b.clk.Advance(48*time.Hour - time.Microsecond)
	if _, err := b.AuthenticateAPIKey(ctx, header); err != nil {
		t.Errorf("before the end: %v", err)
	}
	b.clk.Advance(time.Microsecond)
	_, err = b.AuthenticateAPIKey(ctx, header)
	wantDirFault(t, err, fault.Unauthenticated)

	forever, text2, err := b.CreateAPIKey(ctx, b.who, agent.NewAPIKey{Name: "all", Role: agent.Auditor})
	if err != nil || forever.ExpiresAt != nil || !slices.Contains(forever.Scopes, "audit:read") {
		t.Fatalf("%+v, %v", forever, err)
	}
	if list, err := b.ListAPIKeys(ctx, b.who); err != nil || len(list) != 2 || list[0].Name != "all" || list[1].LastUsedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
	for range 2 {
		if err := b.RevokeAPIKey(ctx, b.who, forever.ID); err != nil {
			t.Fatal(err)
		}
	}
	wantDirFault(t, b.RevokeAPIKey(ctx, b.who, uuid.New()), fault.NotFound)
	_, err = b.AuthenticateAPIKey(ctx, "Bearer "+text2.Reveal())
	wantDirFault(t, err, fault.Unauthenticated)
	if list, err := b.ListAPIKeys(ctx, b.who); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	b.wantAudits("project.created", "api_key.created", "api_key.created", "api_key.revoked")
}

func TestAPIKeyFields(t *testing.T) {
	t.Parallel()
	b := newDirBench(t)
	zero, many, nowhere := 0, 3651, uuid.New()
	for field, n := range map[string]agent.NewAPIKey{
		"name":            {Role: agent.Viewer},
		"role":            {Name: "a", Role: "root"},
		"scopes":          {Name: "a", Role: agent.Viewer, Scopes: []string{"all"}},
		"expires_in_days": {Name: "a", Role: agent.Viewer, ExpiresInDays: &zero},
		"project_id":      {Name: "a", Role: agent.Viewer, ProjectID: &nowhere},
	} {
		_, _, err := b.CreateAPIKey(t.Context(), b.who, n)
		if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(fault.Message(err), field+": ") {
			t.Errorf("%s: got %v", field, err)
		}
	}
	_, _, err := b.CreateAPIKey(t.Context(), b.who, agent.NewAPIKey{Name: "a", Role: agent.Viewer, ExpiresInDays: &many})
	wantDirFault(t, err, fault.Invalid)
	b.wantAudits("project.created")
}

func TestLastUseIsWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	k, text, err := b.CreateAPIKey(ctx, b.who, agent.NewAPIKey{Name: "ci", Role: agent.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	used := func() time.Time {
		t.Helper()
		if _, err := b.AuthenticateAPIKey(ctx, "Bearer "+text.Reveal()); err != nil {
			t.Fatal(err)
		}
		var got agent.APIKey
		err := b.db.View(ctx, func(tx *store.ReadTx) (err error) {
			got, err = tx.APIKeyByID(k.ID)
			return err
		})
		if err != nil || got.LastUsedAt == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		return *got.LastUsedAt
	}
	for _, step := range []struct{ after, want time.Duration }{
		{0, 0}, {59 * time.Second, 0}, {time.Second, time.Minute}, {30 * time.Second, time.Minute},
		{time.Hour, time.Hour + 90*time.Second},
	} {
		b.clk.Advance(step.after)
		if got := used().Sub(dirStart); got != step.want {
			t.Errorf("%v later: last used at %v, want %v", step.after, got, step.want)
		}
	}
}

func TestKeysBoundToAProject(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	global, _, err := b.CreateAPIKey(ctx, b.who, agent.NewAPIKey{Name: "global", Role: agent.Admin})
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := b.CreateAPIKey(ctx, b.who, agent.NewAPIKey{Name: "bound", Role: agent.Admin, ProjectID: &b.shop.ID})
	if err != nil {
		t.Fatal(err)
	}
	bound, err := b.AuthenticateAPIKey(ctx, "Bearer "+text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = b.CreateAPIKey(ctx, bound, agent.NewAPIKey{Name: "escape", Role: agent.Viewer})
	wantDirFault(t, err, fault.Forbidden)
	wantDirFault(t, b.RevokeAPIKey(ctx, bound, global.ID), fault.NotFound)
	if list, err := b.ListAPIKeys(ctx, bound); err != nil || len(list) != 1 || list[0].Name != "bound" {
		t.Errorf("%+v, %v", list, err)
	}
	prefix := global.ID.String()[:8]
	if ids, err := b.ResolveAPIKeys(ctx, bound, prefix); err != nil || len(ids) != 0 {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := b.ResolveAPIKeys(ctx, b.who, prefix); err != nil || !slices.Equal(ids, []uuid.UUID{global.ID}) {
		t.Errorf("%v, %v", ids, err)
	}
	child, _, err := b.CreateAPIKey(ctx, bound, agent.NewAPIKey{Name: "child", Role: agent.Viewer, ProjectID: &b.shop.ID})
	if err != nil || child.CreatedBy != bound.ID {
		t.Fatalf("%+v, %v", child, err)
	}
	if err := b.RevokeAPIKey(ctx, bound, child.ID); err != nil {
		t.Error(err)
	}
}

func TestFirstAdminKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	if fresh, err := b.HasNoAPIKey(ctx); err != nil || !fresh {
		t.Fatalf("%v, %v", fresh, err)
	}
	for _, bad := range []string{"", "z4k_short", "xxxx" + strings.Repeat("a", 40), "z4k_ " + strings.Repeat("a", 40),
		"z4k_" + strings.Repeat("a", 512)} {
		wantDirFault(t, b.EnsureAdminKey(ctx, secret.NewText(bad)), fault.Invalid)
	}
	text := secret.NewAPIKey()
	for _, key := range []secret.Text{text, secret.NewAPIKey()} { // the second comes too late
		if err := b.EnsureAdminKey(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if fresh, err := b.HasNoAPIKey(ctx); err != nil || fresh {
		t.Fatalf("%v, %v", fresh, err)
	}
	b.use(agent.SecretSet{Current: dirMaster("b"), Previous: []secret.Bytes{dirMaster("a")}}, 0)
	who, err := b.AuthenticateAPIKey(ctx, "Bearer "+text.Reveal())
	if err != nil || who.Role != agent.Admin || who.ProjectID != nil {
		t.Fatalf("%+v, %v", who, err)
	}
	if err := agent.Authorize(who, "projects", true, agent.Admin, nil); err != nil {
		t.Error(err)
	}
	id := uuid.MustParse(who.ID)
	if err := b.RevokeAPIKey(ctx, b.who, id); err != nil {
		t.Fatal(err)
	}
	if fresh, err := b.HasNoAPIKey(ctx); err != nil || fresh {
		t.Errorf("fresh after a revocation: %v, %v", fresh, err)
	}
	b.wantAudits("project.created", "api_key.created", "api_key.revoked")
}
