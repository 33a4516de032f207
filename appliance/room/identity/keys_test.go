package identity_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
)

func TestRegistrationKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada, bob := t.Context(), r.operator(), r.person("ada"), r.person("bob")
	k, text, err := r.CreateKey(ctx, ada.Actor(), identity.NewKey{Kind: identity.KeyRegistration, Label: "laptop"})
	if err != nil || k.PersonID != ada.ID || len(text.Reveal()) != 43 {
		t.Fatalf("%+v %d, %v", k, len(text.Reveal()), err)
	}
	for _, c := range []struct {
		name  string
		by    room.Actor
		n     identity.NewKey
		code  fault.Code
		words string
	}{
		{"kind", admin, identity.NewKey{Kind: "agent"}, fault.Invalid, "kind: "},
		{"label", ada.Actor(), identity.NewKey{Kind: identity.KeyRegistration, Label: strings.Repeat("x", 201)}, fault.Invalid, "label: "},
		{"for another", ada.Actor(), identity.NewKey{Kind: identity.KeyRegistration, For: bob.ID}, fault.Forbidden, "only an admin"},
		{"for nobody", admin, identity.NewKey{Kind: identity.KeyRegistration, For: uuid.New()}, fault.Invalid, "for: "},
		{"bootstrap by a user", ada.Actor(), identity.NewKey{Kind: identity.KeyBootstrap}, fault.Forbidden, "only an admin"},
		{"bootstrap for somebody", admin, identity.NewKey{Kind: identity.KeyBootstrap, For: bob.ID}, fault.Invalid, "for: "},
		{"by an agent", r.agent(ada, "bot").Agent.Actor(), identity.NewKey{Kind: identity.KeyRegistration}, fault.Forbidden, "only a person"},
	} {
		_, _, err := r.CreateKey(ctx, c.by, c.n)
		r.wants(c.name, err, c.code, c.words)
	}
	got, err := r.AuthenticateRegistrant(ctx, auth(text))
	if err != nil || got.Owner.ID != ada.ID || got.KeyID != k.ID || got.Bootstrap {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = r.AuthenticateAgent(ctx, auth(text))
	r.wants("registration key as an agent's", err, fault.Unauthenticated, "agent key")
	_, err = r.AuthenticateRegistrant(ctx, auth(r.agent(ada, "other").Key))
	r.wants("agent key as a registration key", err, fault.Unauthenticated, "registration key")
	for _, header := range []string{"", "Bearer", "Bearer ", "bearer " + text.Reveal(), "Bearer  " + text.Reveal(),
		"Bearer " + text.Reveal() + " ", "Basic " + text.Reveal(), text.Reveal(), "Bearer " + strings.Repeat("x", 600)} {
		_, err := r.AuthenticateRegistrant(ctx, header)
		r.wants("header "+header, err, fault.Unauthenticated, "")
		_, err = r.AuthenticateAgent(ctx, header)
		r.wants("agent header "+header, err, fault.Unauthenticated, "")
	}
	other, _, err := r.CreateKey(ctx, admin, identity.NewKey{Kind: identity.KeyRegistration, Label: "for bob", For: bob.ID})
	if err != nil || other.PersonID != bob.ID {
		t.Fatalf("%+v, %v", other, err)
	}
	r.wants("revoke another's", r.RevokeKey(ctx, ada.Actor(), other.ID), fault.NotFound, "registration key not found")
	r.wants("revoke nothing", r.RevokeKey(ctx, admin, uuid.New()), fault.NotFound, "registration key not found")
	for range 2 {
		if err := r.RevokeKey(ctx, ada.Actor(), k.ID); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.AuthenticateRegistrant(ctx, auth(text))
	r.wants("revoked", err, fault.Unauthenticated, "unknown or revoked")
	mine, err := r.Keys(ctx, ada.No, false)
	if err != nil || len(mine) != 0 {
		t.Errorf("%+v, %v", mine, err)
	}
	all, err := r.Keys(ctx, 0, true)
	if err != nil || len(all) != 2 || all[0].ID != k.ID || all[0].RevokedAt == nil || all[1].RevokedAt != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if rows := r.audits("registration_key."); len(rows) != 3 {
		t.Errorf("audit %+v", rows)
	}
	if n := r.count(`SELECT (SELECT count(*) FROM registration_keys WHERE key_hash = ?) +
		(SELECT count(*) FROM registration_keys WHERE key_hash = ?)`, text.Reveal(), secret.RoomKeyHash(text.Reveal())); n != 1 {
		t.Error("a key is stored in clear, or not as its hash")
	}
}

func TestBootstrapKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin := t.Context(), r.operator()
	if n := r.count("SELECT count(*) FROM people WHERE kind = 'bootstrap'"); n != 0 {
		t.Fatal("the bootstrap person is there before it is needed")
	}
	_, text, err := r.CreateKey(ctx, admin, identity.NewKey{Kind: identity.KeyBootstrap})
	if err != nil {
		t.Fatal(err)
	}
	by, err := r.AuthenticateRegistrant(ctx, auth(text))
	if err != nil || !by.Bootstrap || by.Owner.Kind != room.PersonBootstrap || by.Owner.Actor().Admin {
		t.Fatalf("%+v, %v", by, err)
	}
	got, err := r.Register(ctx, by, newAgent("bot"))
	if err != nil || got.Agent.OwnerID != by.Owner.ID || got.Agent.OwnerAdmin {
		t.Fatalf("%+v, %v", got, err)
	}
	r.bootstrapPerson()
	if n := r.count("SELECT count(*) FROM people WHERE kind = 'bootstrap'"); n != 1 {
		t.Errorf("%d bootstrap people", n)
	}
	if _, err := r.SetDisabled(ctx, admin, by.Owner.ID, true); err != nil {
		t.Fatal(err)
	}
	_, err = r.AuthenticateRegistrant(ctx, auth(text))
	r.wants("its owner is disabled", err, fault.Unavailable, "cannot be resolved")
	_, err = r.Register(ctx, by, newAgent("bot2"))
	r.wants("registering meanwhile", err, fault.Unavailable, "cannot be resolved")
}

func TestKeysOfDisabledPeople(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada := t.Context(), r.operator(), r.person("ada")
	_, text, err := r.CreateKey(ctx, ada.Actor(), identity.NewKey{Kind: identity.KeyRegistration})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.SetDisabled(ctx, admin, ada.ID, true); err != nil {
		t.Fatal(err)
	}
	_, err = r.AuthenticateRegistrant(ctx, auth(text))
	r.wants("key", err, fault.Forbidden, "disabled")
	_, _, err = r.CreateKey(ctx, admin, identity.NewKey{Kind: identity.KeyRegistration, For: ada.ID})
	r.wants("new key", err, fault.Conflict, "disabled")
	_, err = r.Register(ctx, identity.RegistrantOf(ada), newAgent("bot"))
	r.wants("register", err, fault.Forbidden, "disabled")
}
