package agent

import (
	"context"
	"fmt"
	"time"

	"signalbox/appliance/fault"
)

// ClaimRequest is what one session may take.
type ClaimRequest struct {
	Limit        int      // most commands
	RetryEngines []string // engines whose retry contract it states; nil withholds the retry family
	// Redispatch also hands over again what was possibly lost (agent protocol F.6): long-poll only.
	Redispatch bool
	// Stop, when closed, ends the claiming: a session that is no longer valid takes nothing more. nil never stops.
	Stop <-chan struct{}
}

func (r *ClaimRequest) stopped() bool {
	select {
	case <-r.Stop:
		return true
	default:
		return false
	}
}

// ClaimResult is what a session took.
type ClaimResult struct {
	Claimed []Claimed // durable; sign and send every one
	// Revoked and Archived tell that the agent is no longer valid. Beside claims they mean that it became so after the
	// last of them: what was claimed is still to be delivered.
	Revoked, Archived bool
	// NextDue is when the next redispatch of this agent becomes eligible; nil when nothing will by time alone. A parked
	// poll waits for AgentKey and for this, and need not look in between. Only set when nothing was claimed.
	NextDue *time.Time
}

// maxClaimBytes bounds the payloads of one call, so that a session with a long queue costs bounded memory: the call stops
// after the command that passes it.
const maxClaimBytes = 8 << 20

// claimRounds bounds how often a pass that lost every row to others looks again.
const claimRounds = 3

// ClaimPending takes commands for a session, in the order of issue (agent protocol E.3, E.6, F.6), possibly fewer than
// are there: a session that means to drain its queue calls until nothing is claimed. Each claim is durable, with its
// ledger row, before it is returned. Over long-poll every claim is a transaction of its own that looks at the agent
// first; over WebSocket all are one transaction. When nothing is there it writes nothing.
//
// After an error nothing beside the returned claims was taken; over long-poll these are valid and must be delivered.
func (c *Commands) ClaimPending(ctx context.Context, p Peer, r ClaimRequest) (ClaimResult, error) {
	var res ClaimResult
	c.flight.claims.RLock()
	defer c.flight.claims.RUnlock()
	if r.Limit <= 0 || c.flight.quiet {
		return res, nil
	}
	for range claimRounds {
		rows, err := c.deliverable(ctx, p, r, &res)
		if err != nil || len(rows) == 0 || res.Revoked || res.Archived {
			return res, err
		}
		if p.Transport == LongPoll {
			err = c.claimEach(ctx, p, r, rows, &res)
		} else {
			err = c.claimAll(ctx, p, rows, &res)
		}
		if err != nil || len(res.Claimed) > 0 || res.Revoked || res.Archived {
			return res, err
		}
	}
	// Others took every row, round after round. There may be more: look again without waiting for a hint.
	if r.Redispatch {
		now := c.opts.Clock.Now()
		res.NextDue = &now
	}
	return res, nil
}

// deliverable looks, on a snapshot, for what may be claimed, and sets Revoked, Archived and NextDue.
func (c *Commands) deliverable(ctx context.Context, p Peer, r ClaimRequest, res *ClaimResult) (rows []DeliverableRow, err error) {
	res.NextDue = nil
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		res.Revoked, res.Archived, err = tx.CommandAgentAlive(p.AgentNo)
		if err != nil || res.Revoked || res.Archived {
			return err
		}
		now := tx.Now()
		q := Deliverable{AgentNo: p.AgentNo, RetryEngines: r.RetryEngines, Limit: r.Limit, Redispatch: r.Redispatch,
			SentAfter: now.Add(-c.opts.RedispatchWindow), SentUpTo: now.Add(-c.opts.RedispatchMinInterval)}
		if rows, err = tx.CommandsDeliverable(q); err != nil || len(rows) > 0 || !r.Redispatch {
			return err
		}
		last, err := tx.CommandNextDispatchedAt(p.AgentNo, q.SentUpTo, c.opts.RedispatchMinInterval)
		if err != nil {
			return err
		}
		if !last.IsZero() {
			due := last.Add(c.opts.RedispatchMinInterval)
			res.NextDue = &due
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for commands of agent %s: %w", p.AgentID, err)
	}
	return rows, nil
}

