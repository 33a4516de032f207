package gateway

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
	"signalbox/transport/roomhttp"
)

// Cookie is the name of the cookie that proves a person (A.6).
const Cookie = "switch_auth"

// The revisions of these routes that the server speaks, and the oldest it still serves.
const (
	revision       = 1
	oldestRevision = 1
)

// contract is a range of revisions.
type contract struct {
	Speaks  int `json:"speaks"`
	Accepts int `json:"accepts"`
}

type serverInfo struct {
	Version   *string             `json:"version"`
	Contracts map[string]contract `json:"contracts"`
}

func (s *Server) info() serverInfo {
	out := serverInfo{Contracts: map[string]contract{"gateway-api": {revision, oldestRevision}}}
	if s.opts.Version != "" {
		out.Version = &s.opts.Version
	}
	return out
}

// user is a person as others see it.
type user struct {
	ID        uuid.UUID `json:"id"`
	Name      string    `json:"name"`
	Email     string    `json:"email"`
	Role      room.Role `json:"role"`
	Kind      string    `json:"kind"`
	Disabled  bool      `json:"disabled"`
	CreatedAt time.Time `json:"created_at"`
}

func userOf(p room.Person) user {
	return user{p.ID, p.Name, p.Email, p.Role, string(p.Kind), p.DisabledAt != nil, p.CreatedAt}
}

// signedIn is a person as it sees itself.
type signedIn struct {
	user
	Server serverInfo `json:"server"`
}

// login signs a person in (I).
func (s *Server) login(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Email    *string `json:"email"`
		Password *string `json:"password"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return hidePassword(err)
	}
	email, err := need("email", in.Email)
	if err != nil {
		return err
	}
	password, err := need("password", in.Password)
	if err != nil {
		return err
	}
	session, err := s.svc.Identity.Login(r.Context(), email, secret.NewText(password), clientAddr(r))
	if err != nil {
		return err
	}
	return s.admit(w, r, session)
}

// hidePassword keeps what the decoder quotes of a broken body out of answers and logs.
func hidePassword(err error) error {
	var shape *roomhttp.ShapeError
	if errors.As(err, &shape) && !strings.HasPrefix(shape.Msg, "body.") {
		return &roomhttp.ShapeError{Msg: "body: must be a JSON object of the fields of this route"}
	}
	return err
}

// admit answers with a session: the person, and the cookie.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, session identity.Session) error {
	s.setCookie(w, r, session.Token.Reveal(), int(identity.SessionAge/time.Second))
	return s.show(w, r, session.Person)
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, p room.Person) error {
	return answer(w, r, signedIn{userOf(p), s.info()})
}

// setCookie gives the cookie its flags (A.6); maxAge below zero removes it.
func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{Name: Cookie, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: s.secure(r)})
}

// secure tells whether the browser asked over TLS.
func (s *Server) secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	return s.opts.BehindProxy && !strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "http")
}

func cookieOf(r *http.Request) string {
	c, err := r.Cookie(Cookie)
	if err != nil {
		return ""
	}
	return c.Value
}

// refresh gives a signed-in person a cookie that lasts as long as a new one.
func (s *Server) refresh(w http.ResponseWriter, r *http.Request, _ room.Person) error {
	session, err := s.svc.Identity.Refresh(r.Context(), cookieOf(r))
	if err != nil {
		return err
	}
	return s.admit(w, r, session)
}

// logout ends every session of the person: a cookie alone has no record that could end.
func (s *Server) logout(w http.ResponseWriter, r *http.Request, p room.Person) error {
	if err := s.svc.Identity.Logout(r.Context(), p); err != nil {
		return err
	}
	s.setCookie(w, r, "", -1)
	return done(w, r)
}

func (s *Server) me(w http.ResponseWriter, r *http.Request, p room.Person) error {
	return s.show(w, r, p)
}

// config says how people sign in; it is for everybody.
func (s *Server) config(w http.ResponseWriter, r *http.Request) error {
	return answer(w, r, map[string]any{"password_login": true, "self_registration": false, "server": s.info()})
}

// users lists everybody, to admins.
func (s *Server) users(w http.ResponseWriter, r *http.Request, p room.Person) error {
	if err := adminOnly(p); err != nil {
		return err
	}
	people, err := s.svc.Identity.People(r.Context())
	if err != nil {
		return err
	}
	out := make([]user, len(people))
	for i, p := range people {
		out[i] = userOf(p)
	}
	return answer(w, r, out)
}

func (s *Server) createUser(w http.ResponseWriter, r *http.Request, p room.Person) error {
	if err := adminOnly(p); err != nil {
		return err
	}
	var in struct {
		Name     *string   `json:"name"`
		Email    *string   `json:"email"`
		Password *string   `json:"password"`
		Role     room.Role `json:"role"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return hidePassword(err)
	}
	n := identity.NewPerson{Role: in.Role}
	var err error
	if n.Name, err = need("name", in.Name); err != nil {
		return err
	}
	if n.Email, err = need("email", in.Email); err != nil {
		return err
	}
	password, err := need("password", in.Password)
	if err != nil {
		return err
	}
	if n.Password = secret.NewText(password); password == "" {
		return fault.Field("password", "must not be empty")
	}
	made, err := s.svc.Identity.CreatePerson(r.Context(), p.Actor(), n)
	if err != nil {
		return err
	}
	return answer(w, r, userOf(made))
}

// key is a registration key without its text.
type key struct {
	ID        uuid.UUID        `json:"id"`
	Kind      identity.KeyKind `json:"kind"`
	Label     string           `json:"label"`
	CreatedAt time.Time        `json:"created_at"`
}

func keyOf(k identity.Key) key { return key{k.ID, k.Kind, k.Label, k.CreatedAt} }

// keys lists the person's own registration keys.
func (s *Server) keys(w http.ResponseWriter, r *http.Request, p room.Person) error {
	list, err := s.svc.Identity.Keys(r.Context(), p.No, false)
	if err != nil {
		return err
	}
	out := make([]key, len(list))
	for i, k := range list {
		out[i] = keyOf(k)
	}
	return answer(w, r, out)
}

// createKey makes a registration key of the person and tells its text this once.
func (s *Server) createKey(w http.ResponseWriter, r *http.Request, p room.Person) error {
	var in struct {
		Label *string `json:"label"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	label, err := need("label", in.Label)
	if err != nil {
		return err
	}
	k, text, err := s.svc.Identity.CreateKey(r.Context(), p.Actor(), identity.NewKey{Kind: identity.KeyRegistration, Label: label})
	if err != nil {
		return err
	}
	return answer(w, r, struct {
		key
		Text string `json:"key"`
	}{keyOf(k), text.Reveal()})
}

func (s *Server) revokeKey(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	if err := s.svc.Identity.RevokeKey(r.Context(), p.Actor(), id); err != nil {
		return err
	}
	return done(w, r)
}

func adminOnly(p room.Person) error {
	if p.Role != room.RoleAdmin {
		return fault.New(fault.Forbidden, "only an admin may do this")
	}
	return nil
}
