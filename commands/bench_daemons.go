package commands

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/archive/inventory"
)

// benchDaemons are the settings of `bench daemons`.
type benchDaemons struct {
	daemons, jobs    int
	duration         time.Duration
	entries, files   int
	progress, window int
	own              bool
	ownDir           string
	tokenFile, url   string
	// program is the binary of a server of its own; empty: this one.
	program string
}

// maxBenchJobs keeps the requests that previews make of one daemon within what a server lets wait for it.
const maxBenchJobs = 16

func newBenchDaemonsCommand(opts *options) *cobra.Command {
	var b benchDaemons
	cmd := &cobra.Command{
		Use:   "daemons",
		Short: "Simulate archive daemons: registrations, inventory, commands and events a second",
		Long: `Connect simulated archive daemons, which speak the daemon protocol over real connections and touch no disk, and measure four
things, one after the other:

  registrations  all daemons register at once
  inventory      each is asked for --entries resources, then for one tree of --files files; entries count when the answer
                 was complete and committed
  commands       for --duration, --jobs TRANSFER jobs at a time run between pairs of daemons, previewed and started as an
  and events     operator would; each step is acknowledged at once, tells --progress PROGRESS events and is done. A
                 command counts when it was acknowledged, an event when control acknowledged it, which is after its commit

Step to step is the time from the end of a step, as its daemon sends it, until the command of the next step has come to its
daemon: the event and the command are committed, then the attempt, then it is sent. Commit to stored answer is the server's
own word for it, of some of the jobs.

With --own-server a server is started in a new directory, below --dir or the usual one for temporary files, and taken away at
the end. Its run ends with raw ceilings: the same bytes appended to a file in that directory, as many records for each
sync as could at most share a commit. Without it the server at hand is used: its routes of the run are removed at the
end, its daemons stay listed as offline, and its jobs stay listed as ended.`,
		Example: `  signalbox bench daemons --own-server
  signalbox bench daemons --own-server --daemons 50 --jobs 100 --duration 30s
  signalbox bench daemons --own-server --daemons 2 --jobs 1 --files 200000 --json
  signalbox bench daemons --server https://signalbox.example.com --api-key-file admin.key --token-file daemon.token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), opts) },
	}
	f := cmd.Flags()
	f.IntVar(&b.daemons, "daemons", 10, "daemons to simulate, an even number")
	f.IntVar(&b.jobs, "jobs", 20, "jobs that run at a time; 0 skips them")
	durationVar(f, &b.duration, "duration", 10*time.Second, "how long to start jobs; those that run are finished")
	f.IntVar(&b.entries, "entries", 1000, "resources that each daemon lists; 0 skips them")
	f.IntVar(&b.files, "files", 5000, "files of the one tree that each daemon tells; 0 skips it")
	f.IntVar(&b.progress, "progress", 20, "PROGRESS events of each step")
	f.IntVar(&b.window, "window", 1, "events of one job sent and not acknowledged")
	f.BoolVar(&b.own, "own-server", false, "start a server for the run, and measure raw ceilings beside it")
	f.StringVar(&b.ownDir, "dir", "", "where --own-server makes its directory; it tells which disk is measured")
	f.StringVar(&b.tokenFile, "token-file", "", "file with the token of daemons (default: daemon.token in the data directory)")
	f.StringVar(&b.url, "daemon-url", "", "base URL for the daemons, when it differs from the server's own")
	return cmd
}

func (b *benchDaemons) check(opts *options) error {
	switch {
	case b.daemons < 2 || b.daemons > 1000 || b.daemons%2 != 0:
		return usagef("--daemons: must be an even number from 2 to 1000, got %d", b.daemons)
	case b.jobs < 0 || b.jobs > b.daemons/2*maxBenchJobs:
		return usagef("--jobs: must be 0 to %d for each pair of daemons, got %d", maxBenchJobs, b.jobs)
	case b.duration < 0:
		return usagef("--duration: must not be negative")
	case b.entries < 0 || b.entries > 100_000:
		return usagef("--entries: must be 0 to 100000, got %d", b.entries)
	case b.files < 0 || b.files > inventory.MaxTreeFiles:
		return usagef("--files: must be 0 to %d, got %d", inventory.MaxTreeFiles, b.files)
	case b.progress < 0 || b.progress > 10_000:
		return usagef("--progress: must be 0 to 10000, got %d", b.progress)
	case b.window < 1 || b.window > 64:
		return usagef("--window: must be 1 to 64, got %d", b.window)
	case b.own && (opts.server != "" || opts.dataDir != "" || opts.configFile != "" || b.tokenFile != "" || b.url != ""):
		return usagef("--own-server: is not for use beside flags that name a server or its token")
	case !b.own && b.ownDir != "":
		return usagef("--dir: is for --own-server")
	}
	return nil
}

func (b *benchDaemons) run(ctx context.Context, opts *options) (err error) {
	if err := b.check(opts); err != nil {
		return err
	}
	at, dir := opts, ""
	if b.own {
		s, err := b.startServer(ctx, opts)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		at, dir = s.opts, s.dir
	}
	l, err := b.newLoad(at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	opts.out.say("%d simulated daemons at %s", b.daemons, l.endpoint)
	r := &daemonsReport{}
	if r.Registrations, err = l.connect(ctx); err != nil {
		return err
	}
	if b.entries > 0 {
		if r.Resources, err = l.inventory(ctx, map[string]any{"scope": "resources"}, b.entries); err != nil {
			return err
		}
	}
	if b.files > 0 {
		if r.TreeFiles, err = l.inventory(ctx, map[string]any{"scope": "content_tree", "resource": treeResource}, b.files); err != nil {
			return err
		}
	}
	entryBytes := l.entryBytes()
	if b.jobs > 0 && b.duration > 0 {
		if err := l.openRoutes(ctx); err != nil {
			return err
		}
		if err := l.work(ctx, r); err != nil {
			return err
		}
	}
	if dir != "" {
		if r.Ceilings, err = b.ceilings(dir, entryBytes, l.eventBytes()); err != nil {
			return err
		}
	}
	r.Trouble = l.recorder.Trouble.Load()
	if err := opts.showDaemonsReport(b, r); err != nil {
		return err
	}
	if r.Trouble > 0 {
		return exitf(ExitFailed, "%d commands were not what a daemon without trouble gets", r.Trouble)
	}
	return nil
}

// rate is how much of something was done in a time.
type rate struct {
	Count     int64   `json:"count"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
}

func rateOf(n int64, took time.Duration) rate {
	return rate{n, took.Seconds(), float64(n) / max(took.Seconds(), 1e-9)}
}

// daemonsReport is what a run measured; what was skipped is nil.
type daemonsReport struct {
	Registrations *registrationsResult
	Resources     *rate
	TreeFiles     *rate
	Jobs          *jobsResult
	Commands      *commandsRate
	Events        *eventsRate
	Ceilings      *ceilings
	Trouble       int64
}

type registrationsResult struct {
	rate
	Each quantiles `json:"dial_to_registered"`
}

type jobsResult struct {
	rate
	Preview quantiles `json:"preview"`
	Run     quantiles `json:"start_to_closed"`
}

type commandsRate struct {
	rate
	Stored quantiles `json:"commit_to_stored_answer"`
	Step   quantiles `json:"step_to_step"`
}

type eventsRate struct {
	rate
	ToAck quantiles `json:"send_to_ack"`
}

func (o *options) showDaemonsReport(b *benchDaemons, r *daemonsReport) error {
	if o.json {
		return o.out.document(field{"daemons", b.daemons}, field{"parallel_jobs", b.jobs}, field{"progress", b.progress}, field{"window", b.window},
			field{"registrations", r.Registrations}, field{"resources", r.Resources}, field{"tree_files", r.TreeFiles}, field{"jobs", r.Jobs},
			field{"commands", r.Commands}, field{"events", r.Events}, field{"ceilings", r.Ceilings}, field{"trouble", r.Trouble})
	}
	line := func(name string, q *rate) {
		o.out.text("%-17s%d in %.2f s: %.0f/s", name, q.Count, q.Seconds, q.PerSecond)
	}
	line("registrations", &r.Registrations.rate)
	o.out.text("  each           %s", r.Registrations.Each)
	if r.Resources != nil {
		line("resources", r.Resources)
	}
	if r.TreeFiles != nil {
		line("files of trees", r.TreeFiles)
	}
	if r.Jobs != nil {
		line("jobs", &r.Jobs.rate)
		o.out.text("  preview        %s", r.Jobs.Preview)
		o.out.text("  start to end   %s", r.Jobs.Run)
		line("commands", &r.Commands.rate)
		o.out.text("  to stored ack  %s", r.Commands.Stored)
		o.out.text("  step to step   %s", r.Commands.Step)
		line("events", &r.Events.rate)
		o.out.text("  send to ack    %s", r.Events.ToAck)
	}
	if c := r.Ceilings; c != nil {
		o.out.text("one sync         %s", c.Sync)
		if r.TreeFiles != nil {
			o.out.text("raw entries      %.0f/s, %d chunks for each sync: files of trees are %.3f of it", c.Entries, b.daemons, r.TreeFiles.PerSecond/c.Entries)
		}
		if r.Events != nil {
			o.out.text("raw events       %.0f/s, %d for each sync: events are %.3f of it", c.Events, b.eventsTogether(), r.Events.PerSecond/c.Events)
		}
	}
	o.out.text("trouble          %d", r.Trouble)
	return nil
}