// claimEach claims one row per transaction and stops where the agent is found revoked.
func (c *Commands) claimEach(ctx context.Context, p Peer, r ClaimRequest, rows []DeliverableRow, res *ClaimResult) error {
	bytes := 0
	for _, row := range rows {
		if r.stopped() {
			return nil
		}
		var cl Claimed
		var ok bool
		err := c.st.Update(ctx, "claim command", func(tx CommandTx) (err error) {
			ok = false
			res.Revoked, res.Archived, err = tx.CommandAgentAlive(p.AgentNo)
			if err != nil || res.Revoked || res.Archived {
				return err
			}
			cl, ok, err = c.claim(tx, p, row.CommandNo)
			return err
		})
		if err != nil {
			return fmt.Errorf("claim command %d: %w", row.CommandNo, err)
		}
		if res.Revoked || res.Archived {
			return nil
		}
		if !ok {
			continue
		}
		res.Claimed = append(res.Claimed, cl)
		if bytes += len(cl.Command.Payload); bytes > maxClaimBytes {
			return nil
		}
	}
	return nil
}

// claimAll claims every row in one transaction.
func (c *Commands) claimAll(ctx context.Context, p Peer, rows []DeliverableRow, res *ClaimResult) error {
	var taken []Claimed
	err := c.st.Update(ctx, "claim commands", func(tx CommandTx) (err error) {
		taken = taken[:0]
		bytes := 0
		res.Revoked, res.Archived, err = tx.CommandAgentAlive(p.AgentNo)
		if err != nil || res.Revoked || res.Archived {
			return err
		}
		for _, row := range rows {
			cl, ok, err := c.claim(tx, p, row.CommandNo)
			if err != nil {
				return fmt.Errorf("claim command %d: %w", row.CommandNo, err)
			}
			if !ok {
				continue
			}
			taken = append(taken, cl)
			if bytes += len(cl.Command.Payload); bytes > maxClaimBytes {
				break
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	res.Claimed = append(res.Claimed, taken...)
	return nil
}

// claim hands one command to the peer: row, ledger, timeline. ok is false when somebody else was faster or it is not
// eligible any more.
func (c *Commands) claim(tx CommandTx, p Peer, no int64) (cl Claimed, ok bool, err error) {
	cmd, err := tx.CommandByNo(no)
	if fault.Is(err, fault.NotFound) {
		return Claimed{}, false, nil
	}
	if err != nil {
		return Claimed{}, false, err
	}
	now := tx.Now()
	event := EventClaimed
	var next Command
	if cmd.Status == Pending {
		next, err = cmd.Claim(now, c.opts.Timeout)
	} else {
		event = EventRedelivered
		next, err = cmd.Redispatch(now, c.opts.RedispatchWindow, c.opts.RedispatchMinInterval)
	}
	if err != nil { // lost to another session, or ended meanwhile
		return Claimed{}, false, nil
	}
	delivery, err := tx.InsertDelivery(Delivery{CommandNo: no, Transport: p.Transport, Session: p.Session,
		Worker: p.Worker, ClaimedAt: now, Outcome: DeliveryInFlight})
	if err != nil {
		return Claimed{}, false, err
	}
	detail := p.describe()
	if err := c.put(tx, cmd, next, event, &detail); err != nil {
		return Claimed{}, false, err
	}
	transport := p.Transport
	once := transport == WebSocket && !Redeliverable(cmd.Action)
	tx.AfterCommit(func() {
		if once {
			c.flight.add(p.AgentNo, no)
		}
		c.opts.Observer.CommandClaimed(transport, event == EventRedelivered)
	})
	return Claimed{Command: next, DeliveryNo: delivery, TimeoutSeconds: c.FrameTimeoutSeconds()}, true, nil
}

// describe names the session for the timeline.
func (p Peer) describe() string {
	s := string(p.Transport) + " session " + shorten(p.Session)
	if p.Worker != "" {
		s += ", worker " + shorten(p.Worker)
	}
	return s
}

// shorten keeps what strangers named short enough for a sentence.
func shorten(s string) string {
	if s == "" {
		return "without a name"
	}
	if cut := cutRunes(s, 60); cut != s {
		return cut + "…"
	}
	return s
}

// MarkSent records that the frames of these deliveries were given to the socket or the response.
func (c *Commands) MarkSent(ctx context.Context, deliveries ...int64) error {
	if len(deliveries) == 0 {
		return nil
	}
	return c.st.Update(ctx, "mark deliveries sent", func(tx CommandTx) error {
		for _, no := range deliveries {
			if err := tx.MarkDeliverySent(no, tx.Now()); err != nil {
				return fmt.Errorf("mark delivery %d sent: %w", no, err)
			}
		}
		return nil
	})
}

// SendFailed records that the frame of a claim could not be sent (agent protocol E.6). A redeliverable command that has
// not moved on meanwhile goes back to pending and wakes the agent's sessions; any other stays dispatched until its
// result or its deadline. reason is for people.
func (c *Commands) SendFailed(ctx context.Context, cl Claimed, reason string) error {
	reason = cutRunes(reason, maxErrorRunes)
	c.flight.remove(cl.Command.AgentNo, cl.Command.No) // nobody can answer it
	err := c.st.Update(ctx, "record a failed send", func(tx CommandTx) error {
		open, err := tx.FinishDelivery(cl.DeliveryNo, tx.Now(), DeliverySendFailed, &reason)
		if err != nil || !Redeliverable(cl.Command.Action) {
			return err
		}
		cmd, err := tx.CommandByNo(cl.Command.No)
		if err != nil {
			return err
		}
		// The deadline may have passed while the send was failing: that attempt is still the last one.
		if !open && cmd.Status != TimedOut {
			return nil
		}
		if !sameHandOver(cmd, cl.Command) || cmd.AckedAt != nil { // acked: the frame arrived after all
			return nil
		}
		next, err := cmd.Revert(tx.Now(), c.opts.Timeout)
		if err != nil {
			return nil // it ended meanwhile
		}
		return c.put(tx, cmd, next, EventReverted, &reason)
	})
	if err != nil {
		return fmt.Errorf("record failed send of command %s: %w", cl.Command.ID, err)
	}
	return nil
}

// SignFailed ends a claimed command whose frame could not be signed (agent protocol F.6).
func (c *Commands) SignFailed(ctx context.Context, cl Claimed) error {
	err := c.st.Update(ctx, "record a failed signature", func(tx CommandTx) error {
		cmd, err := tx.CommandByNo(cl.Command.No)
		if err != nil {
			return err
		}
		reason, err := signFailure(tx, cl)
		if err != nil {
			return err
		}
		open, err := tx.FinishDelivery(cl.DeliveryNo, tx.Now(), DeliverySignFailed, &reason)
		if err != nil || !open || !sameHandOver(cmd, cl.Command) {
			return err
		}
		next, err := cmd.Fail(&reason, nil, tx.Now())
		if err != nil {
			return nil // it ended meanwhile
		}
		return c.finish(tx, cmd, next, DeliverySignFailed, &reason)
	})
	if err != nil {
		return fmt.Errorf("record failed signature of command %s: %w", cl.Command.ID, err)
	}
	return nil
}

// signFailure is the error text of a command whose frame could not be signed: "longpoll sign failed" on that transport
// (agent protocol F.6).
func signFailure(tx CommandTx, cl Claimed) (string, error) {
	ledger, err := tx.CommandDeliveries(cl.Command.No)
	if err != nil {
		return "", err
	}
	for _, d := range ledger {
		if d.No == cl.DeliveryNo {
			return string(d.Transport) + " sign failed", nil
		}
	}
	return string(LongPoll) + " sign failed", nil
}

// sameHandOver tells whether the stored command still stands where the claim left it.
func sameHandOver(stored, claimed Command) bool {
	return stored.DispatchedAt != nil && claimed.DispatchedAt != nil && stored.DispatchedAt.Equal(*claimed.DispatchedAt)
}
