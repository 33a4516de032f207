package decide

import (
	"github.com/google/uuid"

	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// ParseCursor reads a cursor whose fields are valid one by one. The error is an Invalid fault that names the field.
func ParseCursor(m *pb.JobCursor) (Cursor, error) {
	id, err := uuid.Parse(m.GetJobId())
	if err != nil {
		return Cursor{}, fault.Field("cursor.job_id", "must be a UUID")
	}
	c := Cursor{Position: Position{m.GetRevision(), m.GetLastEventSequence()}, Job: id, State: m.GetState(), Committed: m.GetCommitted(),
		Role: m.GetRole(), Definition: m.GetDefinitionSha256(), ActiveStep: m.GetActiveStep(), OutboxFirst: m.GetOutboxFirstSequence(),
		CommitEvidence: m.GetCommitEvidenceSha256()}
	if c.Open, err = parseIDs("cursor.open_command_ids", m.GetOpenCommandIds()); err != nil {
		return Cursor{}, err
	}
	if c.Settled, err = parseIDs("cursor.settled_command_ids", m.GetSettledCommandIds()); err != nil {
		return Cursor{}, err
	}
	return c, nil
}

func parseIDs(name string, list []string) ([]uuid.UUID, error) {
	var out []uuid.UUID
	for _, text := range list {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, fault.Field(name, "must be UUIDs")
		}
		out = append(out, id)
	}
	return out, nil
}

// Message returns the cursor in the schema's form: a new message.
func (c *Cursor) Message() *pb.JobCursor {
	m := &pb.JobCursor{JobId: c.Job.String(), Revision: c.Revision, LastEventSequence: c.Sequence, State: c.State, Committed: c.Committed,
		Role: c.Role, DefinitionSha256: c.Definition, ActiveStep: c.ActiveStep, OutboxFirstSequence: c.OutboxFirst,
		CommitEvidenceSha256: c.CommitEvidence}
	for _, id := range c.Open {
		m.OpenCommandIds = append(m.OpenCommandIds, id.String())
	}
	for _, id := range c.Settled {
		m.SettledCommandIds = append(m.SettledCommandIds, id.String())
	}
	return m
}

// View returns control's cursor for a participant, as RegisterResponse shows it (2.5): the position that control has of
// this daemon, and the leases it holds open there.
func View(j *Job, role pb.ParticipantRole) Cursor {
	p := j.Party(role)
	c := Cursor{Job: j.ID, State: j.State, Role: role, Definition: j.Definition}
	if p == nil {
		return c
	}
	c.Position, c.Committed, c.CommitEvidence = p.Position, p.Committed, p.CommitEvidence
	if c.Definition == "" && p.Reported != nil {
		c.Definition = p.Reported.Definition
	}
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Role == role && r.isLease() && r.Status == Accepted && !r.closed() {
			c.Open = append(c.Open, r.ID)
			c.ActiveStep = r.Step
		}
	}
	return c
}
