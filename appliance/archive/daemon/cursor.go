package daemon

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// cursorOf builds the cursor of a job (2.4).
func cursorOf(tx ReadTx, row JobRow) (*pb.JobCursor, error) {
	leases, err := tx.JobLeases(row.ID)
	if err != nil {
		return nil, err
	}
	unacked, err := tx.UnackedEvents(row.ID, 0, 1)
	if err != nil {
		return nil, err
	}
	var first uint64
	if len(unacked) > 0 {
		first = unacked[0].Event.GetSequence()
	}
	return makeCursor(row, leases, first), nil
}

// makeCursor is cursorOf from rows; first is the lowest unconfirmed sequence, 0 when there is none.
func makeCursor(row JobRow, leases []Lease, first uint64) *pb.JobCursor {
	c := &pb.JobCursor{JobId: row.ID.String(), Revision: row.Revision, LastEventSequence: row.Sequence, State: row.State,
		Committed: row.Committed, Role: row.Role, DefinitionSha256: row.Digest, OutboxFirstSequence: first}
	if row.Committed {
		c.CommitEvidenceSha256 = row.CommitEvidenceSHA256
	}
	for _, l := range leases {
		switch l.State {
		case pb.LeaseState_LEASE_STATE_OPEN:
			c.OpenCommandIds = append(c.OpenCommandIds, l.CommandID.String())
			c.ActiveStep = l.Step
		case pb.LeaseState_LEASE_STATE_SETTLED:
			// Its terminal event is not made yet (the lease was closed by CancelJob) or not confirmed yet.
			if l.EndSequence == 0 || first != 0 && l.EndSequence >= first {
				c.SettledCommandIds = append(c.SettledCommandIds, l.CommandID.String())
			}
		}
	}
	c.OpenCommandIds = lastOf(c.OpenCommandIds, maxListedCommands)
	c.SettledCommandIds = lastOf(c.SettledCommandIds, maxListedCommands)
	return c
}

func lastOf(list []string, n int) []string { return list[max(0, len(list)-n):] }

// jobFacts reads what a decision looks at.
func jobFacts(tx ReadTx, id uuid.UUID) (*JobFacts, error) {
	row, ok, err := tx.Job(id)
	if err != nil || !ok {
		return nil, err
	}
	f := &JobFacts{Row: row}
	if f.Leases, err = tx.JobLeases(id); err != nil {
		return nil, err
	}
	f.Unacked, err = tx.UnackedCommands(id)
	return f, err
}
