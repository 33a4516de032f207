package identity

import (
	"context"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// SessionAge is how long a cookie is good for (A.6).
const SessionAge = 24 * time.Hour

// maxCookie bounds what is parsed for a stranger. Ours have about 400 characters.
const maxCookie = 4096

// Session is a person who signed in, with the token that proves it until ExpiresAt.
type Session struct {
	Person    room.Person
	Token     secret.Text
	ExpiresAt time.Time
}

// claims are what a token states (A.6). Only Subject and Since decide anything; the rest is read from the database at
// each request.
type claims struct {
	Email string `json:"email"`
	Role  string `json:"role"`
	// Since is the time in microseconds that voided the person's cookies before this one. A token whose Since is not the
	// stored one is void: iat counts whole seconds, which cannot order what happens within one.
	Since int64 `json:"since"`
	jwt.RegisteredClaims
}

// sessions signs and checks tokens.
type sessions struct {
	keys   [][]byte // the current one first
	parser *jwt.Parser
}

func newSessions(k Keys) sessions {
	s := sessions{parser: jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithoutClaimsValidation())}
	for _, master := range append([]secret.Bytes{k.Current}, k.Previous...) {
		s.keys = append(s.keys, secret.SessionKey(master.Reveal()).Reveal())
	}
	return s
}

// issue signs a token for the person.
func (s sessions) issue(p room.Person, since, now time.Time) (Session, error) {
	now = now.Truncate(time.Second)
	out := Session{Person: p, ExpiresAt: now.Add(SessionAge)}
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, &claims{Email: p.Email, Role: string(p.Role), Since: since.UnixMicro(),
		RegisteredClaims: jwt.RegisteredClaims{Subject: p.ID.String(), IssuedAt: jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(out.ExpiresAt)}})
	text, err := t.SignedString(s.keys[0])
	if err != nil {
		return Session{}, fault.Wrap(fault.Internal, err, "sign a session")
	}
	out.Token = secret.NewText(text)
	return out, nil
}

// check returns whom a token names, and its Since. Any key of ours may have signed it.
func (s sessions) check(token string, now time.Time) (id uuid.UUID, since int64, ok bool) {
	if token == "" || len(token) > maxCookie {
		return uuid.Nil, 0, false
	}
	for _, key := range s.keys {
		var c claims
		t, err := s.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return key, nil })
		if err != nil || !t.Valid {
			continue
		}
		// A clock that was put back does not void what was issued before; the end counts alone.
		if c.ExpiresAt == nil || c.IssuedAt == nil || !now.Before(c.ExpiresAt.Time) {
			return uuid.Nil, 0, false
		}
		id, err = uuid.Parse(c.Subject)
		return id, c.Since, err == nil
	}
	return uuid.Nil, 0, false
}

// Login proves a person by e-mail address and password. addr is the client's address, for the limit on failures.
// Unauthenticated when there is no such person or another password, which cannot be told apart, also not by time;
// Forbidden when the password is right and the person disabled; RateLimited after too many failures.
func (d *Identity) Login(ctx context.Context, email string, password secret.Text, addr string) (Session, error) {
	email, err := cleanEmail(email)
	if err != nil || len(password.Reveal()) > maxPassword {
		email, password = "", secret.Text{} // hashed all the same
	}
	pass, err := d.attempts.begin(email, addr)
	if err != nil {
		return Session{}, err
	}
	p, s, err := d.secretsOf(ctx, email)
	if err != nil {
		pass.undecided()
		return Session{}, err
	}
	ok, stale, err := d.hasher.verify(ctx, s.PasswordHash, password)
	switch {
	case err != nil:
		pass.undecided()
		return Session{}, err
	case !ok:
		d.loginFailed(ctx, pass, p)
		return Session{}, fault.New(fault.Unauthenticated, "wrong e-mail address or password")
	}
	pass.succeeded()
	if p.DisabledAt != nil {
		return Session{}, disabled()
	}
	if stale {
		d.rehash(ctx, p, s.PasswordHash, password)
	}
	return d.sessions.issue(p, s.SessionsAfter, d.clock.Now())
}

