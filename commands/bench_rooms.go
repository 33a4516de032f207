package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// benchRooms are the settings of `bench rooms`.
type benchRooms struct {
	senders, rooms, receivers int
	sse                       bool
	duration                  time.Duration
	rate                      float64
	size                      int
	storms, behind            int
	url                       string
}

const (
	// benchFounders is how many agents a room may begin with, and benchInvited how many are asked in afterwards, for each of
	// whom all others get an event.
	benchFounders = 5000
	benchInvited  = 200
	// maxBenchBehind keeps storms within what a server retains for an agent by default.
	maxBenchBehind = 1900
)

func newBenchRoomsCommand(opts *options) *cobra.Command {
	var b benchRooms
	cmd := &cobra.Command{
		Use:   "rooms",
		Short: "Connect agents to rooms, post, and report deliveries, latencies and resume storms",
		Long: `Connect receivers to rooms, over WebSocket or as Server-Sent Events, and have senders post to them. First the senders post
for --duration, each its next message when the last was acknowledged, or all together at --rate; a post counts when it
was acknowledged, which is after it was committed together with the events of all its receivers. Senders wait while a
room's receivers are 500 posts behind on average, so the rate of posts is one that the receivers can follow.

Then come --resume-storms: all receivers drop their connections, --behind posts are made in each room, and all come back
at once with their cursors. The time is that until the last of them has all it missed.

Senders and receivers are registered for the run as open room agents, spread evenly over new rooms; rooms and agents are
deleted at the end, also after an interrupt. A gap, or a message that is missing, twice or out of order, makes the
command fail. The load comes from this process: on the server's own machine it takes its share of the processor.`,
		Example: `  signalbox bench rooms --receivers 100 --duration 30s
  signalbox bench rooms --senders 1 --receivers 5000 --rate 5 --resume-storms 3
  signalbox bench rooms --senders 20 --rooms 10 --receivers 200 --sse --json
  signalbox bench rooms --server https://signalbox.example.com --api-key-file admin.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), opts) },
	}
	f := cmd.Flags()
	f.IntVar(&b.senders, "senders", 4, "agents that post; at least one for each room")
	f.IntVar(&b.rooms, "rooms", 1, "rooms to make")
	f.IntVar(&b.receivers, "receivers", 100, "agents that are connected, in all rooms together")
	f.BoolVar(&b.sse, "sse", false, "receive Server-Sent Events instead of over WebSocket")
	durationVar(f, &b.duration, "duration", 10*time.Second, "how long to post; 0 skips it")
	f.Float64Var(&b.rate, "rate", 0, "posts a second, of all senders together; 0: as fast as they are acknowledged")
	f.IntVar(&b.size, "size", 100, "bytes of a message, about")
	f.IntVar(&b.storms, "resume-storms", 0, "how often all receivers drop and come back")
	f.IntVar(&b.behind, "behind", 100, "posts in each room that a storm's receivers come back to")
	f.StringVar(&b.url, "agent-url", "", "base URL for the agents, when it differs from the server's own")
	return cmd
}

func (b *benchRooms) check() error {
	switch {
	case b.rooms < 1 || b.rooms > 1000:
		return usagef("--rooms: must be 1 to 1000, got %d", b.rooms)
	case b.senders < b.rooms || b.senders > 1000:
		return usagef("--senders: must be one for each room and at most 1000, got %d", b.senders)
	case b.receivers < 0 || b.receivers > 10000:
		return usagef("--receivers: must be 0 to 10000, got %d", b.receivers)
	case share(b.receivers, b.rooms)+share(b.senders, b.rooms) > benchFounders+benchInvited:
		return usagef("--rooms: a room gets at most %d agents, and these would have more; name more rooms", benchFounders+benchInvited)
	case b.duration < 0:
		return usagef("--duration: must not be negative")
	case b.rate < 0:
		return usagef("--rate: must not be negative")
	case b.size < 1 || b.size > 16<<10:
		return usagef("--size: must be 1 to 16384, got %d", b.size)
	case b.storms < 0 || b.storms > 100:
		return usagef("--resume-storms: must be 0 to 100, got %d", b.storms)
	case b.storms > 0 && b.receivers == 0:
		return usagef("--resume-storms: needs --receivers")
	case b.behind < 0 || b.behind > maxBenchBehind:
		return usagef("--behind: must be 0 to %d, got %d", maxBenchBehind, b.behind)
	}
	return nil
}

// share is the most that one of parts gets of n things.
func share(n, parts int) int { return (n + parts - 1) / parts }

func (b *benchRooms) transport() string {
	if b.sse {
		return "sse"
	}
	return "ws"
}

func (b *benchRooms) run(ctx context.Context, opts *options) (err error) {
	if err := b.check(); err != nil {
		return err
	}
	opts.out.say("registering %d agents", b.senders+b.receivers)
	pool, err := b.openPool(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		opts.out.say("deleting the rooms and agents of this run")
		err = errors.Join(err, pool.close())
	}()
	l := newRoomLoad(b, opts, pool)
	defer l.stop()
	opts.out.say("%d receivers over %s in %d rooms, %d senders, at %s", b.receivers, b.transport(), b.rooms, b.senders, pool.endpoint)
	if err := l.connect(ctx); err != nil {
		return err
	}
	report := roomsReport{}
	if b.duration > 0 {
		if report.load, err = l.post(ctx); err != nil {
			return err
		}
	}
	for i := range b.storms {
		if l.missing() > 0 {
			break // they would not come back to what they left
		}
		s, err := l.storm(ctx)
		if err != nil {
			return fmt.Errorf("resume storm %d: %w", i+1, err)
		}
		report.storms = append(report.storms, s)
	}
	report.trouble = l.trouble()
	if err := opts.showRoomsReport(b, &report); err != nil {
		return err
	}
	return report.trouble.err()
}

// roomsReport is what a run measured.
type roomsReport struct {
	load    *roomLoadResult
	storms  []stormResult
	trouble roomTrouble
}

// roomLoadResult is what the senders and receivers measured.
type roomLoadResult struct {
	Posts struct {
		Stored    int64     `json:"stored"`
		Seconds   float64   `json:"seconds"`
		PerSecond float64   `json:"per_second"`
		ToAck     quantiles `json:"post_to_ack"`
	} `json:"posts"`
	Deliveries struct {
		Received  int64     `json:"received"`
		Seconds   float64   `json:"seconds"`
		PerSecond float64   `json:"per_second"`
		ToReceipt quantiles `json:"post_to_receipt"`
	} `json:"deliveries"`
}

// stormResult is one storm: from the first that comes back until the last has all it missed.
type stormResult struct {
	Receivers int       `json:"receivers"`
	Received  int64     `json:"received"`
	Seconds   float64   `json:"seconds"`
	PerSecond float64   `json:"per_second"`
	Each      quantiles `json:"dial_to_caught_up"`
}

// roomTrouble counts what must not happen.
type roomTrouble struct {
	Gaps       int64 `json:"gaps"`
	Missing    int64 `json:"missing"`
	OutOfOrder int64 `json:"out_of_order"`
	// Broken streams are no fault of delivery: their clients came back for the rest.
	Broken int64 `json:"broken_streams"`
}

func (t roomTrouble) err() error {
	if t.Gaps+t.Missing+t.OutOfOrder == 0 {
		return nil
	}
	return exitf(ExitFailed, "%d gaps, %d deliveries missing, %d out of order", t.Gaps, t.Missing, t.OutOfOrder)
}

func (o *options) showRoomsReport(b *benchRooms, r *roomsReport) error {
	if o.json {
		fields := []field{{"senders", b.senders}, {"rooms", b.rooms}, {"receivers", b.receivers}, {"transport", b.transport()}}
		if r.load != nil {
			fields = append(fields, field{"posts", r.load.Posts}, field{"deliveries", r.load.Deliveries})
		}
		return o.out.document(append(fields, field{"resume_storms", nonNil(r.storms)}, field{"gaps", r.trouble.Gaps},
			field{"missing", r.trouble.Missing}, field{"out_of_order", r.trouble.OutOfOrder},
			field{"broken_streams", r.trouble.Broken})...)
	}
	if r.load != nil {
		p, d := &r.load.Posts, &r.load.Deliveries
		o.out.text("posts stored     %d in %.1f s: %.0f/s", p.Stored, p.Seconds, p.PerSecond)
		o.out.text("post to ack      %s", p.ToAck)
		o.out.text("deliveries       %d in %.1f s: %.0f/s", d.Received, d.Seconds, d.PerSecond)
		if d.Received > 0 {
			o.out.text("post to receipt  %s", d.ToReceipt)
		}
	}
	for i, s := range r.storms {
		o.out.text("resume storm %-3d %d receivers, %d deliveries: all caught up in %.2f s", i+1, s.Receivers, s.Received, s.Seconds)
		o.out.text("  each           %s", s.Each)
	}
	o.out.text("gaps             %d; %d missing, %d out of order, %d streams broken and resumed", r.trouble.Gaps, r.trouble.Missing,
		r.trouble.OutOfOrder, r.trouble.Broken)
	return nil
}
