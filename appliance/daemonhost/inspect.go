package daemonhost

import (
	"context"
	"fmt"
	"os"
	"strings"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/daemonconfig"
	"signalbox/transport/archiveclient"
)

// Finding is one thing that Inspect looked at.
type Finding struct {
	Subject string `json:"subject"`
	OK      bool   `json:"ok"`
	Text    string `json:"text"`
}

// Inspect looks at everything that a daemon needs, without its database and without registering. It writes into roots only
// what measuring their file systems takes, and removes that again; a root that no daemon has used yet stays unmarked.
func Inspect(ctx context.Context, c *daemonconfig.Config, call bool) []Finding {
	var out []Finding
	add := func(subject string, err error, format string, args ...any) {
		f := Finding{Subject: subject, OK: err == nil, Text: fmt.Sprintf(format, args...)}
		if err != nil {
			f.Text = err.Error()
		}
		out = append(out, f)
	}
	known, err := readKnown(c.DataDir)
	if err != nil {
		add("data_dir", err, "")
	} else if st, err := os.Stat(c.DataDir); err != nil {
		add("data_dir", nil, "%s will be made at the first run", c.DataDir)
	} else if !st.IsDir() {
		add("data_dir", fmt.Errorf("%s is no directory", c.DataDir), "")
	} else {
		add("data_dir", nil, "%s", c.DataDir)
	}
	add("token_file", archiveclient.CheckTokenFile(c.TokenFile), "%s", c.TokenFile)
	var open []opened
	defer func() {
		for _, o := range open {
			_ = o.dir.Close()
		}
	}()
	for _, r := range c.Roots {
		var text string
		dir, err := openDir("root "+r.ID, r.Path, nil)
		if err == nil {
			open = append(open, opened{r, dir})
			if err = apart(open); err == nil {
				text, err = inspectRoot(ctx, r, dir, c.ClientID, known[r.ID])
			}
		}
		add(string(r.Kind)+" root "+r.ID, err, "%s", text)
	}
	for _, s := range c.Shared {
		text, err := inspectShared(s)
		add("shared "+s.Marker, err, "%s", text)
	}
	if call {
		text, err := callControl(ctx, c)
		add("control", err, "%s", text)
	}
	return out
}

func inspectRoot(ctx context.Context, r daemonconfig.Root, dir *beneath.Root, client string, known bool) (string, error) {
	owner, err := dir.Owner()
	switch {
	case err != nil:
		return "", err
	case owner.Root != "" && owner.Root != r.ID:
		return "", fmt.Errorf("%s belongs to root %q already; each directory serves one root", r.Path, owner.Root)
	case owner.Daemon != "" && owner.Daemon != client:
		return "", moved(r.ID, fmt.Errorf("%w: %s is %q of daemon %s", beneath.ErrOtherDaemon, r.Path, owner.Root, owner.Daemon))
	case owner.Root == "" && known:
		return "", fmt.Errorf("%s has no owner file although this daemon has used the root: is its file system mounted?", r.Path)
	}
	_, free, err := dir.Space()
	if err != nil {
		return "", err
	}
	m, err := dir.Probe(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s free, %s", r.Path, archive.SizeText(free), abilities(m.Profile)), nil
}

// abilities says in words what a file system can do.
func abilities(p *pb.FilesystemProfile) string {
	var can []string
	for _, a := range []struct {
		there bool
		name  string
	}{{p.GetSupportsSparse(), "sparse files"}, {p.GetSupportsHardlink(), "hard links"}, {p.GetSupportsReflink(), "clones"},
		{p.GetSupportsNoreplaceRename(), "renames that replace nothing"}} {
		if a.there {
			can = append(can, a.name)
		}
	}
	text := "has " + strings.Join(can, ", ")
	if len(can) == 0 {
		text = "has no sparse files, links or clones"
	}
	if !p.GetCaseSensitive() {
		text += "; folds case"
	}
	return text
}

func inspectShared(s daemonconfig.Share) (string, error) {
	dir, err := openDir("shared "+s.Marker, s.Path, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = dir.Close() }()
	owner, err := dir.Owner()
	if err != nil {
		return "", err
	}
	if owner.Root == "" {
		return "", fmt.Errorf("%s is no outbox of a daemon: it has no owner file. Is it mounted, and has the other daemon run once?", s.Path)
	}
	return fmt.Sprintf("%s is outbox root %s of its machine", s.Path, owner.Root), nil
}

// callControl opens a connection and ends it again before anything is said.
func callControl(ctx context.Context, c *daemonconfig.Config) (string, error) {
	d, err := archiveclient.New(archiveclient.Options{URL: c.Control, AllowPlain: c.AllowPlain, TokenFile: c.TokenFile, CAFile: c.TLS.CAFile,
		PinSHA256: c.TLS.CertificateSHA256})
	if err != nil {
		return "", err
	}
	conn, err := d.Dial(ctx)
	if err != nil {
		return "", err
	}
	conn.Close(1000, "")
	return c.Control + " answers", nil
}
