package appliancetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
)

// Project is the project that the first start makes.
const Project = "default"

// Admin sends a request below /api/v1 as the local administrator, through the admin socket, and returns status and body.
// body is encoded as JSON unless it is nil or a string.
func (s *Server) Admin(method, path string, body any) (int, []byte) {
	s.t.Helper()
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			s.t.Fatalf("%s %s: %v", method, path, err)
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, "http://localhost/api/v1"+path, content)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.admin.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, answer
}

// Attempt is Admin for a request without a body whose answer nobody waits for. It may be called from any goroutine.
func (s *Server) Attempt(method, path string) {
	req, err := http.NewRequest(method, "http://localhost/api/v1"+path, nil)
	if err != nil {
		s.t.Errorf("%s %s: %v", method, path, err)
		return
	}
	resp, err := s.admin.Do(req)
	if err != nil {
		s.t.Errorf("%s %s: %v", method, path, err)
		return
	}
	resp.Body.Close()
}

// Do is Admin for a request that must be answered with want; the body is decoded into out unless that is nil.
func (s *Server) Do(method, path string, body any, want int, out any) {
	s.t.Helper()
	status, answer := s.Admin(method, path, body)
	if status != want {
		s.t.Fatalf("%s %s: answered %d, want %d: %s", method, path, status, want, answer)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(answer, out); err != nil {
		s.t.Fatalf("%s %s: %v in %s", method, path, err, answer)
	}
}

// Minted is an agent of a test with what it connects with.
type Minted struct {
	agentclient.Config
	ID      uuid.UUID
	Project string // slug
}

// Mint makes an agent in the first project. Its hello reports celery with what it takes to retry and to cancel a task.
func (s *Server) Mint(name string) *Minted {
	s.t.Helper()
	return s.MintIn(Project, name)
}

// MintIn makes an agent in a project.
func (s *Server) MintIn(project, name string) *Minted {
	s.t.Helper()
	var m struct {
		Agent struct {
			ID uuid.UUID `json:"id"`
		} `json:"agent"`
		Token string `json:"token"`
		HMAC  string `json:"hmac_secret"`
	}
	s.Do("POST", "/projects/"+project+"/agents", map[string]string{"name": name}, http.StatusCreated, &m)
	key, err := agentclient.DecodeSecret(m.HMAC)
	if err != nil {
		s.t.Fatalf("mint %s: %v", name, err)
	}
	return &Minted{ID: m.Agent.ID, Project: project,
		Config: agentclient.Config{URL: s.base, Token: secret.NewText(m.Token), ProjectSecret: key, Client: s.client, Now: s.Now,
			Engines: []string{"celery"}, Capabilities: map[string][]string{"celery": {"retry_task", "cancel_task", "retry_by_reference_v1"}}}}
}

// With returns the agent's configuration after a change, for the server as it runs now.
func (s *Server) With(m *Minted, change func(*agentclient.Config)) agentclient.Config {
	c := m.Config
	c.URL = s.base
	if change != nil {
		change(&c)
	}
	return c
}

// Revoke revokes the agent.
func (s *Server) Revoke(m *Minted) {
	s.t.Helper()
	s.Do("DELETE", "/projects/"+m.Project+"/agents/"+m.ID.String(), nil, http.StatusNoContent, nil)
}

// NewProject makes a project. The last active project cannot be archived, so tests that archive need a second one.
func (s *Server) NewProject(slug string) {
	s.t.Helper()
	s.Do("POST", "/projects", map[string]string{"slug": slug, "name": slug}, http.StatusCreated, nil)
}

// Archive archives a project.
func (s *Server) Archive(slug string) {
	s.t.Helper()
	s.Do("DELETE", "/projects/"+slug, nil, http.StatusNoContent, nil)
}

// Activate brings an archived project back.
func (s *Server) Activate(slug string) {
	s.t.Helper()
	s.Do("PATCH", "/projects/"+slug, map[string]bool{"is_active": true}, http.StatusOK, nil)
}

// Command is CommandPublic as far as tests read it.
type Command struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"`
	Action       string          `json:"action"`
	TargetID     *string         `json:"target_id"`
	Result       json.RawMessage `json:"result"`
	Error        *string         `json:"error"`
	DispatchedAt *string         `json:"dispatched_at"`
}

// Issue issues a command by one of the routes of agent protocol E.9, such as "cancel-task". The fields are those beside
// agent_id. An answer other than 202, or 503 for an agent that is offline, fails the test.
func (s *Server) Issue(m *Minted, route string, fields map[string]any) Command {
	s.t.Helper()
	body := map[string]any{"agent_id": m.ID.String()}
	for k, v := range fields {
		body[k] = v
	}
	status, answer := s.Admin("POST", "/projects/"+m.Project+"/commands/"+route, body)
	var c Command
	switch status {
	case http.StatusAccepted:
		if err := json.Unmarshal(answer, &c); err != nil {
			s.t.Fatalf("issue %s: %v in %s", route, err, answer)
		}
	case http.StatusServiceUnavailable:
		var refused struct {
			Error   string `json:"error"`
			Details struct {
				ID string `json:"command_id"`
			} `json:"details"`
		}
		if err := json.Unmarshal(answer, &refused); err != nil || refused.Error != "agent_offline" {
			s.t.Fatalf("issue %s: answered 503: %s", route, answer)
		}
		return s.Command(m, refused.Details.ID)
	default:
		s.t.Fatalf("issue %s: answered %d: %s", route, status, answer)
	}
	return c
}

// Command reads a command of the agent's project.
func (s *Server) Command(m *Minted, id string) Command {
	s.t.Helper()
	var c Command
	s.Do("GET", "/projects/"+m.Project+"/commands/"+id, nil, http.StatusOK, &c)
	return c
}

// Delivery is a row of the delivery ledger as far as tests read it.
type Delivery struct {
	Attempt   int     `json:"attempt"`
	Transport string  `json:"transport"`
	SessionID string  `json:"session_id"`
	WorkerID  *string `json:"worker_id"`
	Outcome   string  `json:"outcome"`
	Reason    *string `json:"reason"`
}

// Deliveries reads the ledger of a command.
func (s *Server) Deliveries(m *Minted, id string) []Delivery {
	s.t.Helper()
	var d []Delivery
	s.Do("GET", "/projects/"+m.Project+"/commands/"+id+"/deliveries", nil, http.StatusOK, &d)
	return d
}
