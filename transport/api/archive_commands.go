package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/job"
)

// daemonCommandExplained says where a command to a daemon stands and why; of one that belongs to a job, what the job waits for.
type daemonCommandExplained struct {
	Command archiveCommandPublic `json:"command"`
	Job     *jobPublic           `json:"job"` // null: of none
	archiveExplanation
}

func (a *API) explainDaemonCommand(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	e, err := s.Commands.Explain(c.Context(), id)
	if err != nil {
		return err
	}
	out := daemonCommandExplained{Command: showDaemonCommand(&e.Row, e.Daemon, e.Deliveries, e.Waiting),
		archiveExplanation: archiveExplanation{e.Summary, texts(nil), e.WaitsFor, e.NextAction}}
	if e.Waiting != "" {
		out.Sentences = append(out.Sentences, e.Waiting)
	}
	if e.Job != uuid.Nil {
		d, err := s.Jobs.Show(c.Context(), e.Job)
		if err != nil {
			return err
		}
		out.ofJob(&e, &d)
	}
	return reply(w, c, http.StatusOK, out)
}

// ofJob adds what the command's job knows: while the command is not over, what the job waits for and what is to be done.
func (x *daemonCommandExplained) ofJob(e *command.Explanation, d *job.Detail) {
	of := showJob(&d.Listed)
	x.Job = &of
	what := strings.ReplaceAll(x.Command.Kind, "_", " ")
	if x.Command.Step != nil {
		what += fmt.Sprintf(" %s, attempt %d,", strings.ToUpper(*x.Command.Step), x.Command.StepAttempt)
	}
	x.Sentences = append(x.Sentences, fmt.Sprintf("It is %s of job %s, %s of %s: %s", what, of.ID, of.Operation, of.Title, d.Explanation.Summary))
	if e.Over() {
		x.NextAction = fmt.Sprintf("Nothing: the command is over. Its job: `signalbox jobs explain %s`.", of.ID)
		return
	}
	for _, s := range d.Explanation.Sentences {
		if !strings.Contains(s, x.Command.ID) && (e.Waiting == "" || !strings.Contains(s, e.Waiting)) { // said above
			x.Sentences = append(x.Sentences, s)
		}
	}
	x.WaitsFor, x.NextAction = d.Explanation.WaitsFor, d.Explanation.NextAction
}
