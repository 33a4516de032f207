package notify

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// The names of troubles of the appliance, which patterns of rules about system_trouble are held against.
const (
	TroubleDisk     = "disk"     // space runs out
	TroubleDatabase = "database" // writes fail
	TroubleDamage   = "damage"   // the database is damaged or its disk fails; the appliance stops
)

// Probe tells whether the appliance is in one kind of trouble.
type Probe struct {
	Name  string
	Check func() (trouble string) // a sentence; "" when all is well. It must not block for long
}

const (
	probeEvery = 5 * time.Second
	// probeTwice is how many looks in a row must find the trouble: one failed write that the next one makes good is none.
	probeTwice = 2
	// troubleWrite is how long collecting a trouble waits for the database before it is told directly.
	troubleWrite = 3 * time.Second
	// directTries and directPause are the persistence of messages that the outbox cannot hold.
	directTries = 3
	directPause = 5 * time.Second
)

// WatchTrouble looks at the probes until ctx ends and collects each trouble once while it lasts, for every project that
// has a rule about it. When the database takes no write, the message is sent directly: there is no outbox then.
func (s *Service) WatchTrouble(ctx context.Context, probes []Probe) error {
	seen := make([]int, len(probes))
	timer := s.opts.Clock.NewTimer(probeEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
		for i, p := range probes {
			text := p.Check()
			if text == "" {
				seen[i] = 0
				continue
			}
			if seen[i]++; seen[i] == probeTwice {
				s.Trouble(ctx, p.Name, text)
			}
		}
		timer.Reset(probeEvery)
	}
}

// Trouble tells of a trouble of the appliance: through the outbox, or directly when the database takes no write.
func (s *Service) Trouble(ctx context.Context, name, text string) {
	write, cancel := context.WithTimeout(ctx, troubleWrite)
	defer cancel()
	if err := s.follow(write); err != nil { // what is in memory is better than nothing
		s.opts.Observer.NotifyTrouble("read the rules again", err)
	}
	rules := s.index.troubles()
	if len(rules) == 0 {
		return
	}
	at := s.opts.Clock.Now()
	projects := map[int64]bool{}
	for _, r := range rules {
		projects[r.ProjectNo] = true
	}
	err := s.st.Update(write, "system trouble", func(tx Tx) error {
		for no := range projects {
			if err := s.Collect(tx, troubleOf(no, name, text, at)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.opts.Observer.NotifyTrouble("collect a trouble", err)
		s.Direct(name, text)
	}
}

func troubleOf(projectNo int64, name, text string, at time.Time) Occurrence {
	titles := map[string]string{TroubleDisk: "disk space runs out", TroubleDatabase: "the database takes no writes",
		TroubleDamage: "the database is damaged; the appliance stops"}
	return Occurrence{ProjectNo: projectNo, Trigger: SystemTrouble, Name: name, GroupKey: name, Title: "Signalbox: " + titles[name],
		Detail: text, At: at, Links: map[string]string{"trouble": name}}
}

// directSends are the messages that are sent without the outbox.
type directSends struct {
	wg sync.WaitGroup
}

// Direct sends a trouble from memory to the channels of every rule that it fits, in the background, a few times at most:
// nothing of it is stored. It does not block. WaitDirect waits for it.
func (s *Service) Direct(name, text string) {
	at := s.opts.Clock.Now()
	for _, r := range s.index.troubles() {
		if !matches(r.Pattern, name) {
			continue
		}
		o := troubleOf(r.ProjectNo, name, text, at)
		for _, c := range r.Channels {
			s.direct.wg.Go(func() { s.sendDirect(&r, &c, &o) })
		}
	}
}

func (s *Service) sendDirect(r *IndexRow, c *Channel, o *Occurrence) {
	settings, err := open(s.box, c)
	if err != nil {
		return
	}
	id, err := newID()
	if err != nil {
		return
	}
	text, err := o.sample()
	if err != nil {
		return
	}
	g := Group{RuleName: r.RuleName, RuleID: r.RuleID, ProjectID: r.ProjectID, ProjectSlug: r.ProjectSlug, Trigger: o.Trigger,
		Key: o.key(), Collected: 1, FirstAt: o.At, LastAt: o.At, Sample: text}
	subject, content, err := compose(&g, id, o.At)
	if err != nil {
		return
	}
	for try := 1; ; try++ {
		err := s.send(context.Background(), settings, message(id, o.At, subject, content))
		if err == nil {
			s.opts.Observer.NotificationTried(c.Kind, OutcomeSent)
			return
		}
		s.opts.Observer.NotifyTrouble("send a trouble directly", fmt.Errorf("channel %s: %s", c.Name, describe(err)))
		if try == directTries {
			s.opts.Observer.NotificationTried(c.Kind, OutcomeDead)
			return
		}
		s.opts.Observer.NotificationTried(c.Kind, OutcomeFailed)
		t := s.opts.Clock.NewTimer(directPause)
		<-t.C()
	}
}

// WaitDirect waits until what Direct has begun is done, or ctx ends. Nothing may call Direct meanwhile.
func (s *Service) WaitDirect(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.direct.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
