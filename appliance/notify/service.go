package notify

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
)

// Sender delivers messages. Send blocks until the message is accepted, refused, or ctx ends; its error is a *SendError or
// says nothing that must stay hidden.
type Sender interface {
	// Check refuses settings that could never send, naming the field; it sends nothing.
	Check(Settings) error
	Send(ctx context.Context, s Settings, m Message) error
}

// SendError is why a message was not accepted. Msg holds no secret: it is stored and shown.
type SendError struct {
	Msg        string
	Permanent  bool          // trying again would fail again
	RetryAfter time.Duration // what the receiver asked for; 0: nothing
}

func (e *SendError) Error() string { return e.Msg }

// Observer is told what was sent, for metrics and logs. Its methods must not block.
type Observer interface {
	// NotificationTried follows an attempt: sent, failed (to be tried again) or dead.
	NotificationTried(kind Kind, outcome string)
	// NotifyTrouble reports work that failed and is tried again.
	NotifyTrouble(what string, err error)
}

// The outcomes of an attempt.
const (
	OutcomeSent   = "sent"
	OutcomeFailed = "failed"
	OutcomeDead   = "dead"
)

// Options are the settings of a Service.
type Options struct {
	Grace       time.Duration  // how long an agent must be offline before it is told; 0 tells at once
	SendTimeout time.Duration  // of one attempt; 0 is 10 s
	Parallel    int            // most attempts at once, one for each channel; 0 is 64
	Clock       clock.Clock    // nil: the system's
	Observer    Observer       // nil: none
	Jitter      func() float64 // 0..1; nil is random
}

// Service keeps channels, rules and the outbox of all projects. Safe for concurrent use.
type Service struct {
	st     Store
	upkeep Store
	sender Sender
	box    *secret.Sealer
	log    *audit.Log
	hub    *wake.Hub
	opts   Options
	index  index
	start  time.Time
	direct directSends
}

// New makes a Service. Start must be called before the first Collect. upkeep runs retention.
func New(st, upkeep Store, sender Sender, box *secret.Sealer, log *audit.Log, hub *wake.Hub, o Options) *Service {
	if o.SendTimeout <= 0 {
		o.SendTimeout = 10 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 64
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Jitter == nil {
		o.Jitter = randomJitter
	}
	return &Service{st: st, upkeep: upkeep, sender: sender, box: box, log: log, hub: hub, opts: o, start: o.Clock.Now()}
}

// resealBatch is how many channels one transaction of Start looks at.
const resealBatch = 100

// Start reads the rules, and seals again what was sealed under a previous master secret, so that the previous one can be
// dropped from the configuration afterwards. unreadable is how many channels no known secret opens.
func (s *Service) Start(ctx context.Context) (resealed, unreadable int, err error) {
	for after := int64(0); ; {
		var batch []Channel
		err := s.st.View(ctx, func(tx ReadTx) (err error) {
			batch, err = tx.NotifyChannelsAfter(after, resealBatch)
			return err
		})
		if err != nil || len(batch) == 0 {
			if err != nil {
				return 0, 0, err
			}
			break
		}
		after = batch[len(batch)-1].No
		var again []Channel
		for _, c := range batch {
			text, current, err := s.box.Open(c.Sealed, c.ID[:])
			switch {
			case err != nil:
				unreadable++
			case !current:
				c.Sealed = s.box.Seal(text, c.ID[:])
				again = append(again, c)
			}
		}
		if len(again) == 0 {
			continue
		}
		resealed += len(again)
		err = s.st.Update(ctx, "seal channels again", func(tx Tx) error {
			for _, c := range again {
				if err := tx.NotifyUpdateChannel(c); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, 0, err
		}
	}
	err = s.st.View(ctx, func(tx ReadTx) error {
		rows, err := tx.NotifyIndex()
		if err == nil {
			s.index.set(rows)
		}
		return err
	})
	return resealed, unreadable, err
}

// reindex has the index follow what the transaction wrote, once it is durable and in the order of commits. When nobody knows
// whether it is, the index is in doubt until the dispatcher has read the rules again.
func (s *Service) reindex(tx Tx) error {
	rows, err := tx.NotifyIndex()
	if err != nil {
		return err
	}
	tx.Hint(s.index.doubt)
	tx.AfterCommit(func() { s.index.set(rows) })
	tx.Hint(s.wakeDue)
	return nil
}

// ProjectChanged follows a project that was renamed, archived or activated, inside the transaction that does it. What an
// archived one has collected is forgotten and what waits is given up; nothing is told of it from then on.
func (s *Service) ProjectChanged(tx Tx, p agent.Project) error {
	if !p.IsActive {
		if err := tx.NotifySilence(p.No, "the project was archived"); err != nil {
			return err
		}
	}
	return s.reindex(tx)
}

// record appends an audit row of what a principal did.
func (s *Service) record(tx Tx, who agent.Principal, action string, projectNo int64, targetType string, target uuid.UUID,
	metadata map[string]any) error {
	meta, err := json.Marshal(metadata)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode audit metadata of %s", action)
	}
	id := target.String()
	return s.log.Append(tx, audit.Entry{ProjectNo: projectNo, UserID: orNil(who.ID), Action: action, TargetType: targetType,
		TargetID: &id, Result: audit.Success, Outcome: audit.Allow, Metadata: meta, SourceIP: orNil(who.SourceIP),
		UserAgent: orNil(who.UserAgent)})
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

type noObserver struct{}

func (noObserver) NotificationTried(Kind, string) {}
func (noObserver) NotifyTrouble(string, error)    {}
