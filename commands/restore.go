package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"signalbox/appliance"
	"signalbox/store"
)

type restoreResult struct {
	Path          string `json:"path"`
	Kept          any    `json:"kept"` // null when there was no database
	SizeBytes     int64  `json:"size_bytes"`
	SchemaVersion int    `json:"schema_version"`
}

func newRestoreCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup in the place of the database of a stopped appliance",
		Long: `Put a copy of a backup in the place of the database. The appliance must be stopped. FILE is checked first: it must be
a whole Signalbox database that this program knows; otherwise nothing changes. FILE itself stays as it is.

The present database is kept beside the new one as signalbox.db.before-restore-<time>; remove it when you no longer need
it. A crash at any moment leaves the one or the other in place. Whatever was acknowledged after the backup is gone from
the new one.

Run it as the user of the appliance. The master secret is not in a backup: secret.key must be in the data directory.`,
		Example: `  signalbox restore /var/backups/signalbox.db --yes
  signalbox restore signalbox.db --data-dir /var/lib/signalbox --yes --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := opts.newUpkeep(cmd)
			if err != nil {
				return err
			}
			database, err := u.database()
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Put %s in the place of %s?", args[0], database)); err != nil {
				return err
			}
			r, err := store.Restore(cmd.Context(), args[0], database, opts.now())
			if err != nil {
				return inUse(err, "stop the appliance first; nothing was changed")
			}
			if err := opts.showRestored(r); err != nil {
				return err
			}
			opts.sayAfterRestore(u)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

func (o *options) showRestored(r store.Restored) error {
	if o.json {
		return o.out.object("restore", restoreResult{Path: r.Path, Kept: orNull(r.Kept), SizeBytes: r.Bytes, SchemaVersion: r.Version})
	}
	o.out.text("%s restored (%s, schema %d)", r.Path, bytesText(r.Bytes), r.Version)
	if r.Kept != "" {
		o.out.text("the former database is %s", r.Kept)
	}
	return nil
}

// sayAfterRestore tells what a restored database still needs.
func (o *options) sayAfterRestore(u *localUpkeep) {
	secret := filepath.Join(u.cfg.DataDir, appliance.SecretFile)
	if _, err := os.Stat(secret); errors.Is(err, fs.ErrNotExist) && u.cfg.Secret.Secret.IsZero() {
		o.out.say("unless it is configured, put the master secret of the backup at %s (mode 0600) before you start: "+
			"the appliance does not start without it", absolute(secret))
		return
	}
	o.out.say("start the appliance and run `signalbox audit verify`: it also tells whether the master secret is the right one")
}
