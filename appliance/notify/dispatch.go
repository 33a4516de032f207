package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"signalbox/appliance/fault"
)

const (
	// maxPending is how many messages wait for one channel; what comes after them is dead at once.
	maxPending = 1000
	groupBatch = 50 // groups of one transaction
	// storePause is how soon the dispatcher tries the database again after trouble, doubling up to maxStorePause.
	storePause    = time.Second
	maxStorePause = 30 * time.Second
	maxError      = 500
)

// dispatcher is the state of one Run.
type dispatcher struct {
	*Service
	busy  map[int64]bool // channels with an attempt under way; only the loop touches it
	turn  int64
	last  map[int64]int64 // the turn of a due channel's latest attempt
	freed chan int64
	wg    sync.WaitGroup
}

// Run speaks for due groups and sends due messages until ctx ends: it sleeps until the earliest of them is due, and wakes
// when an earlier one was committed. One attempt of each channel goes on at a time, so that a receiver that stalls delays
// nobody else, and a channel that fails is tried with one message now and then while the others wait. An attempt that ctx
// cuts short counts for nothing: the next start makes it again.
func (s *Service) Run(ctx context.Context) error {
	d := &dispatcher{Service: s, busy: map[int64]bool{}, last: map[int64]int64{}, freed: make(chan int64)}
	watch := s.hub.Watch(Due{})
	defer watch.Stop()
	timer := s.opts.Clock.NewTimer(0)
	defer timer.Stop()
	defer d.wg.Wait()
	pause := storePause
	for {
		select {
		case <-timer.C():
		case <-watch.C():
		case no := <-d.freed:
			delete(d.busy, no)
		case <-ctx.Done():
			return nil
		}
		next, err := d.step(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			s.opts.Observer.NotifyTrouble("dispatch", err)
			timer.Reset(pause)
			pause = min(2*pause, maxStorePause)
			continue
		case next.IsZero():
			timer.Stop()
		default:
			timer.ResetAt(next)
		}
		pause = storePause
	}
}

// step does what is due and returns when something is due next; the zero time when nothing is.
func (d *dispatcher) step(ctx context.Context) (next time.Time, err error) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if err := d.follow(ctx); err != nil {
		return next, err
	}
	group, err := d.speak(ctx)
	if err != nil {
		return next, err
	}
	earlier(group)
	var due []ChannelDue
	var now time.Time
	err = d.st.View(ctx, func(tx ReadTx) (err error) {
		now = tx.Now()
		due, err = tx.NotifyDueChannels()
		return err
	})
	if err != nil {
		return next, err
	}
	d.inTurn(due)
	for _, c := range due {
		switch {
		case d.busy[c.ChannelNo] || len(d.busy) >= d.opts.Parallel: // looked at again when one is free
		case c.at().After(now):
			earlier(c.at())
		default:
			if err := d.launch(ctx, c.ChannelNo); err != nil {
				return next, err
			}
		}
	}
	return next, nil
}

// inTurn puts the channel first whose latest attempt is the longest ago: however many receivers stall, with however much
// that waits for them, the others have their turn.
func (d *dispatcher) inTurn(due []ChannelDue) {
	last := make(map[int64]int64, len(due))
	for _, c := range due {
		last[c.ChannelNo] = d.last[c.ChannelNo]
	}
	d.last = last
	slices.SortStableFunc(due, func(a, b ChannelDue) int { return cmp.Compare(last[a.ChannelNo], last[b.ChannelNo]) })
}

// speak turns due groups into messages and returns when the next group is due.
func (s *Service) speak(ctx context.Context) (next time.Time, err error) {
	for {
		var now time.Time
		err := s.st.View(ctx, func(tx ReadTx) (err error) {
			now = tx.Now()
			next, err = tx.NotifyNextGroup()
			return err
		})
		if err != nil || next.IsZero() || next.After(now) {
			return next, err
		}
		if err := s.st.Update(ctx, "notifications", s.speakBatch); err != nil {
			return next, err
		}
	}
}

