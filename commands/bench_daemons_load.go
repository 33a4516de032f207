package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/transport/archiveclient"
	"signalbox/transport/archivesim"
)

const (
	// benchRegistering is how many daemons register at once: a server takes 64 sockets that have not.
	benchRegistering = 50
	// benchAnswer is how long a server waits for a daemon's answer, and benchPatience how long we wait for that.
	benchAnswer   = 120 * time.Second
	benchPatience = benchAnswer + 30*time.Second
	// benchSampled is how many jobs are read for the times of their commands.
	benchSampled = 100
)

// treeResource is the resource whose tree is asked for.
var treeResource = archivesim.ResourceID(0)

// daemonLoad is the load of one run.
type daemonLoad struct {
	b        *benchDaemons
	client   *client
	endpoint string
	dialer   *archiveclient.Dialer
	run      string
	recorder *archivesim.Recorder
	daemons  []*archivesim.Daemon

	pairs []*daemonPair

	previews, runs histogram
	completed      atomic.Int64

	mu      sync.Mutex
	open    map[string]chan pb.JobState // by job: started and not closed
	closed  map[string]pb.JobState      // before it was known that they were started
	sampled []string                    // jobs
}

// daemonPair is a source and a target with a route between them. Every job of it has a resource of its own.
type daemonPair struct {
	source, target *archivesim.Daemon
	route          string
	next           atomic.Int64
}

func (b *benchDaemons) newLoad(opts *options) (*daemonLoad, error) {
	c, err := opts.newClient()
	if err != nil {
		return nil, err
	}
	c.timeout = max(c.timeout, benchPatience)
	l := &daemonLoad{b: b, client: c, endpoint: b.url, run: "bench-" + uuid.NewString()[:8], recorder: &archivesim.Recorder{},
		open: map[string]chan pb.JobState{}, closed: map[string]pb.JobState{}}
	if l.endpoint == "" {
		l.endpoint = opts.findBrainURL(c)
	}
	if l.endpoint == "" {
		return nil, usagef("--daemon-url: needed, for the server's own address is not known here")
	}
	base, err := parseServer(l.endpoint)
	if err != nil {
		return nil, usagef("--daemon-url: %w", err)
	}
	token := b.tokenFile
	if token == "" {
		if strings.HasPrefix(c.target, "http") {
			return nil, usagef("--token-file: needed, for the token of daemons of a remote server is not known here")
		}
		cfg, err := opts.localConfig()
		if err != nil {
			return nil, err
		}
		token = filepath.Join(cfg.DataDir, appliance.DaemonTokenFile)
	}
	ca := opts.caFile
	if ca == "" {
		ca = opts.stdio.env("SIGNALBOX_CA_FILE")
	}
	address := "ws" + strings.TrimPrefix(strings.TrimRight(base.String(), "/"), "http") + "/daemon/v2"
	if l.dialer, err = archiveclient.New(archiveclient.Options{URL: address, TokenFile: token, CAFile: ca}); err != nil {
		return nil, usagef("%w", err)
	}
	return l, nil
}

// connect registers all daemons.
func (l *daemonLoad) connect(ctx context.Context) (*registrationsResult, error) {
	l.daemons = make([]*archivesim.Daemon, l.b.daemons)
	var each histogram
	begun := time.Now()
	err := inParallel(ctx, len(l.daemons), benchRegistering, func(ctx context.Context, i int) error {
		o := archivesim.Options{ID: uuid.New(), Name: fmt.Sprintf("%s-%d", l.run, i+1), Dialer: l.dialer, Recorder: l.recorder,
			Content: archivesim.Content{Resources: l.b.entries, Files: 3, Tree: l.b.files}, Progress: l.b.progress, Window: l.b.window}
		if i%2 == 1 { // a target
			o.Closed = l.jobClosed
		}
		ctx, cancel := context.WithTimeout(ctx, l.client.timeout)
		defer cancel()
		at := time.Now()
		d, err := archivesim.Connect(ctx, o)
		if err != nil {
			return fmt.Errorf("register daemon %d: %w", i+1, err)
		}
		each.record(time.Since(at))
		l.daemons[i] = d
		return nil
	})
	took := time.Since(begun)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(l.daemons); i += 2 {
		l.pairs = append(l.pairs, &daemonPair{source: l.daemons[i], target: l.daemons[i+1]})
	}
	return &registrationsResult{rateOf(int64(len(l.daemons)), took), each.quantiles()}, nil
}

func (h *histogram) quantiles() quantiles {
	all := archivesim.NewHistogram()
	h.mergeInto(all)
	return quantilesOf(all)
}

