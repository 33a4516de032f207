package commands

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"signalbox/store"
)

func newDBCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "db",
		Short:   "Check the database, give unused space back",
		Example: "  signalbox db check",
	}
	cmd.AddCommand(newDBCheckCommand(opts), newDBVacuumCommand(opts))
	return cmd
}

type dbCheck struct {
	OK            bool     `json:"ok"`
	Quick         bool     `json:"quick"`
	SchemaVersion int      `json:"schema_version"`
	Seconds       float64  `json:"seconds"`
	Problems      []string `json:"problems"`
}

func newDBCheckCommand(opts *options) *cobra.Command {
	var quick bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Read the whole database and report damage; exit code 1 when there is any",
		Long: `Read the whole database, compare indexes with tables and follow every reference, while the appliance runs or when it is
stopped. Nothing is changed. On a large database it takes minutes, and the write-ahead log grows meanwhile.`,
		Example: `  signalbox db check
  signalbox db check --quick --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := opts.newUpkeep(cmd)
			if err != nil {
				return err
			}
			query := url.Values{}
			if quick {
				query.Set("quick", "true")
			}
			var r dbCheck
			err = u.do(cmd.Context(), "/db/check", query, nil, &r, func(f *store.File) error {
				r, err = opts.checkStopped(cmd.Context(), f, quick)
				return err
			})
			if err != nil {
				return err
			}
			return opts.showCheck(r)
		},
	}
	cmd.Flags().BoolVar(&quick, "quick", false, "do not compare indexes with their tables")
	return cmd
}

func (o *options) checkStopped(ctx context.Context, f *store.File, quick bool) (dbCheck, error) {
	o.out.say("no appliance is running; checking %s itself", f.Path())
	start := o.now()
	problems, err := f.IntegrityCheck(ctx, quick)
	return dbCheck{OK: len(problems) == 0, Quick: quick, SchemaVersion: f.SchemaVersion(),
		Seconds: o.now().Sub(start).Seconds(), Problems: nonNil(problems)}, err
}

func (o *options) showCheck(r dbCheck) error {
	if o.json {
		if err := o.out.object("check", r); err != nil {
			return err
		}
	} else {
		for _, p := range r.Problems {
			o.out.text("%s", printable(p))
		}
	}
	if !r.OK {
		e := exitf(ExitFailed, "the database is damaged: %d findings", len(r.Problems))
		e.hint = "stop the appliance and restore a backup with `signalbox restore FILE`; the damaged database is kept"
		return e
	}
	if !o.json {
		o.out.text("the database is sound (schema %d, %.1f s)", r.SchemaVersion, r.Seconds)
	}
	return nil
}

type dbVacuum struct {
	BytesBefore int64   `json:"bytes_before"`
	BytesAfter  int64   `json:"bytes_after"`
	Seconds     float64 `json:"seconds"`
}

func newDBVacuumCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "vacuum",
		Short: "Give the space of deleted rows back to the file system",
		Long: `Give the space of deleted rows back to the file system, in small slices between other writes while the appliance runs,
or under the lock when it is stopped. Without it the space is used again for new rows, which is fine unless the disk is
wanted for something else.`,
		Example: `  signalbox db vacuum
  signalbox db vacuum --data-dir /var/lib/signalbox --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := opts.newUpkeep(cmd)
			if err != nil {
				return err
			}
			var r dbVacuum
			err = u.do(cmd.Context(), "/db/vacuum", nil, nil, &r, func(f *store.File) error {
				r, err = opts.vacuumStopped(cmd.Context(), f)
				return err
			})
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("vacuum", r)
			}
			opts.out.text("%s before, %s now", bytesText(r.BytesBefore), bytesText(r.BytesAfter))
			return nil
		},
	}
}

func (o *options) vacuumStopped(ctx context.Context, f *store.File) (r dbVacuum, err error) {
	o.out.say("no appliance is running; vacuuming %s itself", f.Path())
	start := o.now()
	if r.BytesBefore, _, err = f.Space(ctx); err != nil {
		return r, err
	}
	if err = f.Vacuum(ctx); err != nil {
		return r, err
	}
	if r.BytesAfter, _, err = f.Space(ctx); err != nil {
		return r, fmt.Errorf("after the vacuum: %w", err)
	}
	r.Seconds = o.now().Sub(start).Seconds()
	return r, nil
}