func (s *Service) speakBatch(tx Tx) error {
	groups, err := tx.NotifyDueGroups(tx.Now(), groupBatch)
	if err != nil {
		return err
	}
	for i := range groups {
		g := &groups[i]
		if g.Collected == 0 { // silent for the whole time: what comes now is new
			if err := tx.NotifyForgetGroup(g.RuleNo, g.Key); err != nil {
				return err
			}
			continue
		}
		if err := s.enqueue(tx, g); err != nil {
			return err
		}
		if err := tx.NotifyGroupTold(g.RuleNo, g.Key, tx.Now().Add(g.Silence)); err != nil {
			return err
		}
	}
	return nil
}

// enqueue puts one message for each channel of the group's rule into the outbox.
func (s *Service) enqueue(tx Tx, g *Group) error {
	channels, err := tx.NotifyRuleChannels(g.RuleNo)
	if err != nil {
		return err
	}
	for _, no := range channels {
		id, err := newID()
		if err != nil {
			return err
		}
		n := Notification{ID: id, ProjectNo: g.ProjectNo, Trigger: g.Trigger, Collected: g.Collected, State: Pending, CreatedAt: tx.Now(),
			ExpiresAt: tx.Now().Add(maxWait)}
		if n.Subject, n.Body, err = compose(g, id, tx.Now()); err != nil {
			return err
		}
		waiting, err := tx.NotifyPendingOf(no)
		if err != nil {
			return err
		}
		if now := tx.Now(); waiting >= maxPending {
			reason := fmt.Sprintf("not sent: %d messages wait for this channel already", waiting)
			n.State, n.EndedAt, n.LastError = Dead, &now, &reason
		} else {
			n.NextAttemptAt = &now
		}
		if err := tx.NotifyInsert(n, g.RuleNo, no); err != nil {
			return err
		}
	}
	return nil
}

// launch begins the attempt of the channel's first message.
func (d *dispatcher) launch(ctx context.Context, channelNo int64) error {
	var out Outgoing
	err := d.st.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.NotifyNextOf(channelNo)
		return err
	})
	if fault.Is(err, fault.NotFound) { // gone between two looks
		return nil
	}
	if err != nil {
		return err
	}
	d.busy[channelNo] = true
	d.turn++
	d.last[channelNo] = d.turn
	d.wg.Go(func() {
		d.attempt(ctx, &out)
		select {
		case d.freed <- channelNo:
		case <-ctx.Done():
		}
	})
	return nil
}

// attempt sends one message and records what became of it.
func (s *Service) attempt(ctx context.Context, out *Outgoing) {
	settings, err := open(s.box, &out.Channel)
	if err == nil {
		err = s.send(ctx, settings, message(out.ID, out.CreatedAt, out.Subject, out.Body))
	} else {
		err = &SendError{Msg: unreadable, Permanent: true}
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	outcome := s.judge(out, err)
	s.opts.Observer.NotificationTried(out.Channel.Kind, outcome.name)
	s.keep(ctx, func(tx Tx) error { return outcome.record(tx, out) })
}

const unreadable = "the settings of this channel cannot be opened under the present master secret: set them again"

// send makes one attempt within its time. A panic of a sender is an error like another.
func (s *Service) send(ctx context.Context, settings Settings, m Message) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.SendTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = &SendError{Msg: "the message could not be sent: internal error"}
		}
	}()
	return s.sender.Send(ctx, settings, m)
}

// describe is what is stored and shown of an error: that of a SendError only, for others may tell too much.
func describe(err error) string {
	var e *SendError
	switch {
	case errors.As(err, &e):
		return cut(oneLine(e.Msg), maxError)
	case errors.Is(err, context.DeadlineExceeded):
		return "the receiver did not answer in time"
	}
	return "the message could not be sent"
}

// keep writes an outcome down, again and again while the database is in trouble: a message whose attempt is not recorded
// would be sent again at once. When ctx ends it gives the write a moment more.
func (s *Service) keep(ctx context.Context, fn func(Tx) error) {
	for pause := storePause; ; pause = min(2*pause, maxStorePause) {
		write, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxStorePause)
		err := s.st.Update(write, "notification attempt", fn)
		cancel()
		if err == nil || fault.Is(err, fault.NotFound) || ctx.Err() != nil {
			return
		}
		s.opts.Observer.NotifyTrouble("record an attempt", err)
		t := s.opts.Clock.NewTimer(pause)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
		}
	}
}