// secretsOf reads what a sign-in is checked against; nothing for an address nobody has.
func (d *Identity) secretsOf(ctx context.Context, email string) (p room.Person, s Secrets, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		p, s, err = tx.RoomPersonSecrets(email)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return room.Person{}, Secrets{}, nil
	}
	return p, s, err
}

// loginFailed records a failed sign-in: at most one row per address and person in the time that failures are counted
// for. The text that was typed as an address is not recorded: it may be a password.
func (d *Identity) loginFailed(ctx context.Context, pass *attempt, p room.Person) {
	if !pass.failed() {
		return
	}
	e := audit.Entry{Action: "person.login.failed", TargetType: "person", Result: audit.Failed, Outcome: audit.Deny}
	if p.No != 0 {
		e.TargetID = textOrNil(p.ID.String())
	}
	err := d.st.Update(ctx, "audit failed login", func(tx Tx) error {
		return d.append(ctx, tx, room.Actor{}, e, map[string]any{"known": p.No != 0})
	})
	if err != nil {
		d.opts.Trouble("audit failed login", err)
	}
}

// rehash stores a password under the parameters of today. That it failed is no reason to refuse the person.
func (d *Identity) rehash(ctx context.Context, p room.Person, old string, password secret.Text) {
	hash, err := d.hasher.hash(ctx, password)
	if err == nil {
		err = d.st.Update(ctx, "rehash password", func(tx Tx) error {
			_, now, err := tx.RoomPersonSecrets(p.Email)
			if err != nil || now.PasswordHash != old { // it was changed meanwhile
				return err
			}
			return tx.SetRoomPersonPassword(p.No, hash)
		})
	}
	if err != nil {
		d.opts.Trouble("rehash password", err)
	}
}

// AuthenticatePerson finds whom a cookie proves, as the database knows that person now. Unauthenticated when the cookie is
// not ours, expired or void; Forbidden when the person is disabled.
func (d *Identity) AuthenticatePerson(ctx context.Context, cookie string) (room.Person, error) {
	p, _, err := d.authenticatePerson(ctx, cookie)
	return p, err
}

func (d *Identity) authenticatePerson(ctx context.Context, cookie string) (p room.Person, since time.Time, err error) {
	id, stated, ok := d.sessions.check(cookie, d.clock.Now())
	if !ok {
		return p, since, noSession()
	}
	err = d.st.View(ctx, func(tx ReadTx) error {
		p, since, err = tx.RoomPersonSessions(id)
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound):
		return room.Person{}, since, noSession()
	case err != nil:
		return room.Person{}, since, err
	case p.DisabledAt != nil:
		return room.Person{}, since, disabled()
	case since.UnixMicro() != stated:
		return room.Person{}, since, noSession()
	}
	return p, since, nil
}

// Refresh exchanges a good cookie for one that lasts as long as a new one.
func (d *Identity) Refresh(ctx context.Context, cookie string) (Session, error) {
	p, since, err := d.authenticatePerson(ctx, cookie)
	if err != nil {
		return Session{}, err
	}
	return d.sessions.issue(p, since, d.clock.Now())
}

// Logout ends every session of the person. A cookie has no record of its own, so this is how one that was signed out
// stays out.
func (d *Identity) Logout(ctx context.Context, by room.Person) error {
	return d.changePerson(ctx, "log out", by.ID, func(tx Tx, p *room.Person) error {
		if err := d.endSessions(tx, p); err != nil {
			return err
		}
		return d.record(ctx, tx, by.Actor(), "person.sessions.ended", "person", p.ID, nil)
	})
}

// endSessions voids every cookie of the person.
func (d *Identity) endSessions(tx Tx, p *room.Person) error {
	_, since, err := tx.RoomPersonSessions(p.ID)
	if err != nil {
		return err
	}
	at := tx.Now()
	if !at.After(since) {
		at = since.Add(time.Microsecond)
	}
	return tx.SetRoomPersonSessions(p.No, at)
}

func noSession() error { return fault.New(fault.Unauthenticated, "not signed in") }

func disabled() error { return fault.New(fault.Forbidden, "this account is disabled") }
