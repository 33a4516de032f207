package bulkretry

import (
	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// CommandEnded follows the end of a child to its task, and the end of a parent to what has not been handed over.
func (s *Service) CommandEnded(tx agent.CommandTx, cmd agent.Command) error {
	switch {
	case cmd.ParentNo != 0:
		return s.childEnded(tx.(Tx), cmd)
	case cmd.Action == "bulk_retry" && cmd.AgentNo == 0:
		return s.parentEnded(tx.(Tx), cmd)
	}
	return nil
}

// CommandAnswered notes an answer that comes after a child had timed out: what its task ended as stays.
func (s *Service) CommandAnswered(tx agent.CommandTx, cmd agent.Command, success bool, errText *string) error {
	if cmd.ParentNo == 0 || cmd.Status != agent.TimedOut {
		return nil
	}
	btx := tx.(Tx)
	row, err := btx.BulkRetryTaskOf(cmd.No)
	if fault.Is(err, fault.NotFound) || err == nil && row.Status != TimedOut {
		return nil
	}
	if err != nil {
		return err
	}
	text := agent.TimeoutError + "; later it said that it had retried the task"
	if !success {
		text = agent.TimeoutError + "; later it said that it could not retry the task"
		if errText != nil {
			text += ": " + *errText
		}
	}
	text = cut(text, maxError)
	row.Error, row.Late = &text, row.Late || success
	return btx.UpdateBulkRetryTask(row)
}

// maxError is the longest error text of a task.
const maxError = 1024

// childEnded settles the task of a child. A child whose time was over before anybody took it leaves its task waiting.
func (s *Service) childEnded(tx Tx, cmd agent.Command) error {
	row, err := tx.BulkRetryTaskOf(cmd.No)
	if fault.Is(err, fault.NotFound) || err == nil && row.Status != Issued {
		return nil
	}
	if err != nil {
		return err
	}
	row.Error = cmd.Error
	switch cmd.Status {
	case agent.Completed:
		row.Status = Completed
	case agent.Failed:
		row.Status = Failed
	case agent.Cancelled:
		row.Status = Cancelled
	default:
		row.Status = TimedOut
	}
	b, err := tx.BulkRetryByNo(row.BulkRetryNo)
	if err != nil {
		return err
	}
	if row.Status == TimedOut && cmd.DispatchedAt == nil {
		if row.Status = Cancelled; b.IsOpen {
			row.Status = Waiting
		}
	}
	if err := tx.UpdateBulkRetryTask(row); err != nil {
		return err
	}
	if err := tx.CountBulkRetryTask(row.BulkRetryNo, row.Status); err != nil {
		return err
	}
	no := row.BulkRetryNo
	tx.Hint(func() { s.mark(no) })
	if !b.IsOpen || row.Status == Waiting {
		return nil
	}
	return tx.TouchBulkRetry(b.CommandNo, tx.Now().Add(s.opts.ParentTimeout))
}

// parentEnded closes a bulk retry, however its parent ended: tasks without a child and children that nobody took are
// given up, and the parent's result counts.
func (s *Service) parentEnded(tx Tx, cmd agent.Command) error {
	b, err := tx.BulkRetryOf(cmd.No)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	reason := "never handed to an agent: the bulk retry " + endedAs(cmd.Status)
	if b.IsOpen {
		if err := tx.CloseBulkRetry(b.No, reason); err != nil {
			return err
		}
		issued, err := tx.BulkRetryTasks(b.No, Issued, 0, MaxTasks)
		if err != nil {
			return err
		}
		for _, row := range issued {
			child, err := tx.CommandByNo(row.CommandNo)
			if err != nil {
				return err
			}
			if child.Status != agent.Pending {
				continue
			}
			if err := s.commands.CancelIn(tx, child.No, reason); err != nil {
				return err
			}
		}
	}
	if b, err = tx.BulkRetryByNo(b.No); err != nil {
		return err
	}
	no := b.No
	tx.Hint(func() { s.mark(no) })
	return s.commands.SetResult(tx, cmd, b.result())
}

func endedAs(status agent.Status) string {
	if status == agent.TimedOut {
		return "timed out"
	}
	return "was cancelled"
}