// inventory asks all daemons the same at once; each must tell so many entries.
func (l *daemonLoad) inventory(ctx context.Context, question map[string]any, entries int) (*rate, error) {
	question["wait"] = int(benchAnswer / time.Second)
	begun := time.Now()
	err := inParallel(ctx, len(l.daemons), len(l.daemons), func(ctx context.Context, i int) error {
		var a queryAnswer
		if err := l.client.post(ctx, "/daemons/"+l.daemons[i].ID().String()+"/inventory", question, &a); err != nil {
			return err
		}
		if a.State != "complete" || a.Entries != int64(entries) {
			return fmt.Errorf("inventory of daemon %d is %s with %d entries, not %d: %s", i+1, a.State, a.Entries, entries, a.Error)
		}
		return l.daemons[i].Err()
	})
	if err != nil {
		return nil, err
	}
	r := rateOf(int64(entries)*int64(len(l.daemons)), time.Since(begun))
	return &r, nil
}

// entryBytes is the mean size of an entry so far, eventBytes that of an event.
func (l *daemonLoad) entryBytes() int64 {
	return l.recorder.EntryBytes.Load() / max(l.recorder.Entries.Load(), 1)
}

func (l *daemonLoad) eventBytes() int64 {
	return l.recorder.EventBytes.Load() / max(l.recorder.Sent.Load(), 1)
}

// openRoutes makes a route for each pair and waits until all are ready.
func (l *daemonLoad) openRoutes(ctx context.Context) error {
	return inParallel(ctx, len(l.pairs), benchParallel, func(ctx context.Context, i int) error {
		p := l.pairs[i]
		body := map[string]any{"name": fmt.Sprintf("%s-route-%d", l.run, i+1), "source": p.source.ID(), "target": p.target.ID(),
			"source_root": archivesim.OutboxRoot, "target_root": archivesim.ReceiveRoot}
		var r record[routeRow]
		// Not broken off by an interrupt: what it made would not be known.
		if err := l.client.post(context.WithoutCancel(ctx), "/routes", body, &r); err != nil {
			return fmt.Errorf("create route: %w", err)
		}
		p.route = r.V.ID
		wait := url.Values{"wait": {fmt.Sprint(int(benchAnswer / time.Second))}}
		if err := l.client.get(ctx, "/routes/"+p.route, wait, &r); err != nil {
			return fmt.Errorf("look at route: %w", err)
		}
		if !r.V.Ready {
			return fmt.Errorf("route %d is not ready: %s", i+1, strings.Join(r.V.NotReadyBecause, "; "))
		}
		return nil
	})
}

// work runs jobs, so many at a time, until the duration is over, and those that run then to their ends.
func (l *daemonLoad) work(ctx context.Context, r *daemonsReport) error {
	commands, events := l.recorder.Commands.Load(), l.recorder.Events.Load()
	begun := time.Now()
	timed, cancel := context.WithTimeout(ctx, l.b.duration)
	defer cancel()
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		<-timed.Done()
		took := time.Since(begun)
		r.Jobs = &jobsResult{rate: rateOf(l.completed.Load(), took)}
		r.Commands = &commandsRate{rate: rateOf(l.recorder.Commands.Load()-commands, took)}
		r.Events = &eventsRate{rate: rateOf(l.recorder.Events.Load()-events, took)}
	}()
	err := inParallel(ctx, l.b.jobs, l.b.jobs, func(ctx context.Context, i int) error {
		for timed.Err() == nil {
			if err := l.job(ctx, l.pairs[i%len(l.pairs)]); err != nil {
				return err
			}
		}
		return nil
	})
	cancel()
	<-measured
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	r.Jobs.Preview, r.Jobs.Run = l.previews.quantiles(), l.runs.quantiles()
	r.Events.ToAck, r.Commands.Step = quantilesOf(l.recorder.Acknowledged()), quantilesOf(l.recorder.NextStep())
	r.Commands.Stored, err = l.storedAnswers(ctx)
	return err
}

