package commands

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance"
	"signalbox/appliance/config"
	"signalbox/appliance/fault"
	"signalbox/store"
)

// upkeepPatience is the default wait for backups, checks and vacuums, which read the whole database.
const upkeepPatience = 24 * time.Hour

// localUpkeep is where the machine's own database is looked after: through the appliance that serves it, or, when none
// does, in the file itself under its lock.
type localUpkeep struct {
	cfg    *config.Config
	client *client
}

func (o *options) newUpkeep(cmd *cobra.Command) (*localUpkeep, error) {
	if o.server != "" || o.dataDir == "" && o.stdio.env("SIGNALBOX_SERVER") != "" {
		return nil, usagef("%s works on the machine of the appliance only: leave out --server and SIGNALBOX_SERVER, name the "+
			"data directory with --data-dir", cmd.CommandPath())
	}
	cfg, err := o.localConfig()
	if err != nil {
		return nil, err
	}
	c, err := o.newSocketClient()
	if err != nil {
		return nil, err
	}
	if !cmd.Flags().Changed("request-timeout") {
		c.timeout = upkeepPatience
	}
	return &localUpkeep{cfg: cfg, client: c}, nil
}

// database is the absolute path of the database file.
func (u *localUpkeep) database() (string, error) {
	return filepath.Abs(filepath.Join(u.cfg.DataDir, appliance.DatabaseFile))
}

// do asks the appliance; when nothing listens it calls stopped with the database.
func (u *localUpkeep) do(ctx context.Context, path string, query url.Values, body, answer any, stopped func(*store.File) error) error {
	err := u.client.do(ctx, "POST", path, query, body, answer)
	if !nothingListens(err) {
		return err
	}
	file, err := u.database()
	if err != nil {
		return err
	}
	f, err := store.OpenFile(ctx, file)
	if err != nil {
		return inUse(err, "it is starting or stopping, or its socket is elsewhere: name it with --config or SIGNALBOX_SERVER_ADMIN_SOCKET")
	}
	defer f.Close()
	return stopped(f)
}

// nothingListens tells a socket that is not there, or that a killed appliance left, from one that may not be opened.
func nothingListens(err error) bool {
	var unreachable *unreachableError
	return errors.As(err, &unreachable) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED))
}

// inUse makes a conflict with a next step of the error that somebody else holds the database.
func inUse(err error, hint string) error {
	if !store.InUse(err) {
		return err
	}
	e := exitf(ExitConflict, "%s", fault.Message(err))
	e.hint = hint
	return e
}

// backupResult is the answer of the server, also made up for a stopped appliance.
type backupResult struct {
	Path      string  `json:"path"`
	SizeBytes int64   `json:"size_bytes"`
	Seconds   float64 `json:"seconds"`
}

func newBackupCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the database to a new file, while the appliance runs or when it is stopped",
		Long: `Copy the database to a new file of mode 0600. The copy is one consistent state, on disk when the command ends, and
holds everything acknowledged before it began. A running appliance writes the file itself, as its own user, and
goes on serving meanwhile; of a stopped one the command copies the database under its lock.

An existing file is never overwritten. The master secret is not in the copy: keep secret.key (mode 0600) as well, but
apart from the copy. Without it every credential in the copy is void. Files that people and agents attached to messages
are not in it either: copy the directory media of the data directory afterwards.`,
		Example: `  signalbox backup /var/backups/signalbox.db
  signalbox backup "signalbox-$(date +%F).db" --data-dir /var/lib/signalbox --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			u, err := opts.newUpkeep(cmd)
			if err != nil {
				return err
			}
			var r backupResult
			body := map[string]string{"path": path}
			err = u.do(cmd.Context(), "/backup", nil, body, &r, func(f *store.File) error {
				r, err = opts.backupStopped(cmd.Context(), f, path)
				return err
			})
			if err != nil {
				return err
			}
			if opts.json {
				err = opts.out.object("backup", r)
			} else {
				opts.out.text("%s (%s)", r.Path, bytesText(r.SizeBytes))
			}
			opts.sayKeepSecret(u.cfg)
			opts.sayCopyFiles(u.cfg)
			return err
		},
	}
}

func (o *options) backupStopped(ctx context.Context, f *store.File, path string) (backupResult, error) {
	o.out.say("no appliance is running; copying the database itself")
	start := o.now()
	if err := f.Backup(ctx, path); err != nil {
		return backupResult{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return backupResult{}, err
	}
	return backupResult{Path: path, SizeBytes: info.Size(), Seconds: o.now().Sub(start).Seconds()}, nil
}

// sayKeepSecret reminds of what no copy of the database holds.
func (o *options) sayKeepSecret(cfg *config.Config) {
	o.out.say("the master secret is not in it: keep %s too, but apart from the copy; without it the credentials in "+
		"the copy are void", secretPlace(cfg))
}

// sayCopyFiles reminds of the files of messages, when there are any.
func (o *options) sayCopyFiles(cfg *config.Config) {
	if dir := filepath.Join(cfg.DataDir, appliance.MediaDir); holdsMedia(dir) {
		o.out.say("the files of messages are not in it: copy %s too, now that the database is copied", absolute(dir))
	}
}

// holdsMedia tells whether there are files; what cannot be read may hold some.
func holdsMedia(dir string) bool {
	shards, err := os.ReadDir(dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, shard := range shards {
		if len(shard.Name()) != 2 { // uploads under way
			continue
		}
		files, err := os.ReadDir(filepath.Join(dir, shard.Name()))
		if len(files) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// secretPlace names the file of the master secret, or says that the configuration has it.
func secretPlace(cfg *config.Config) string {
	path := filepath.Join(cfg.DataDir, appliance.SecretFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || !cfg.Secret.Secret.IsZero() {
		return "the configured secret"
	}
	return absolute(path) + " (mode 0600)"
}

// absolute makes a path fit for a message that is read elsewhere.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
