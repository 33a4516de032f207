package identity_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
)

func TestOperatorIsMadeOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.Operator(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p, err := r.Operator(t.Context())
	if err != nil || p.Kind != room.PersonOperator || p.Role != room.RoleUser || p.HasPassword || p.Email != identity.OperatorEmail {
		t.Fatalf("operator %+v, %v", p, err)
	}
	if n := r.count("SELECT count(*) FROM people"); n != 1 {
		t.Errorf("%d people", n)
	}
	if rows := r.audits("person.created"); len(rows) != 1 || rows[0].target != p.ID.String() || rows[0].user != "" {
		t.Errorf("audit %+v", rows)
	}
	_, err = r.login(identity.OperatorEmail, "")
	r.wants("operator without a password", err, fault.Unauthenticated, "wrong")
}

func TestCreatePerson(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin := r.operator()
	p, err := r.CreatePerson(t.Context(), admin, identity.NewPerson{Name: " Ada ", Email: " Ada@Example.ORG "})
	if err != nil || p.Name != "Ada" || p.Email != "ada@example.org" || p.Role != room.RoleUser || p.HasPassword {
		t.Fatalf("%+v, %v", p, err)
	}
	if again, err := r.Person(t.Context(), p.ID); err != nil || again != p {
		t.Errorf("read back %+v, %v", again, err)
	}
	people := r.count("SELECT count(*) FROM people")
	for _, c := range []struct {
		name  string
		by    room.Actor
		n     identity.NewPerson
		code  fault.Code
		words string
	}{
		{"not an admin", p.Actor(), identity.NewPerson{Name: "x", Email: "x@y"}, fault.Forbidden, "only an admin"},
		{"no name", admin, identity.NewPerson{Name: "  ", Email: "x@y"}, fault.Invalid, "name: "},
		{"two lines", admin, identity.NewPerson{Name: "a\nb", Email: "x@y"}, fault.Invalid, "name: "},
		{"no email", admin, identity.NewPerson{Name: "x"}, fault.Invalid, "email: "},
		{"email with space", admin, identity.NewPerson{Name: "x", Email: "a b@c"}, fault.Invalid, "email: "},
		{"two @", admin, identity.NewPerson{Name: "x", Email: "a@b@c"}, fault.Invalid, "email: "},
		{"taken", admin, identity.NewPerson{Name: "x", Email: "ADA@example.org"}, fault.Conflict, "email: "},
		{"role", admin, identity.NewPerson{Name: "x", Email: "x@y", Role: "root"}, fault.Invalid, "role: "},
		{"short password", admin, identity.NewPerson{Name: "x", Email: "x@y", Password: secret.NewText("short")},
			fault.Invalid, "password: must have at least 8"},
		{"long password", admin, identity.NewPerson{Name: "x", Email: "x@y", Password: secret.NewText(strings.Repeat("x", 1025))},
			fault.Invalid, "password: "},
	} {
		_, err := r.CreatePerson(t.Context(), c.by, c.n)
		r.wants(c.name, err, c.code, c.words)
	}
	if n := r.count("SELECT count(*) FROM people"); n != people {
		t.Errorf("%d people after refusals, want %d", n, people)
	}
}

func TestPersonNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada := r.person("ada")
	twin, err := r.CreatePerson(t.Context(), r.operator(), identity.NewPerson{Name: "twin", Email: "one@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.CreatePerson(t.Context(), r.operator(), identity.NewPerson{Name: "twin", Email: "two@example.org"}); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]room.Person{"ada": ada, "ADA@example.org": ada, ada.ID.String(): ada, "one@example.org": twin} {
		if p, err := r.PersonNamed(t.Context(), text); err != nil || p.ID != want.ID {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}
	_, err = r.PersonNamed(t.Context(), "twin")
	r.wants("twin", err, fault.Conflict, "several people")
	for _, text := range []string{"nobody", "no@body.example", uuid.NewString(), ""} {
		_, err := r.PersonNamed(t.Context(), text)
		r.wants("nobody", err, fault.NotFound, "person not found")
	}
}

func TestRolesAndDisabling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada := t.Context(), r.operator(), r.person("ada")
	bootstrap := r.bootstrapPerson()
	for _, c := range []struct {
		name  string
		err   func() error
		code  fault.Code
		words string
	}{
		{"role by oneself", func() error { _, err := r.SetRole(ctx, ada.Actor(), ada.ID, room.RoleAdmin); return err },
			fault.Forbidden, "only an admin"},
		{"role unknown", func() error { _, err := r.SetRole(ctx, admin, ada.ID, "owner"); return err }, fault.Invalid, "role: "},
		{"role of the operator", func() error { _, err := r.SetRole(ctx, admin, admin.ID, room.RoleAdmin); return err },
			fault.Invalid, "role: "},
		{"role of bootstrap", func() error { _, err := r.SetRole(ctx, admin, bootstrap, room.RoleAdmin); return err },
			fault.Invalid, "role: "},
		{"role of nobody", func() error { _, err := r.SetRole(ctx, admin, uuid.New(), room.RoleAdmin); return err },
			fault.NotFound, "person not found"},
		{"disable by oneself", func() error { _, err := r.SetDisabled(ctx, ada.Actor(), ada.ID, true); return err },
			fault.Forbidden, "only an admin"},
		{"disable the operator", func() error { _, err := r.SetDisabled(ctx, admin, admin.ID, true); return err },
			fault.Invalid, "disabled: "},
		{"password of another", func() error { return r.SetPassword(ctx, ada.Actor(), admin.ID, secret.NewText("long enough")) },
			fault.Forbidden, "only an admin"},
		{"password too short", func() error { return r.SetPassword(ctx, ada.Actor(), ada.ID, secret.NewText("1234567")) },
			fault.Invalid, "password: "},
	} {
		r.wants(c.name, c.err(), c.code, c.words)
	}
	s, err := r.login("ada@example.org", "ada-password")
	if err != nil {
		t.Fatal(err)
	}
	who := func() (room.Person, error) { return r.AuthenticatePerson(ctx, s.Token.Reveal()) }
	if _, err := r.SetRole(ctx, admin, ada.ID, room.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	if p, err := who(); err != nil || p.Role != room.RoleAdmin {
		t.Errorf("the role is not read at each request: %+v, %v", p, err)
	}
	if p, err := r.SetDisabled(ctx, admin, ada.ID, true); err != nil || p.DisabledAt == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	_, err = who()
	r.wants("cookie of a disabled person", err, fault.Forbidden, "disabled")
	_, err = r.login("ada@example.org", "ada-password")
	r.wants("login of a disabled person", err, fault.Forbidden, "disabled")
	_, err = r.login("ada@example.org", "wrong-password")
	r.wants("wrong password of a disabled person", err, fault.Unauthenticated, "wrong")
	if p, err := r.SetDisabled(ctx, admin, ada.ID, false); err != nil || p.DisabledAt != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	_, err = who()
	r.wants("cookie from before", err, fault.Unauthenticated, "not signed in")
	if _, err := r.login("ada@example.org", "ada-password"); err != nil {
		t.Error(err)
	}
	for _, action := range []string{"person.role.changed", "person.disabled", "person.enabled"} {
		if rows := r.audits(action); len(rows) != 1 || rows[0].user != admin.ID.String() || rows[0].target != ada.ID.String() {
			t.Errorf("%s: %+v", action, rows)
		}
	}
}

func (r *rig) bootstrapPerson() uuid.UUID {
	r.t.Helper()
	k, _, err := r.CreateKey(r.t.Context(), r.operator(), identity.NewKey{Kind: identity.KeyBootstrap, Label: "deploy"})
	if err != nil {
		r.t.Fatal(err)
	}
	return k.PersonID
}

func TestPeopleArePaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.operator()
	r.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
		INSERT INTO people (id, kind, name, email, role, sessions_after, created_at, updated_at)
		SELECT randomblob(16), 'person', 'p' || i, 'p' || i || '@x', 'user', 0, 0, 0 FROM n`)
	all, err := r.People(t.Context())
	if err != nil || len(all) != 1201 || all[0].Kind != room.PersonOperator || all[1200].Name != "p1200" {
		t.Fatalf("%d people, %v", len(all), err)
	}
}
