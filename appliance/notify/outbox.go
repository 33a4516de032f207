package notify

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// List returns a page of the messages of a project, newest first.
func (s *Service) List(ctx context.Context, projectNo int64, f Filter, page agent.Page) (out []Notification, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.NotifyList(projectNo, f, page)
		return err
	})
	return out, err
}

// Get finds a message.
func (s *Service) Get(ctx context.Context, projectNo int64, id uuid.UUID) (n Notification, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		n, err = tx.NotifyByID(projectNo, id)
		return notFound(err)
	})
	return n, err
}

func notFound(err error) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, err, "notification not found")
	}
	return err
}

// Retry has a dead message sent again, under its id and with all its time, and ends the pause of its channel. Conflict when
// it is not dead.
func (s *Service) Retry(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) (n Notification, err error) {
	err = s.st.Update(ctx, "retry notification", func(tx Tx) error {
		var err error
		if n, err = tx.NotifyByID(projectNo, id); err != nil {
			return notFound(err)
		}
		c, err := tx.NotifyChannel(projectNo, n.ChannelID)
		if err != nil {
			return err
		}
		if !c.IsEnabled {
			return fault.New(fault.Conflict, "channel %s is turned off", c.Name)
		}
		ok, err := tx.NotifyRevive(n.No, tx.Now().Add(maxWait))
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.Conflict, "only a dead notification can be sent again; this one is %s", n.State)
		}
		if err := tx.NotifyResume(c.No, true); err != nil { // who asks for it does not want to wait for the next probe
			return err
		}
		tx.Hint(func() { s.hub.Wake(Due{}) })
		if n, err = tx.NotifyByID(projectNo, id); err != nil {
			return err
		}
		return s.record(tx, who, "notification.retried", projectNo, "notification", id, map[string]any{"channel": n.ChannelName})
	})
	return n, err
}

// SendTest sends a real message through a channel, at once and one time, whether the channel is turned on or not. The
// message and what became of it are kept in the outbox. That the receiver refuses is no error of SendTest: State and
// LastError tell.
func (s *Service) SendTest(ctx context.Context, who agent.Principal, p agent.Project, channel uuid.UUID) (Notification, error) {
	c, err := s.Channel(ctx, p.No, channel)
	if err != nil {
		return Notification{}, err
	}
	id, err := newID()
	if err != nil {
		return Notification{}, err
	}
	now := s.opts.Clock.Now()
	n := Notification{ID: id, ProjectNo: p.No, ChannelID: c.ID, ChannelName: c.Name, Trigger: Test, Collected: 1, Attempts: 1}
	b := body{SchemaVersion: 1, ID: id.String(), Type: string(Test), Timestamp: now.UTC(), Collected: 1, FirstAt: now.UTC(),
		Project: bodyRef{p.ID.String(), p.Slug}, LastAt: now.UTC(), Name: c.Name}
	intro := "This is a test of the notification channel " + c.Name + "."
	b.Subject = "[" + p.Slug + "] test of channel " + c.Name
	b.Text = words(intro, &b)
	if n.Subject, n.Body, err = encodeBody(b.Subject, &b); err != nil {
		return Notification{}, err
	}
	settings, err := open(s.box, &c)
	if err == nil {
		err = s.send(ctx, settings, message(id, now, n.Subject, n.Body))
	} else {
		err = &SendError{Msg: unreadable, Permanent: true}
	}
	if err != nil && ctx.Err() != nil {
		return Notification{}, fault.Wrap(fault.Canceled, ctx.Err(), "the test was given up by its caller")
	}
	n.State = Delivered
	name := OutcomeSent
	if err != nil {
		msg := describe(err)
		n.State, n.LastError, name = Dead, &msg, OutcomeDead
	}
	s.opts.Observer.NotificationTried(c.Kind, name)
	err = s.st.Update(context.WithoutCancel(ctx), "notification test", func(tx Tx) error {
		now := tx.Now()
		n.CreatedAt, n.EndedAt = now, &now
		n.ExpiresAt = now
		if err := tx.NotifyInsert(n, 0, c.No); err != nil {
			return err
		}
		if n.State == Delivered { // the receiver is well
			if err := tx.NotifyResume(c.No, true); err != nil {
				return err
			}
			tx.Hint(func() { s.hub.Wake(Due{}) })
		}
		return s.record(tx, who, "notification.channel.tested", p.No, "notification_channel", c.ID,
			map[string]any{"name": c.Name, "state": n.State})
	})
	return n, err
}

// pruneBatch is how many messages one transaction of Prune removes.
const pruneBatch = 500

// Prune removes messages that ended before the time, and returns how many. It also brings forward what a clock that was
// set back would have waited for too long.
func (s *Service) Prune(ctx context.Context, before time.Time) (n int, err error) {
	for {
		var batch int
		err := s.upkeep.Update(ctx, "prune notifications", func(tx Tx) (err error) {
			if n == 0 {
				if err := tx.NotifyBound(tx.Now().Add(2 * maxBackoff)); err != nil {
					return err
				}
			}
			batch, err = tx.NotifyPrune(before, pruneBatch)
			return err
		})
		if err != nil {
			return n, err
		}
		if n += batch; batch < pruneBatch {
			return n, nil
		}
	}
}

// Waiting counts the messages that wait, of all projects.
func (s *Service) Waiting(ctx context.Context) (n int64, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		n, err = tx.NotifyPendingCount()
		return err
	})
	return n, err
}
