package commands

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

func newBenchCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Load a server and measure it",
		Long: `Load a server with real traffic, signed where the protocol has it so, and measure what it acknowledges and delivers.

Bench writes real rows. Use a server that you can throw away, or for agents at least a project.`,
		Example: `  signalbox bench agents --agents 50 --duration 30s
  signalbox bench rooms --receivers 100 --duration 30s
  signalbox bench daemons --own-server --daemons 50 --jobs 100`,
	}
	cmd.AddCommand(interruptible(newBenchAgentsCommand(opts)), interruptible(newBenchRoomsCommand(opts)),
		interruptible(newBenchDaemonsCommand(opts)))
	return cmd
}

// interruptible ends the command's context at the first interrupt, so that a run takes away what it made; the second one
// ends the process.
func interruptible(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop)
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
	return cmd
}

// benchAgents are the settings of `bench agents`.
type benchAgents struct {
	agents    int
	transport string
	duration  time.Duration
	batch     int
	window    int
	commands  int
	url       string
	envFiles  []string
}

func newBenchAgentsCommand(opts *options) *cobra.Command {
	var b benchAgents
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "Connect agents, ingest signed events, send commands, and report rates and latencies",
		Long: `Connect agents that sign real frames, over WebSocket or long-poll. First they ingest events for --duration; an event
counts when the batch it came in was acknowledged. Then --commands commands are issued one after the other, and the time
from issue to receipt, and to the stored result, is measured.

Agents are minted in the project and revoked at the end. Against a server where this key may not mint, give the
environment files of existing agents with --agent-env instead; without an API there, use --commands 0.

The authority of --ca-file counts for the connections of the agents too, also when the API is asked over the local socket.`,
		Example: `  signalbox bench agents --agents 50 --duration 30s
  signalbox bench agents --transport longpoll --agents 20 --batch 10 --window 50
  signalbox bench agents --server https://signalbox.example.com --api-key-file admin.key --json
  signalbox bench agents --commands 0 --agent-env a.env --agent-env b.env`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), opts) },
	}
	f := cmd.Flags()
	f.IntVar(&b.agents, "agents", 10, "agents to mint and connect")
	f.StringVar(&b.transport, "transport", "ws", "ws or longpoll")
	durationVar(f, &b.duration, "duration", 10*time.Second, "how long to ingest; 0 skips it")
	f.IntVar(&b.batch, "batch", 1, "events in one event_batch; the published agent sends 1")
	f.IntVar(&b.window, "window", 256, "ws: batches sent and not acknowledged, per agent; longpoll: batches in one upload (at most 500)")
	f.IntVar(&b.commands, "commands", 200, "commands to issue after the ingest; 0 skips it")
	f.StringVar(&b.url, "agent-url", "", "base URL for the agents, when it differs from the server's own")
	f.StringArrayVar(&b.envFiles, "agent-env", nil, "environment file of an existing agent, as agents mint prints it; repeat for more")
	return cmd
}

func (b *benchAgents) check() error {
	switch {
	case b.agents < 1 || b.agents > 10000:
		return usagef("--agents: must be 1 to 10000, got %d", b.agents)
	case b.transport != "ws" && b.transport != "longpoll":
		return usagef("--transport: must be ws or longpoll, got %q", b.transport)
	case b.batch < 1 || b.batch > 5000:
		return usagef("--batch: must be 1 to 5000, got %d", b.batch)
	case b.window < 1 || (b.transport == "longpoll" && b.window > 500):
		return usagef("--window: must be at least 1, and at most 500 over long-poll, got %d", b.window)
	case b.duration < 0 || b.commands < 0:
		return usagef("--duration and --commands: must not be negative")
	}
	return nil
}

// quantiles is a latency distribution in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func quantilesOf(h *hdrhistogram.Histogram) quantiles {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return quantiles{P50: ms(h.ValueAtQuantile(50)), P90: ms(h.ValueAtQuantile(90)), P99: ms(h.ValueAtQuantile(99)), Max: ms(h.Max())}
}

func (q quantiles) String() string {
	return fmt.Sprintf("p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, max %.2f ms", q.P50, q.P90, q.P99, q.Max)
}

