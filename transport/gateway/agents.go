package gateway

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/transport/roomhttp"
)

// agent is an agent as people see it.
type agent struct {
	ID              uuid.UUID            `json:"id"`
	Name            string               `json:"name"`
	DisplayName     *string              `json:"display_name"`
	Description     string               `json:"description"`
	IconURL         *string              `json:"icon_url"`
	Type            *string              `json:"agent_type"`
	ConnectorType   string               `json:"connector_type"`
	ConnectionModel room.ConnectionModel `json:"connection_model"`
	OwnerID         *uuid.UUID           `json:"owner_id"`
	OwnerName       *string              `json:"owner_name"`
	ParentID        *uuid.UUID           `json:"parent_agent_id"`
	Policy          *room.Policy         `json:"addressing_policy"`
	// Note says when only the owner can address the agent, and how to open it (D.8).
	Note        *string   `json:"note"`
	Connections int       `json:"connections"` // live ones
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// agentDetail is agent with what it stated of itself.
type agentDetail struct {
	agent
	Profile  json.RawMessage `json:"integration_profile"`
	Tools    json.RawMessage `json:"tools"`
	Models   json.RawMessage `json:"models"`
	Metadata json.RawMessage `json:"metadata"`
}

func (s *Server) agentOf(a room.Agent, parent *uuid.UUID) agent {
	out := agent{ID: a.ID, Name: a.Name, DisplayName: textOrNil(a.DisplayName), Description: a.Description,
		IconURL: textOrNil(a.IconURL), Type: textOrNil(a.Type), ConnectorType: a.ConnectorType,
		ConnectionModel: a.Profile.ConnectionModel, ParentID: parent, Policy: a.Policy, Note: textOrNil(identity.OwnerOnlyHint(a)),
		Connections: len(s.svc.Connections.List(a.No)), CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt}
	if a.OwnerNo != 0 {
		out.OwnerID, out.OwnerName = &a.OwnerID, &a.OwnerName
	}
	return out
}

// textOrNil is null for the empty text.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// agents lists all agents by name: any may be put into a room.
func (s *Server) agents(w http.ResponseWriter, r *http.Request, _ room.Person) error {
	var all []room.Agent
	f := identity.AgentFilter{Prefix: r.URL.Query().Get("prefix")}
	for more := true; more; {
		var page []room.Agent
		var err error
		if page, more, err = s.svc.Identity.Agents(r.Context(), f); err != nil {
			return err
		}
		all = append(all, page...)
		if more {
			f.After = page[len(page)-1].Name
		}
	}
	ids := make(map[int64]*uuid.UUID, len(all))
	for i := range all {
		ids[all[i].No] = &all[i].ID
	}
	out := make([]agent, len(all))
	for i, a := range all {
		out[i] = s.agentOf(a, ids[a.ParentNo])
	}
	return answer(w, r, out)
}

func (s *Server) agent(w http.ResponseWriter, r *http.Request, _ room.Person) error {
	id, err := pathID(r, "agent")
	if err != nil {
		return err
	}
	a, err := s.svc.Identity.Agent(r.Context(), id)
	if err != nil {
		return err
	}
	return s.showAgent(w, r, a)
}

func (s *Server) showAgent(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	var parent *uuid.UUID
	if a.ParentNo != 0 {
		p, err := s.svc.Identity.AgentByNo(r.Context(), a.ParentNo)
		if err == nil {
			parent = &p.ID
		} else if !fault.Is(err, fault.NotFound) { // it may have gone in between
			return err
		}
	}
	return answer(w, r, agentDetail{s.agentOf(a, parent), a.RawProfile, a.Tools, a.Models, a.Metadata})
}

func (s *Server) deleteAgent(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "agent")
	if err != nil {
		return err
	}
	if err := s.svc.Identity.DeleteAgent(r.Context(), p.Actor(), id); err != nil {
		return err
	}
	return done(w, r)
}

// register makes an agent of the person (A.3).
func (s *Server) register(w http.ResponseWriter, r *http.Request, p room.Person) error {
	var n identity.NewAgent
	if err := roomhttp.Decode(r, &n); err != nil {
		return err
	}
	return s.registered(w, r, p, n)
}

// registerOther makes an agent that asks by itself for what is new: its profile is fixed (I).
func (s *Server) registerOther(w http.ResponseWriter, r *http.Request, p room.Person) error {
	var in struct {
		Name        *string `json:"name"`
		Description string  `json:"description"`
		DisplayName *string `json:"display_name"`
		IconURL     *string `json:"icon_url"`
		Overwrite   bool    `json:"overwrite"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	name, err := need("name", in.Name)
	if err != nil {
		return err
	}
	return s.registered(w, r, p, identity.NewAgent{Name: name, Description: in.Description, DisplayName: in.DisplayName,
		IconURL: in.IconURL, Overwrite: in.Overwrite, Profile: room.Profile{ConnectionModel: room.SessionPassive,
			MessageExchange: true, Commands: identity.NoCommands()}})
}

func (s *Server) registered(w http.ResponseWriter, r *http.Request, p room.Person, n identity.NewAgent) error {
	got, err := s.svc.Identity.Register(r.Context(), identity.RegistrantOf(p), n)
	if err != nil {
		return err
	}
	return answer(w, r, struct {
		ID       uuid.UUID `json:"id"`
		APIKey   string    `json:"api_key"`
		ClientID *string   `json:"oauth_client_id"` // there is none: an agent has its key alone
		Note     *string   `json:"note"`
	}{got.Agent.ID, got.Key.Reveal(), nil, textOrNil(identity.OwnerOnlyHint(got.Agent))})
}

// setPolicy says who may address an agent (D.8); null opens it to everybody.
func (s *Server) setPolicy(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "agent")
	if err != nil {
		return err
	}
	var in map[string]json.RawMessage
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	raw, given := in["policy"]
	if !given {
		return &roomhttp.ShapeError{Msg: "body.policy: is required: an object of rules, or null"}
	}
	policy, err := room.ParsePolicy(raw)
	if err != nil {
		return err
	}
	a, err := s.svc.Identity.SetPolicy(r.Context(), p.Actor(), id, policy)
	if err != nil {
		return err
	}
	return s.showAgent(w, r, a)
}
