package gateway

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/media"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// Identity knows people, keys and agents; *identity.Identity is one.
type Identity interface {
	Login(ctx context.Context, email string, password secret.Text, addr string) (identity.Session, error)
	AuthenticatePerson(ctx context.Context, cookie string) (room.Person, error)
	Refresh(ctx context.Context, cookie string) (identity.Session, error)
	Logout(ctx context.Context, by room.Person) error
	People(ctx context.Context) ([]room.Person, error)
	CreatePerson(ctx context.Context, by room.Actor, n identity.NewPerson) (room.Person, error)
	Keys(ctx context.Context, personNo int64, includeRevoked bool) ([]identity.Key, error)
	CreateKey(ctx context.Context, by room.Actor, n identity.NewKey) (identity.Key, secret.Text, error)
	RevokeKey(ctx context.Context, by room.Actor, id uuid.UUID) error
	Agents(ctx context.Context, f identity.AgentFilter) ([]room.Agent, bool, error)
	Agent(ctx context.Context, id uuid.UUID) (room.Agent, error)
	AgentByNo(ctx context.Context, no int64) (room.Agent, error)
	Register(ctx context.Context, by identity.Registrant, n identity.NewAgent) (identity.Registered, error)
	DeleteAgent(ctx context.Context, by room.Actor, id uuid.UUID) error
	SetPolicy(ctx context.Context, by room.Actor, id uuid.UUID, p *room.Policy) (room.Agent, error)
}

// Directory keeps rooms and who is in them; *directory.Directory is one.
type Directory interface {
	Create(ctx context.Context, by room.Actor, n directory.NewRoom) (room.Room, error)
	Update(ctx context.Context, by room.Actor, id uuid.UUID, c directory.RoomChange) (room.Room, error)
	Archive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Unarchive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Delete(ctx context.Context, by room.Actor, id uuid.UUID) error
	Room(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Rooms(ctx context.Context, by room.Actor, f directory.Filter) ([]room.Room, error)
	RoomsOfPerson(ctx context.Context, personNo int64, includeArchived bool) ([]room.Room, error)
	Members(ctx context.Context, id uuid.UUID) ([]room.Member, []room.PersonMember, error)
	Invite(ctx context.Context, by room.Actor, id uuid.UUID, list []directory.Invitation) ([]room.Member, error)
	Remove(ctx context.Context, by room.Actor, id, agentID uuid.UUID) error
	SetListening(ctx context.Context, by room.Actor, id, agentID uuid.UUID, listening bool) (room.Member, error)
	AddPeople(ctx context.Context, by room.Actor, id uuid.UUID, list []directory.Introduction) ([]room.PersonMember, error)
	Manages(ctx context.Context, by room.Actor, id uuid.UUID) (bool, error)
	PersonIn(ctx context.Context, roomNo, personNo int64) (bool, error)
	DefineRole(ctx context.Context, by room.Actor, id uuid.UUID, n directory.NewRole) (room.RoleDef, error)
	EditRole(ctx context.Context, by room.Actor, id uuid.UUID, name string, c directory.RoleChange) (room.RoleDef, error)
	DeleteRole(ctx context.Context, by room.Actor, id uuid.UUID, name string) error
	Role(ctx context.Context, id uuid.UUID, name string) (room.RoleDef, error)
	Roles(ctx context.Context, id uuid.UUID) ([]room.RoleDef, error)
}

// Timeline is the log of rooms; *timeline.Timeline is one.
type Timeline interface {
	Post(ctx context.Context, d timeline.Draft) (timeline.Posted, error)
	Since(ctx context.Context, roomNo, after int64, limit int) (items []room.Item, head int64, err error)
	Before(ctx context.Context, roomNo, before int64, limit int) (items []room.Item, more bool, err error)
}

// Media keeps files; *media.Media is one.
type Media interface {
	Begin(ctx context.Context, by room.Actor, roomID uuid.UUID) (*media.Upload, error)
	Open(ctx context.Context, by room.Actor, roomID uuid.UUID, key string) (*media.File, error)
	Attachments(ctx context.Context, by room.Actor, roomID uuid.UUID, keys []string) (files []room.Attachment, stale, err error)
}

// Connections tells who is connected; *connection.Registry is one.
type Connections interface {
	List(agentNo int64) []connection.Info
}

// Services are what the routes are a face of.
type Services struct {
	Identity    Identity
	Directory   Directory
	Timeline    Timeline
	Media       Media
	Connections Connections
	Hub         *wake.Hub // carries timeline.RoomKey and timeline.PersonKey
}

// Options of a Server.
type Options struct {
	Version string // of the server; "": not told
	// BehindProxy says that TLS ends at a proxy in front: cookies are Secure unless the proxy says that it was asked over
	// plain HTTP.
	BehindProxy bool
	Clock       clock.Clock // nil is the system's
	Log         zerolog.Logger
	// Streams is how many event streams there may be, StreamsEach how many of one person; 0 is 1,000 and 16.
	Streams, StreamsEach int
}

// Server serves the routes.
type Server struct {
	svc     Services
	opts    Options
	origins *http.CrossOriginProtection
	streams *streams
}

// New returns a Server.
func New(s Services, o Options) *Server {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Streams <= 0 {
		o.Streams = 1000
	}
	if o.StreamsEach <= 0 {
		o.StreamsEach = 16
	}
	return &Server{svc: s, opts: o, origins: http.NewCrossOriginProtection(), streams: newStreams(o.Streams, o.StreamsEach)}
}

// Routes registers the routes.
func (s *Server) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /gateway/auth/login", s.public(s.login))
	mux.HandleFunc("GET /gateway/auth/config", s.public(s.config))
	for pattern, h := range map[string]handler{
		"POST /auth/refresh":                    s.refresh,
		"POST /auth/logout":                     s.logout,
		"GET /auth/me":                          s.me,
		"GET /users":                            s.users,
		"POST /users":                           s.createUser,
		"GET /api-keys":                         s.keys,
		"POST /api-keys":                        s.createKey,
		"DELETE /api-keys/{id}":                 s.revokeKey,
		"GET /agents":                           s.agents,
		"POST /agents/register":                 s.register,
		"POST /agents/register-other":           s.registerOther,
		"GET /agents/{agent}":                   s.agent,
		"DELETE /agents/{agent}":                s.deleteAgent,
		"PUT /agents/{agent}/addressing-policy": s.setPolicy,
		"GET /rooms":                            s.rooms,
		"POST /rooms":                           s.createRoom,
		"GET /rooms/{room}":                     s.room,
		"PATCH /rooms/{room}":                   s.updateRoom,
		"DELETE /rooms/{room}":                  s.deleteRoom,
		"POST /rooms/{room}/archive":            s.archive,
		"POST /rooms/{room}/unarchive":          s.unarchive,
		"POST /rooms/{room}/agents":             s.addAgents,
		"PATCH /rooms/{room}/agents/{agent}":    s.changeMember,
		"DELETE /rooms/{room}/agents/{agent}":   s.removeAgent,
		"GET /rooms/{room}/roles":               s.roles,
		"POST /rooms/{room}/roles":              s.createRole,
		"GET /rooms/{room}/roles/{role}":        s.role,
		"PATCH /rooms/{room}/roles/{role}":      s.editRole,
		"DELETE /rooms/{room}/roles/{role}":     s.deleteRole,
		"GET /rooms/{room}/media":               s.download,
		"POST /rooms/{room}/media":              s.upload,
		"GET /chats":                            s.chats,
		"POST /chats":                           s.createChat,
		"GET /chats/events":                     s.events,
		"GET /chats/{room}/messages":            s.messages,
		"POST /chats/{room}/messages":           s.post,
		"POST /chats/{room}/members":            s.addMember,
	} {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /gateway"+path, s.person(h))
	}
}

