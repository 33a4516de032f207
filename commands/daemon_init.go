package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"signalbox/appliance/daemonconfig"
)

// daemonInit are the flags of daemon init.
type daemonInit struct {
	control, name, role, dataDir, tokenFile, pin string
	allowPlain                                   bool
	content, receive, outbox, shared             []string
}

func newDaemonInitCommand(opts *options, file *string) *cobra.Command {
	var in daemonInit
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the configuration of a new daemon and make its directories",
		Long: `Write a configuration file with a new client ID and make the directories that belong to the daemon alone: its data
directory, receive and outbox roots. Content roots must be there. Nothing that exists is changed.

Roots are given as ID=PATH, or as PATH alone: the ID is then the kind. Keep receive and outbox roots on the file system of
the content, then jobs can link and rename instead of copying.`,
		Example: `  signalbox daemon init --config nas.toml --control ws://127.0.0.1:7700/daemon/v2 --name nas --content media=/srv/media \
      --receive /srv/in --outbox /srv/out --token-file daemon.token
  signalbox daemon init --config pi.toml --control wss://box.example/daemon/v2 --name pi --role target --content /srv/archive \
      --receive /srv/in --shared nas-out=/mnt/nas/out`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			path, err := opts.daemonFile(*file)
			if err != nil {
				return err
			}
			return opts.initDaemon(path, in)
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.control, "control", "", "URL of Archive Control: wss://HOST/daemon/v2, or ws:// on loopback")
	f.StringVar(&in.name, "name", "", "name of this machine; default: its host name")
	f.StringVar(&in.role, "role", "source_and_target", "source, target or source_and_target")
	f.StringVar(&in.dataDir, "state-dir", "", "directory of the daemon's database; default: the configuration file's name with -state")
	f.StringVar(&in.tokenFile, "token-file", "daemon.token", "file with the token of Archive Control, mode 0600 (daemon.token in control's data directory)")
	f.StringVar(&in.pin, "certificate-sha256", "", "pin control's certificate: 64 hex digits")
	f.BoolVar(&in.allowPlain, "allow-plain", false, "permit ws:// to another machine: the token crosses the network in clear")
	f.StringArrayVar(&in.content, "content", nil, "content root, [ID=]PATH; may be repeated")
	f.StringArrayVar(&in.receive, "receive", nil, "receive root, [ID=]PATH; may be repeated")
	f.StringArrayVar(&in.outbox, "outbox", nil, "outbox root, [ID=]PATH; may be repeated")
	f.StringArrayVar(&in.shared, "shared", nil, "where this machine sees another one's outbox, MARKER=PATH; may be repeated")
	return cmd
}

func (o *options) initDaemon(file string, in daemonInit) error {
	if in.control == "" {
		return usagef("--control is required: the URL of Archive Control, such as wss://box.example/daemon/v2")
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if in.name == "" {
		if in.name, err = os.Hostname(); err != nil {
			return fmt.Errorf("host name: %w; give --name", err)
		}
	}
	if in.dataDir == "" {
		in.dataDir = strings.TrimSuffix(file, filepath.Ext(file)) + "-state"
	}
	e := daemonconfig.Example{Control: in.control, ClientID: uuid.NewString(), Name: in.name, Role: in.role, TokenFile: in.tokenFile,
		CertificateSHA256: in.pin, AllowPlain: in.allowPlain}
	if e.DataDir, err = filepath.Abs(in.dataDir); err != nil {
		return err
	}
	for _, list := range []struct {
		kind daemonconfig.RootKind
		from []string
	}{{daemonconfig.Content, in.content}, {daemonconfig.Receive, in.receive}, {daemonconfig.Outbox, in.outbox}} {
		for _, text := range list.from {
			id, path, err := namedPath(text, string(list.kind))
			if err != nil {
				return err
			}
			e.Roots = append(e.Roots, daemonconfig.Root{ID: id, Kind: list.kind, Path: path})
		}
	}
	for _, text := range in.shared {
		marker, path, err := namedPath(text, "")
		if err != nil || marker == "" {
			return usagef("--shared %s: must be MARKER=PATH", text)
		}
		e.Shared = append(e.Shared, daemonconfig.Share{Marker: marker, Path: path})
	}
	text := daemonconfig.Render(e)
	c, err := daemonconfig.Parse(text, file, filepath.Dir(file))
	if err != nil {
		return &usageError{err: err}
	}
	made, err := makeDaemonDirs(c)
	if err != nil {
		return err
	}
	if err := writeNew(file, text); err != nil {
		return err
	}
	if o.json {
		return o.out.document(field{"config", file}, field{"client_id", e.ClientID}, field{"made", append(made, file)})
	}
	for _, path := range append(made, file) {
		o.out.say("made %s", path)
	}
	if _, err := os.Stat(c.TokenFile); err != nil {
		o.out.say("Put control's token into %s (mode 0600), then: signalbox daemon check --config %s", c.TokenFile, file)
	} else {
		o.out.say("Next: signalbox daemon check --config %s", file)
	}
	return nil
}

// namedPath reads [ID=]PATH.
func namedPath(text, name string) (id, path string, err error) {
	id, path, ok := strings.Cut(text, "=")
	if !ok {
		id, path = name, text
	}
	if path == "" {
		return "", "", usagef("%q: the path is missing", text)
	}
	path, err = filepath.Abs(path)
	return id, path, err
}

// makeDaemonDirs makes what belongs to the daemon. Content is the operator's: it must be there.
func makeDaemonDirs(c *daemonconfig.Config) (made []string, err error) {
	dirs := []string{c.DataDir}
	for _, r := range c.Roots {
		if r.Kind == daemonconfig.Content {
			if st, err := os.Stat(r.Path); err != nil || !st.IsDir() {
				return nil, usagef("content root %s: %s is no directory; make it, or name another", r.ID, r.Path)
			}
			continue
		}
		dirs = append(dirs, r.Path)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		made = append(made, dir)
	}
	return made, nil
}

// writeNew writes a file that must not exist yet.
func writeNew(file string, text []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return &exitError{code: ExitConflict, msg: file + " exists and was left as it is", hint: "edit it, or name another file with --config"}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
