package store

import (
	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// CommandTransitions returns the newest rows of a command's timeline, oldest first.
func (r *reader) CommandTransitions(commandNo int64, limit int) ([]agent.Transition, error) {
	rows, err := r.Query(`SELECT * FROM (SELECT transition_no, command_no, at, event, status, detail
		FROM command_transitions WHERE command_no = ? ORDER BY transition_no DESC LIMIT ?) ORDER BY transition_no`,
		commandNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.Transition{}
	for rows.Next() {
		var t agent.Transition
		if err := rows.Scan(&t.No, &t.CommandNo, &t.At, &t.Event, &t.Status, &t.Detail); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

// CommandStream returns transitions of the project with numbers in (after, upTo], oldest first, with their commands.
func (r *reader) CommandStream(projectNo, after, upTo int64, f agent.StreamFilter, limit int) ([]agent.StreamItem, error) {
	query := `SELECT t.transition_no, t.command_no, t.at, t.event, t.status, t.detail, ` + commandColumns + `
		FROM command_transitions t CROSS JOIN commands c ON c.command_no = t.command_no
		JOIN projects p ON p.project_no = c.project_no LEFT JOIN agents a ON a.agent_no = c.agent_no
		WHERE t.transition_no > ? AND t.transition_no <= ? AND t.project_no = ?`
	args := []any{after, upTo, projectNo}
	if f.CommandID != uuid.Nil {
		query += ` AND c.id = ?`
		args = append(args, f.CommandID)
	}
	if f.Status != "" {
		query += ` AND t.status = ?`
		args = append(args, string(f.Status))
	}
	if f.AgentID != uuid.Nil {
		query += ` AND a.id = ?`
		args = append(args, f.AgentID)
	}
	if f.Action != "" {
		query += ` AND c.action = ?`
		args = append(args, f.Action)
	}
	rows, err := r.Query(query+` ORDER BY t.transition_no LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.StreamItem{}
	for rows.Next() {
		var t agent.Transition
		var row commandRow
		dest := append([]any{&t.No, &t.CommandNo, &t.At, &t.Event, &t.Status, &t.Detail}, row.dest()...)
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		out = append(out, agent.StreamItem{Transition: t, Command: row.command()})
	}
	return out, rows.Err()
}

// CommandStreamBounds returns the ends of the log of transitions. The head is the highest number ever given, which
// pruning does not lower.
func (r *reader) CommandStreamBounds(projectNo int64) (b agent.StreamBounds, err error) {
	if b.Pruned, err = r.prunedTransitions(projectNo); err != nil {
		return b, err
	}
	err = noRowIsZero(r.QueryRow(`SELECT seq FROM sqlite_sequence WHERE name = 'command_transitions'`).Scan(&b.Head))
	if err != nil {
		return b, err
	}
	err = r.QueryRow(`SELECT coalesce(min(transition_no), 0) FROM command_transitions`).Scan(&b.First)
	return b, err
}
