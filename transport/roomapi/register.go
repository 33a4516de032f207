package roomapi

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/identity"
	"signalbox/transport/roomhttp"
)

// registered is an agent's id with its key, which is told this once.
type registered struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	APIKey string    `json:"api_key"`
}

func tell(a identity.Registered) registered {
	return registered{a.Agent.ID, a.Agent.Name, a.Key.Reveal()}
}

// registration lets holders of a registration or bootstrap key pass, and reads the body into in (A.3).
func (s *Server) registration(w http.ResponseWriter, r *http.Request, in any, do func(*http.Request,
	identity.Registrant) (any, error)) {
	r = withOrigin(r)
	by, err := s.svc.Identity.AuthenticateRegistrant(r.Context(), r.Header.Get("Authorization"))
	if err == nil {
		err = roomhttp.Decode(r, in)
	}
	var out any
	if err == nil {
		out, err = do(r, by)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	_ = answer(w, r, out)
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var in identity.NewAgent
	s.registration(w, r, &in, func(r *http.Request, by identity.Registrant) (any, error) {
		a, err := s.svc.Identity.Register(r.Context(), by, in)
		return tell(a), err
	})
}

func (s *Server) registerKnown(w http.ResponseWriter, r *http.Request) {
	var in identity.NewKnownAgent
	s.registration(w, r, &in, func(r *http.Request, by identity.Registrant) (any, error) {
		a, err := s.svc.Identity.RegisterKnown(r.Context(), by, in)
		return tell(a), err
	})
}

func (s *Server) registerKnownBulk(w http.ResponseWriter, r *http.Request) {
	var in identity.NewKnownAgents
	s.registration(w, r, &in, func(r *http.Request, by identity.Registrant) (any, error) {
		all, err := s.svc.Identity.RegisterKnownBulk(r.Context(), by, in)
		out := make([]registered, len(all))
		for i, a := range all {
			out[i] = tell(a)
		}
		return map[string]any{"agents": out}, err
	})
}

// deleteAgent is the one route that tells an agent that is not there from another's (A.4).
func (s *Server) deleteAgent(w http.ResponseWriter, r *http.Request) {
	r = withOrigin(r)
	if err := s.removeAgent(r); err != nil {
		s.fail(w, r, err)
		return
	}
	_ = answer(w, r, map[string]bool{"ok": true})
}

func (s *Server) removeAgent(r *http.Request) error {
	a, err := s.svc.Identity.AuthenticateAgent(r.Context(), r.Header.Get("Authorization"))
	if err != nil {
		return err
	}
	if other := samePath(r, a); other != nil {
		id, err := uuid.Parse(r.PathValue("agent_id"))
		if err == nil {
			_, err = s.svc.Identity.Agent(r.Context(), id)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		if err != nil {
			return fault.New(fault.NotFound, "agent_id: no such agent")
		}
		return other
	}
	return s.svc.Identity.DeleteAgent(r.Context(), a.Actor(), a.ID)
}
