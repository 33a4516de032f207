package api

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// explainPublic says where a command stands and why.
type explainPublic struct {
	Command    commandPublic      `json:"command"`
	Summary    string             `json:"summary"`
	Sentences  []string           `json:"sentences"`
	WaitingFor *string            `json:"waiting_for"`
	Candidates []candidatePublic  `json:"candidates"`
	Next       nextPublic         `json:"next"`
	Deliveries []deliveryPublic   `json:"deliveries"`
	Timeline   []transitionPublic `json:"timeline"`
}

type candidatePublic struct {
	SessionID string          `json:"session_id"`
	Transport agent.Transport `json:"transport"`
	WorkerID  *string         `json:"worker_id"`
	Eligible  bool            `json:"eligible"`
	Reason    string          `json:"reason"`
}

type nextPublic struct {
	What string `json:"what"`
	At   *stamp `json:"at"`
}

func showCandidate(c *agent.Candidate) candidatePublic {
	return candidatePublic{SessionID: c.Session, Transport: c.Transport, WorkerID: orNull(c.Worker), Eligible: c.Eligible,
		Reason: c.Reason}
}

func (a *API) explainCommand(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		e, err := a.Commands.Explain(c.Context(), c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, explainPublic{Command: showCommand(&e.Command), Summary: e.Summary,
			Sentences: texts(e.Sentences), WaitingFor: orNull(e.WaitingFor), Candidates: each(e.Candidates, showCandidate),
			Next: nextPublic{e.Next.What, maybe(e.Next.At)}, Deliveries: each(e.Deliveries, showDelivery),
			Timeline: each(e.Timeline, showTransition)})
	})
}
