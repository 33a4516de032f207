package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/archive/layout"
)

func newManifestCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "manifest",
		Short:   "Check job directories offline",
		Example: `  signalbox manifest verify /srv/incoming/jobs/0193a2b4-c5d6-7000-8000-000000000001.1`,
	}
	cmd.AddCommand(newManifestVerifyCommand(opts))
	return cmd
}

// verdict is what a check of a job directory found, as --json writes it.
type verdict struct {
	OK             bool             `json:"ok"`
	Directory      string           `json:"directory"`
	JobID          string           `json:"job_id"`
	Attempt        uint32           `json:"attempt"`
	ManifestSHA256 string           `json:"manifest_sha256"`
	Files          int              `json:"files"`
	Bytes          uint64           `json:"bytes"`
	Problems       []verdictProblem `json:"problems"`
	MoreProblems   int              `json:"more_problems"`
	ExtraNames     int              `json:"extra_names"`
	Extras         []string         `json:"extras"`
}

type verdictProblem struct {
	Code    string `json:"code"`
	Path    string `json:"path"`
	Message string `json:"message"`
}

func newManifestVerifyCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Read a whole job directory and compare it with its manifest",
		Long: `Read a whole job directory and compare it with its manifest: the marker, the manifest, and every byte of payload and of what goes
with it. It needs no server and changes nothing. Names that the manifest does not list are told and are no fault. The exit code
is 0 when all is right, and 1 when anything is not.`,
		Example: `  signalbox manifest verify /srv/incoming/jobs/0193a2b4-c5d6-7000-8000-000000000001.1
  signalbox manifest verify . --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.verifyManifest(cmd.Context(), args[0])
		},
	}
}

func (o *options) verifyManifest(ctx context.Context, dir string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if info, err := os.Stat(dir); err != nil {
		return exitOfPath(err)
	} else if !info.IsDir() {
		return usagef("%s is no directory", dir)
	}
	progress, finish := o.readingLine()
	r, err := layout.Verify(ctx, dir, progress)
	finish()
	if err != nil {
		if ctx.Err() != nil {
			return exitf(ExitFailed, "interrupted; nothing was changed")
		}
		return err
	}
	v := verdict{OK: r.OK(), Directory: dir, JobID: r.JobID, Attempt: r.Attempt, ManifestSHA256: r.ManifestSHA256, Files: r.Files, Bytes: r.Bytes,
		Problems: []verdictProblem{}, MoreProblems: r.More, ExtraNames: r.Extras.Count, Extras: []string{}}
	for _, p := range r.Problems {
		v.Problems = append(v.Problems, verdictProblem{protoWord(p.Code), p.Path, p.Message})
	}
	for _, e := range r.Extras.First {
		v.Extras = append(v.Extras, e.Name)
	}
	return o.showVerdict(&v)
}

// exitOfPath tells a directory that is not there from one that cannot be read.
func exitOfPath(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return exitf(ExitNotFound, "%v", err)
	}
	return err
}

func (o *options) showVerdict(v *verdict) error {
	if o.json {
		if err := o.out.object("verdict", v); err != nil {
			return err
		}
	} else {
		err := o.out.facts([2]string{"job", v.JobID}, [2]string{"attempt", fmt.Sprint(v.Attempt)}, [2]string{"manifest sha256", v.ManifestSHA256},
			[2]string{"read and right", fmt.Sprintf("%s, %s", countOf(uint64(v.Files), "file"), sizeText(v.Bytes))})
		if err != nil {
			return err
		}
		if len(v.Problems) > 0 {
			o.out.text("")
			rows := make([][]string, 0, len(v.Problems))
			for _, p := range v.Problems {
				rows = append(rows, []string{dash(p.Path), p.Code, p.Message})
			}
			if err := o.out.table([]string{"PATH", "PROBLEM", "WHAT IS WRONG"}, rows); err != nil {
				return err
			}
		}
		if v.ExtraNames > 0 {
			o.out.say("not in the manifest and ignored: %s, such as %s", countOf(uint64(v.ExtraNames), "name"), oneLine(v.Extras[0]))
		}
	}
	if v.OK {
		if !o.json {
			o.out.text("the directory is what its manifest says")
		}
		return nil
	}
	return exitf(ExitFailed, "the directory is not what its manifest says: %s", countOf(uint64(len(v.Problems)+v.MoreProblems), "problem"))
}

// readingLine shows on a terminal how far the reading is; nil elsewhere.
func (o *options) readingLine() (progress func(done, total uint64), finish func()) {
	if !o.stdio.IsTerminal || o.json {
		return nil, func() {}
	}
	var last time.Time
	shown := false
	begun := o.now()
	progress = func(done, total uint64) {
		now := o.now()
		if now.Sub(last) < 200*time.Millisecond || total == 0 {
			return
		}
		last, shown = now, true
		line := fmt.Sprintf("[%s] %7s  %s of %s", bar(float64(done)/float64(total), 30, o.stdio.speaksUTF8()), percent(float64(done)/float64(total)), sizeText(done), sizeText(total))
		if passed := now.Sub(begun).Seconds(); passed >= 1 && done > 0 {
			rate := uint64(float64(done) / passed)
			line += "   " + sizeText(rate) + "/s"
			if left := eta(total-min(done, total), rate); left != "" {
				line += "   ETA " + left
			}
		}
		fmt.Fprintf(o.stdio.Err, "\r\x1b[K%s", fit(line, o.stdio.columns()-1))
	}
	return progress, func() {
		if shown {
			fmt.Fprint(o.stdio.Err, "\r\x1b[K")
		}
	}
}