// job previews one transfer, starts it and waits until its target was told that it is over.
func (l *daemonLoad) job(ctx context.Context, p *daemonPair) error {
	var v struct {
		ID    string        `json:"id"`
		State string        `json:"state"`
		Error *archiveFault `json:"error"`
	}
	body := map[string]any{"operation": "transfer", "source": map[string]any{"daemon": p.source.ID(),
		"resource": archivesim.ResourceID(int(p.next.Add(1)))}, "target": map[string]any{"daemon": p.target.ID()}, "route": p.route,
		"destination": map[string]any{"root": archivesim.ContentRoot}}
	at := time.Now()
	if err := l.client.do(ctx, http.MethodPost, "/job-previews", url.Values{"wait": {fmt.Sprint(int(benchAnswer / time.Second))}}, body, &v); err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	if v.State != "passed" {
		return fmt.Errorf("preview %s: %s", v.State, v.Error)
	}
	l.previews.record(time.Since(at))
	at = time.Now()
	var j record[jobRow]
	if err := l.client.post(context.WithoutCancel(ctx), "/jobs", map[string]any{"preview_id": v.ID}, &j); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	final, err := l.await(ctx, p, j.V.ID)
	if err != nil {
		return err
	}
	l.runs.record(time.Since(at))
	if final != pb.JobState_JOB_STATE_COMPLETED {
		return fmt.Errorf("job %s ended as %s: %s", j.V.ID, final, l.state(ctx, j.V.ID))
	}
	l.completed.Add(1)
	l.mu.Lock()
	if len(l.sampled) < benchSampled {
		l.sampled = append(l.sampled, j.V.ID)
	}
	l.mu.Unlock()
	return nil
}

// await waits for the end of a job.
func (l *daemonLoad) await(ctx context.Context, p *daemonPair, id string) (pb.JobState, error) {
	end := make(chan pb.JobState, 1)
	l.mu.Lock()
	if final, ok := l.closed[id]; ok {
		delete(l.closed, id)
		end <- final
	} else {
		l.open[id] = end
	}
	l.mu.Unlock()
	timer := time.NewTimer(benchPatience)
	defer timer.Stop()
	select {
	case final := <-end:
		return final, nil
	case <-p.source.Done():
		return 0, fmt.Errorf("the source's connection ended: %w", p.source.Err())
	case <-p.target.Done():
		return 0, fmt.Errorf("the target's connection ended: %w", p.target.Err())
	case <-timer.C:
		return 0, fmt.Errorf("job %s does not end: %s", id, l.state(ctx, id))
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// jobClosed is told by the targets.
func (l *daemonLoad) jobClosed(id string, final pb.JobState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.open[id]; end != nil {
		delete(l.open, id)
		end <- final
		return
	}
	l.closed[id] = final
}

// state says how a job stands, for an error.
func (l *daemonLoad) state(ctx context.Context, id string) string {
	var j record[jobRow]
	if err := l.client.get(context.WithoutCancel(ctx), "/jobs/"+id, nil, &j); err != nil {
		return err.Error()
	}
	text := words(j.V.State)
	if w := j.V.Waiting; w != nil {
		text += ", " + words(w.Reason) + ": " + w.Detail
	}
	if j.V.Error != nil {
		text += ": " + j.V.Error.String()
	}
	return text
}

// storedAnswers reads of some jobs how long their commands took from the commit to the stored answer.
func (l *daemonLoad) storedAnswers(ctx context.Context) (quantiles, error) {
	var each histogram
	err := inParallel(ctx, len(l.sampled), benchParallel, func(ctx context.Context, i int) error {
		var j struct {
			Commands []struct {
				IssuedAt time.Time  `json:"issued_at"`
				AckedAt  *time.Time `json:"acked_at"`
			} `json:"commands"`
		}
		if err := l.client.get(ctx, "/jobs/"+l.sampled[i], nil, &j); err != nil {
			return fmt.Errorf("read job: %w", err)
		}
		for _, c := range j.Commands {
			if c.AckedAt != nil {
				each.record(c.AckedAt.Sub(c.IssuedAt))
			}
		}
		return nil
	})
	return each.quantiles(), err
}

// close ends what the run has left open: jobs after an interrupt, and the routes.
func (l *daemonLoad) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), benchCleanup)
	defer cancel()
	l.mu.Lock()
	left := make(map[string]chan pb.JobState, len(l.open))
	for id, end := range l.open {
		left[id] = end
	}
	l.mu.Unlock()
	var errs []error
	for id := range left {
		// One that has committed or ended meanwhile refuses, and comes to its end.
		_ = l.client.post(ctx, "/jobs/"+id+"/cancel", map[string]any{"reason": "the bench was ended"}, nil)
	}
	for id, end := range left {
		select {
		case <-end:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("job %s is left: %w", id, context.Cause(ctx)))
		}
	}
	for _, p := range l.pairs {
		if p.route == "" {
			continue
		}
		err := l.client.do(ctx, http.MethodDelete, "/routes/"+p.route, nil, nil, nil)
		if err == nil {
			err = errors.Join(p.source.RoutesGone(ctx), p.target.RoutesGone(ctx))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove route %s: %w", p.route, err))
		}
	}
	for _, d := range l.daemons {
		if d != nil {
			d.Close()
		}
	}
	l.client.http.CloseIdleConnections()
	if len(errs) > 1 {
		errs = []error{fmt.Errorf("%w; and %d more", errs[0], len(errs)-1)}
	}
	return errors.Join(errs...)
}
