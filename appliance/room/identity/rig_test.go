package identity_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func master(s string) secret.Bytes { return secret.NewBytes([]byte(strings.Repeat(s, 32))) }

// rig is an Identity on a database of its own.
type rig struct {
	*identity.Identity
	t      *testing.T
	db     *store.DB
	clk    *clock.Fake
	closed []int64
	before func(tx identity.Tx, a room.Agent) error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	clk := clock.NewFake(start)
	r := &rig{t: t, clk: clk, db: storetest.Open(t, func(o *store.Options) { o.Clock = clk })}
	r.use(identity.Keys{Current: master("a")})
	return r
}

// use puts an Identity with other secrets on the database, as a restart would.
func (r *rig) use(k identity.Keys) {
	log := audit.New(audit.NewKeys(k.Current, k.Previous...))
	r.Identity = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, k, identity.Options{
		Clock: r.clk,
		OnDelete: func(tx identity.Tx, a room.Agent) error {
			if r.before != nil {
				return r.before(tx, a)
			}
			return nil
		},
		Closed:  func(no int64, _ string) { r.closed = append(r.closed, no) },
		Trouble: func(op string, err error) { r.t.Errorf("trouble: %s: %v", op, err) },
	})
	identity.CheapHashes(r.Identity)
}

func (r *rig) operator() room.Actor {
	r.t.Helper()
	p, err := r.Operator(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	by := p.Actor()
	by.Admin = true // what the admin socket and API keys add
	return by
}

// person makes an ordinary person whose password is its name and "-password".
func (r *rig) person(name string) room.Person {
	r.t.Helper()
	p, err := r.CreatePerson(r.t.Context(), r.operator(), identity.NewPerson{Name: name, Email: name + "@example.org",
		Password: secret.NewText(name + "-password")})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) login(email, password string) (identity.Session, error) {
	return r.Login(r.t.Context(), email, secret.NewText(password), "192.0.2.7")
}

// agent registers an agent of the person.
func (r *rig) agent(owner room.Person, name string) identity.Registered {
	r.t.Helper()
	got, err := r.Register(r.t.Context(), identity.RegistrantOf(owner), newAgent(name))
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func newAgent(name string) identity.NewAgent {
	return identity.NewAgent{Name: name, Description: "of " + name,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}}
}

// auth is the header that proves the key.
func auth(key secret.Text) string { return "Bearer " + key.Reveal() }

// wants fails the test unless err has the code, and a message with the words.
func (r *rig) wants(what string, err error, code fault.Code, words string) {
	r.t.Helper()
	if fault.CodeOf(err) != code || !strings.Contains(fault.Message(err), words) {
		r.t.Errorf("%s: %v (%s), want %s with %q", what, err, fault.CodeOf(err), code, words)
	}
}

type auditRow struct{ action, user, target, result, ip, meta string }

// audits returns the audit rows whose action begins with the prefix.
func (r *rig) audits(prefix string) []auditRow {
	r.t.Helper()
	var out []auditRow
	err := r.db.View(r.t.Context(), func(tx *store.ReadTx) error {
		rows, err := tx.Query(`SELECT action, coalesce(user_id, ''), coalesce(target_id, ''), result, coalesce(source_ip, ''),
			metadata FROM audit_log WHERE action LIKE ? || '%' ORDER BY 1, rowid`, prefix)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var a auditRow
			if err := rows.Scan(&a.action, &a.user, &a.target, &a.result, &a.ip, &a.meta); err != nil {
				return err
			}
			out = append(out, a)
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// count returns a number from the database.
func (r *rig) count(query string, args ...any) (n int) {
	r.t.Helper()
	err := r.db.View(r.t.Context(), func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) })
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	err := r.db.Update(r.t.Context(), "test", func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func decode[T any](t *testing.T, body string) (T, error) {
	t.Helper()
	var v T
	return v, json.Unmarshal([]byte(body), &v)
}