func (b *benchAgents) run(ctx context.Context, opts *options) (err error) {
	if err := b.check(); err != nil {
		return err
	}
	pool, err := b.openPool(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		if e := pool.close(); err == nil {
			err = e
		}
	}()
	opts.out.say("%d agents over %s at %s", len(pool.configs), b.transport, pool.configs[0].URL)
	fields := []field{{"agents", len(pool.configs)}, {"transport", b.transport}}
	if b.duration > 0 {
		res, err := b.ingest(ctx, pool.configs)
		if err != nil {
			return err
		}
		fields = append(fields, field{"ingest", res})
		if !opts.json {
			opts.out.text("events acknowledged  %d in %.1f s: %.0f/s (%d of them new)", res.Acked, res.Seconds, res.PerSecond, res.Accepted)
			opts.out.text("send to ack          %s", res.Latency)
		}
	}
	if b.commands > 0 && pool.scope != nil {
		res, err := b.roundTrips(ctx, pool)
		if err != nil {
			return err
		}
		fields = append(fields, field{"commands", res})
		if !opts.json {
			opts.out.text("commands             %d issued one after the other", res.Issued)
			opts.out.text("issue to receipt     %s", res.Receipt)
			opts.out.text("issue to result      %s", res.Result)
		}
	}
	if opts.json {
		return opts.out.document(fields...)
	}
	return nil
}

// ingestResult is what the ingest measured.
type ingestResult struct {
	Acked     int64     `json:"acked_events"`
	Accepted  int64     `json:"new_events"`
	Seconds   float64   `json:"seconds"`
	PerSecond float64   `json:"acked_events_per_second"`
	Latency   quantiles `json:"send_to_ack"`
}

func (b *benchAgents) ingest(ctx context.Context, configs []agentclient.Config) (ingestResult, error) {
	load := agentclient.Load{Batch: b.batch, Window: b.window, Data: agentclient.DefaultData, Engine: "celery"}
	sessions := make([]benchSession, len(configs))
	for i, cfg := range configs {
		s, err := b.open(ctx, cfg)
		if err != nil {
			return ingestResult{}, fmt.Errorf("connect agent %d: %w", i+1, err)
		}
		sessions[i] = s
	}
	rec := agentclient.NewRecorder()
	timed, cancel := context.WithTimeout(ctx, b.duration)
	defer cancel()
	start := time.Now()
	errs := make(chan error, len(sessions))
	for _, s := range sessions {
		go func() { errs <- s.run(timed, load, rec) }()
	}
	var failed error
	for range sessions {
		if err := <-errs; err != nil && failed == nil {
			failed = err
			cancel()
		}
	}
	took := time.Since(start).Seconds()
	if failed != nil {
		return ingestResult{}, fmt.Errorf("ingest: %w", failed)
	}
	acked := rec.Acked.Load()
	return ingestResult{Acked: acked, Accepted: rec.Accepted.Load(), Seconds: took, PerSecond: float64(acked) / took,
		Latency: quantilesOf(rec.Waited())}, nil
}

// benchSession is one connected agent of either transport.
type benchSession struct {
	ws *agentclient.WS
	lp *agentclient.LP
}

func (s benchSession) run(ctx context.Context, load agentclient.Load, rec *agentclient.Recorder) error {
	if s.ws != nil {
		return load.RunWS(ctx, s.ws, rec)
	}
	return load.RunLP(ctx, s.lp, rec)
}

func (b *benchAgents) open(ctx context.Context, cfg agentclient.Config) (s benchSession, err error) {
	if b.transport == "ws" {
		s.ws, err = agentclient.DialWS(ctx, cfg)
	} else {
		if s.lp, err = agentclient.OpenLP(ctx, cfg); err == nil {
			// Polls do not count as liveness, and commands for an agent that is not online are not counted as accepted.
			_, err = s.lp.Upload(ctx, agentclient.Outgoing{Type: wire.TypeHeartbeat, ID: "hb_1", Payload: []byte(agentclient.Heartbeat)})
		}
	}
	return s, err
}

// benchSecret reads what `agents mint` printed.
func benchSecret(token, hmacSecret string) (secret.Text, secret.Bytes, error) {
	key, err := agentclient.DecodeSecret(hmacSecret)
	return secret.NewText(token), key, err
}
