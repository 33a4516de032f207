package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newJobsWatchCommand(opts *options) *cobra.Command {
	var (
		cursor string
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "watch JOB",
		Short: "Follow a job to its end: progress bars, or one line for each change",
		Long: `Follow a job to its end. On a terminal it is drawn with bars of the job and of its step, bytes, rate and time left; elsewhere each
change is a line. A lost connection is taken up again, and nothing is missed.

The exit code tells the outcome: 0 completed, 1 failed or cancelled, 5 held for a person (see jobs explain). Interrupting is a
normal end, too: exit code 0, and the job goes on.`,
		Example: `  signalbox jobs watch 0193a2b4c5d6
  signalbox jobs watch 0193a2b4c5d6 --cursor 0 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.completeJobs("open=true"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.archiveClient(cmd.Context(), kindJob, args[0])
			if err != nil {
				return err
			}
			return opts.watchJob(cmd.Context(), c, id.ID, cursor, follow)
		},
	}
	cmd.Flags().StringVar(&cursor, "cursor", "", "go on after this cursor; 0 starts with the job's beginning (default: from now on)")
	cmd.Flags().BoolVar(&follow, "follow", true, "wait for more; --follow=false ends after what is there")
	return cmd
}

// watchJob follows a job until it has ended or is held, and returns its outcome as the exit.
func (o *options) watchJob(ctx context.Context, c *client, id, cursor string, follow bool) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	show := o.watcher()
	defer show.close()
	s := &stream{client: c, path: roomPath("jobs", id, "stream"), cursor: cursor, follow: follow, delay: o.retryDelay, notice: show.notice}
	var last jobRow
	err := s.run(ctx, func(rec *streamRecord) error {
		if rec.Type != "job" && rec.Type != "end" {
			return show.record(rec, nil)
		}
		var r jobRecord
		if err := json.Unmarshal(rec.raw, &r); err != nil {
			return fmt.Errorf("read job of stream record: %w", err)
		}
		last = r.Job
		if err := show.record(rec, &r); err != nil {
			return err
		}
		if rec.Type == "end" || last.held() && !rec.More {
			return errStop
		}
		return nil
	})
	show.close()
	switch {
	case errors.Is(err, context.Canceled) && follow && last.ID != "":
		o.out.say("job %s goes on", id)
		fallthrough
	case err == nil && !last.ended() && !last.held() && s.cursor != "":
		o.out.say("cursor: %s", s.cursor)
		return nil
	case err != nil:
		return err
	}
	return jobOutcome(&last)
}

// jobOutcome is the exit of a command that waited for a job.
func jobOutcome(j *jobRow) error {
	switch {
	case j.State == "failed":
		exit := exitf(ExitFailed, "job %s failed", j.ID)
		if j.Error != nil {
			exit.msg += ": " + j.Error.String()
		}
		exit.hint = "`signalbox jobs show " + j.ID + "` tells its story; put right what failed, then make a new job"
		return exit
	case j.State == "cancelled":
		return exitf(ExitFailed, "job %s was cancelled", j.ID)
	case j.held():
		exit := exitf(ExitConflict, "job %s is held for a person", j.ID)
		if j.Error != nil {
			exit.msg += ": " + j.Error.String()
		}
		exit.hint = "`signalbox jobs explain " + j.ID + "` says why and what to do"
		return exit
	}
	return nil
}

// watcher shows the records of a job's stream.
type watcher interface {
	// record shows one record; r is nil for a gap.
	record(rec *streamRecord, r *jobRecord) error
	notice(format string, args ...any)
	close() // may be called again
}

func (o *options) watcher() watcher {
	switch {
	case o.json:
		return jsonWatcher{o}
	case o.stdio.IsTerminal:
		return o.newLiveWatcher()
	}
	return &lineWatcher{o: o}
}

type jsonWatcher struct{ o *options }

func (w jsonWatcher) record(rec *streamRecord, _ *jobRecord) error { return w.o.out.ndjson(rec) }
func (w jsonWatcher) notice(format string, args ...any)            { w.o.out.say(format, args...) }
func (w jsonWatcher) close()                                       {}

// lineWatcher writes a line for each change.
type lineWatcher struct {
	o    *options
	said jobRow // as the last line of progress had it
	at   time.Time
}

// progressEvery is how often progress that is hardly any is worth a line.
const progressEvery = 30 * time.Second

func (w *lineWatcher) record(rec *streamRecord, r *jobRecord) error {
	if r == nil {
		w.o.out.say("gap: %s", gapText(rec.Reason))
		return nil
	}
	if r.Entry != nil {
		w.o.out.text("%s", w.o.storyLine(r.Entry))
	}
	now := w.o.now()
	if rec.Type == "end" || !rec.More && w.worthALine(&r.Job, now) {
		w.said, w.at = r.Job, now
		w.o.out.text("%s  %s  %s", w.o.out.stamp(&now), pad(map[bool]string{true: "end", false: "progress"}[rec.Type == "end"], 9), oneLine(progressLine(&r.Job)))
	}
	return nil
}

// worthALine tells whether the job differs visibly from what was written last.
func (w *lineWatcher) worthALine(j *jobRow, now time.Time) bool {
	whole := func(f float64) int { return int(clamp(f) * 100) }
	p, q := &j.Progress, &w.said.Progress
	if j.stateText() != w.said.stateText() || text(j.Step) != text(w.said.Step) || w.at.IsZero() {
		return true
	}
	if whole(p.OverallFraction) != whole(q.OverallFraction) || whole(p.Fraction) != whole(q.Fraction) {
		return true
	}
	return progressLine(j) != progressLine(&w.said) && now.Sub(w.at) >= progressEvery
}

func (w *lineWatcher) notice(format string, args ...any) { w.o.out.say(format, args...) }
func (w *lineWatcher) close()                            {}

// liveWatcher draws the job in place, with the lines of its story above.
type liveWatcher struct {
	o     *options
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	panel panel
	job   *jobRow
	drawn int // lines on the screen
	over  bool
}

func (o *options) newLiveWatcher() *liveWatcher {
	w := &liveWatcher{o: o, done: make(chan struct{}), panel: panel{unicode: o.stdio.speaksUTF8()}}
	w.ended.Go(func() {
		tick := time.NewTicker(time.Second) // for what only time changes: how long nothing has moved
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.mu.Lock()
				w.clear()
				w.draw()
				w.mu.Unlock()
			case <-w.done:
				return
			}
		}
	})
	return w
}

// speaksUTF8 tells whether the terminal shows more than ASCII.
func (s Stdio) speaksUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := s.env(name); v != "" {
			v = strings.ToUpper(v)
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return false
}

// columns is the width of the terminal now.
func (s Stdio) columns() int {
	if f, ok := s.Out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// clear takes what was drawn off the screen.
func (w *liveWatcher) clear() {
	if w.drawn > 0 {
		fmt.Fprintf(w.o.stdio.Out, "\x1b[%dA\r\x1b[J", w.drawn)
		w.drawn = 0
	}
}

// draw draws the job. The last column stays free, so that no line wraps.
func (w *liveWatcher) draw() {
	if w.job == nil || w.over {
		return
	}
	w.panel.width = w.o.stdio.columns() - 1
	lines := w.panel.lines(w.job, w.o.now())
	fmt.Fprint(w.o.stdio.Out, strings.Join(lines, "\n")+"\n")
	w.drawn = len(lines)
}

func (w *liveWatcher) record(rec *streamRecord, r *jobRecord) error {
	if r == nil {
		w.notice("gap: %s", gapText(rec.Reason))
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.o.out.wrote = true
	w.clear()
	if r.Entry != nil {
		w.o.out.text("%s", w.o.storyLine(r.Entry))
	}
	w.job = &r.Job
	w.draw()
	return nil
}

func (w *liveWatcher) notice(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clear()
	w.o.out.say(format, args...)
	w.draw()
}

// close ends the drawing; the last one stays on the screen.
func (w *liveWatcher) close() {
	w.mu.Lock()
	was := w.over
	w.over = true
	w.drawn = 0
	w.mu.Unlock()
	if !was {
		close(w.done)
		w.ended.Wait()
	}
}
