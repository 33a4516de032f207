package commands

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// The figures of the section Archive of docs/performance.md that need the server's processor time.

// BenchmarkServeDaemons is what simulated daemons cost the binary, in a process of its own: processor time for each
// registration, inventory entry and job, and the memory of a connection that is idle. What the jobs with 200 PROGRESS events
// more cost more is the price of these events.
func BenchmarkServeDaemons(b *testing.B) {
	for _, progress := range []int{0, 40} {
		b.Run(fmt.Sprintf("progress=%d", 5*progress), func(b *testing.B) { serveDaemons(b, progress) })
	}
}

func serveDaemons(b *testing.B, progress int) {
	p := newProcess(b, buildBinary(b))
	p.args = []string{"--log-level=warn"}
	p.start()
	b.Cleanup(p.stop)
	opts := &options{stdio: Stdio{Out: os.Stdout, Err: os.Stderr}, dataDir: p.dir, now: time.Now, requestTimeout: time.Minute}
	opts.out = &printer{stdio: opts.stdio, opts: opts}
	s := &benchDaemons{daemons: 50, jobs: 20, duration: 10 * time.Second, entries: 1000, files: 2000, progress: progress, window: 1}
	l, err := s.newLoad(opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.close(); err != nil {
			b.Error(err)
		}
	})
	pid := p.cmd.Process.Pid
	report := &daemonsReport{}
	// each runs a part of the load and returns the server's processor time in it.
	each := func(part func() error) time.Duration {
		before := usageOf(b, pid).cpu
		if err := part(); err != nil {
			b.Fatal(err)
		}
		return usageOf(b, pid).cpu - before
	}
	micros := func(d time.Duration, n int64) float64 { return float64(d.Microseconds()) / float64(max(n, 1)) }
	idle := usageOf(b, pid).rss
	cpu := each(func() (err error) { report.Registrations, err = l.connect(b.Context()); return err })
	b.ReportMetric(micros(cpu, report.Registrations.Count), "cpu_us/registration")
	b.ReportMetric(float64(usageOf(b, pid).rss-idle)/float64(s.daemons)/1024, "KiB/connection")
	cpu = each(func() (err error) {
		report.Resources, err = l.inventory(b.Context(), map[string]any{"scope": "resources"}, s.entries)
		return err
	})
	b.ReportMetric(micros(cpu, report.Resources.Count), "cpu_us/resource")
	cpu = each(func() (err error) {
		report.TreeFiles, err = l.inventory(b.Context(), map[string]any{"scope": "content_tree", "resource": treeResource}, s.files)
		return err
	})
	b.ReportMetric(micros(cpu, report.TreeFiles.Count), "cpu_us/file")
	if err := l.openRoutes(b.Context()); err != nil {
		b.Fatal(err)
	}
	cpu = each(func() error { return l.work(b.Context(), report) })
	b.ReportMetric(micros(cpu, l.completed.Load())/1000, "cpu_ms/job")
	b.ReportMetric(report.Events.PerSecond, "events/s")
	b.ReportMetric(report.Commands.PerSecond, "commands/s")
	b.ReportMetric(0, "ns/op")
}