// handler answers a request of a person, or returns the error to answer with.
type handler func(w http.ResponseWriter, r *http.Request, p room.Person) error

// public passes everybody on.
func (s *Server) public(h func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r = withOrigin(r)
		err := s.sameOrigin(r)
		if err == nil {
			err = h(w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
}

// person lets whoever the cookie proves pass (A.6).
func (s *Server) person(h handler) http.HandlerFunc {
	return s.public(func(w http.ResponseWriter, r *http.Request) error {
		p, err := s.svc.Identity.AuthenticatePerson(r.Context(), cookieOf(r))
		if err != nil {
			return err
		}
		return h(w, r, p)
	})
}

// sameOrigin refuses a change that a browser says another site asked for: the cookie would come along.
func (s *Server) sameOrigin(r *http.Request) error {
	if err := s.origins.Check(r); err != nil {
		return fault.Wrap(fault.Forbidden, err, "requests from other sites are not taken")
	}
	return nil
}

// withOrigin notes where the request came from, for the audit log.
func withOrigin(r *http.Request) *http.Request {
	return r.WithContext(room.WithOrigin(r.Context(), room.Origin{SourceIP: clientAddr(r), UserAgent: r.UserAgent()}))
}

// clientAddr is the client's address, "" when it could not be determined.
func clientAddr(r *http.Request) string {
	if addr := transport.ClientAddr(r.Context()); addr.IsValid() {
		return addr.String()
	}
	return ""
}

// fail answers with an error. What the server did wrong is logged with its cause, which the caller is not told.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	level := zerolog.DebugLevel
	switch code := fault.CodeOf(err); {
	case r.Context().Err() != nil:
	case code == fault.Unavailable:
		level = zerolog.WarnLevel
	case code == fault.Internal, code == fault.Corrupt, code == fault.OutcomeUnknown:
		level = zerolog.ErrorLevel
	}
	s.opts.Log.WithLevel(level).Err(err).Str("request", transport.RequestID(r.Context())).Str("method", r.Method).
		Str("path", r.URL.Path).Msg("request of a person failed")
	var e *fault.Error
	if errors.As(err, &e) && e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.Retry.Seconds()))))
	}
	roomhttp.WriteErrorJSON(w, r, err)
}

func answer(w http.ResponseWriter, r *http.Request, v any) error {
	transport.WriteJSON(w, r, http.StatusOK, v)
	return nil
}

// done answers what changed something and has nothing to show.
func done(w http.ResponseWriter, r *http.Request) error {
	return answer(w, r, map[string]bool{"ok": true})
}

// pathID reads an id in the path; a text that is no id names nothing.
func pathID(r *http.Request, name string) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue(name))
	if err != nil {
		return id, fault.New(fault.NotFound, "%s not found", map[string]string{"id": "key", "room": "room", "agent": "agent"}[name])
	}
	return id, nil
}

// need returns the value of a required field.
func need[T any](field string, v *T) (T, error) {
	if v == nil {
		var none T
		return none, &roomhttp.ShapeError{Msg: "body." + field + ": is required"}
	}
	return *v, nil
}

// needID returns the id in a required field.
func needID(field string, v *string) (uuid.UUID, error) {
	text, err := need(field, v)
	if err != nil {
		return uuid.Nil, err
	}
	return parseID(field, text)
}

func parseID(field, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, fault.Field(field, "must be an id, which is a UUID")
	}
	return id, nil
}

// query reads a whole number of the query.
func query(r *http.Request, name string, otherwise, least, most int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fault.Field(name, "must be a whole number from %d to %d", least, most)
	}
	return n, nil
}
