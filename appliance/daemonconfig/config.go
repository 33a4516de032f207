// Package daemonconfig holds the settings of an archive daemon: one TOML file with what the machine has and may do.
//
// The token is never in it: the file names the file that holds it (daemon protocol 8.7).
package daemonconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"signalbox/appliance/config"
)

// SocketFile is the socket in the data directory on which a running daemon tells its status.
const SocketFile = "daemon.sock"

// maxFile bounds a file that is taken for a configuration.
const maxFile = 256 << 10

// Config is the whole configuration of a daemon. Load returns it checked, with every path absolute.
type Config struct {
	// Control is the URL of Archive Control: wss://host/daemon/v2, or ws:// on loopback.
	Control string `toml:"control"`
	// ClientID is this daemon for good, a UUID: it outlives the database.
	ClientID string `toml:"client_id"`
	// Name is shown to people.
	Name string `toml:"name"`
	// Role is source, target or source_and_target.
	Role string `toml:"role"`
	// DataDir holds the daemon's database and its status socket.
	DataDir string `toml:"data_dir"`
	// TokenFile holds the shared token; only its owner may read it.
	TokenFile string `toml:"token_file"`
	// AllowPlain permits ws:// to another machine.
	AllowPlain bool `toml:"allow_plain"`

	TLS     TLS     `toml:"tls"`
	Log     Log     `toml:"log"`
	Backend Backend `toml:"backend"`
	Work    Work    `toml:"work"`
	Publish Publish `toml:"publish"`
	Roots   []Root  `toml:"root"`
	Shared  []Share `toml:"shared"`
}

// TLS is the [tls] section. Without either key the system's roots decide.
type TLS struct {
	// CAFile is a PEM file with the roots to trust instead of the system's.
	CAFile string `toml:"ca_file"`
	// CertificateSHA256 pins control's certificate: the SHA-256 of its DER form, 64 hex digits.
	CertificateSHA256 string `toml:"certificate_sha256"`
}

// Log is the [log] section.
type Log struct {
	Level  config.LogLevel  `toml:"level"`
	Format config.LogFormat `toml:"format"`
}

// Backend is the [backend] section: who holds the content.
type Backend struct {
	// Kind is directory.
	Kind string `toml:"kind"`
	// MetainfoDir holds *.torrent files that describe content below the content roots; may be empty.
	MetainfoDir string `toml:"metainfo_dir"`
	// LibraryDir takes the torrent file of content that COMMIT activates; may be empty. Whoever watches it starts it whole:
	// content with unselected files is not put there.
	LibraryDir string `toml:"library_dir"`
	// LibraryMode are the octal permission bits of torrent files there. They may hold private announce keys.
	LibraryMode string `toml:"library_mode"`
	// SearchDepth is how many directories deep below a content root the content of torrents is looked for; 0: only in the
	// root itself.
	SearchDepth int `toml:"search_depth"`
	// CheckOpenFiles also looks whether a process has the content open for writing before it is staged.
	CheckOpenFiles bool `toml:"check_open_files"`
	// QuietTime is how far apart the two scans are that must be equal before content is staged.
	QuietTime config.Duration `toml:"quiet_time"`
}

// Work is the [work] section: how much the daemon does at a time.
type Work struct {
	// TransfersPerRoot and VerifiesPerRoot bound the steps at work on one root.
	TransfersPerRoot int `toml:"transfers_per_root"`
	VerifiesPerRoot  int `toml:"verifies_per_root"`
	// ReadRate bounds the bytes per second that staging and, for itself, verification read, WriteRate what transfers and
	// publishing copy; without it ReadRate bounds that too. 0 means no bound.
	ReadRate  config.Size `toml:"read_rate"`
	WriteRate config.Size `toml:"write_rate"`
}

// Publish is the [publish] section: what published files look like.
type Publish struct {
	// FileMode and DirectoryMode are octal permission bits.
	FileMode      string `toml:"file_mode"`
	DirectoryMode string `toml:"directory_mode"`
	// Group owns published files when set: a name or a number.
	Group string `toml:"group"`
}

// RootKind says what a root is for.
type RootKind string

// The kinds of roots (daemon protocol 1).
const (
	Content RootKind = "content"
	Receive RootKind = "receive"
	Outbox  RootKind = "outbox"
)

// Root is a [[root]]: one directory that the daemon may use.
type Root struct {
	// ID is stable: jobs and routes name it.
	ID   string   `toml:"id"`
	Kind RootKind `toml:"kind"`
	Path string   `toml:"path"`
}

// Share is a [[shared]]: where this machine sees the outbox of another one.
type Share struct {
	// Marker is the name that routes give to the shared outbox.
	Marker string `toml:"marker"`
	Path   string `toml:"path"`
}

// Default returns the settings without those that only the operator knows.
func Default() *Config {
	return &Config{
		Role:    "source_and_target",
		Log:     Log{Level: config.LevelInfo, Format: config.FormatAuto},
		Backend: Backend{Kind: "directory", LibraryMode: "0600", SearchDepth: 3, QuietTime: config.Duration(5 * time.Second)},
		Work:    Work{TransfersPerRoot: 1, VerifiesPerRoot: 1},
		Publish: Publish{FileMode: "0644", DirectoryMode: "0755"},
	}
}

// Load reads and checks the file. Every problem is collected; the error is then a *config.InvalidError. Relative paths
// are relative to the directory of the file.
func Load(file string) (*Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the daemon's configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the daemon's configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, &config.InvalidError{Problems: []config.Problem{{Path: file, Msg: fmt.Sprintf("is larger than %d bytes", maxFile)}}}
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("read the daemon's configuration: %w", err)
	}
	return Parse(data, file, dir)
}

// Parse is Load for a text: name stands for the file in messages, dir is what relative paths are relative to.
func Parse(data []byte, name, dir string) (*Config, error) {
	c := Default()
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, &config.InvalidError{Problems: decodeProblems(name, err)}
	}
	c.resolve(dir)
	if problems := c.problems(); len(problems) > 0 {
		return nil, &config.InvalidError{Problems: problems}
	}
	return c, nil
}

// resolve makes the paths absolute.
func (c *Config) resolve(dir string) {
	paths := []*string{&c.DataDir, &c.TokenFile, &c.TLS.CAFile, &c.Backend.MetainfoDir, &c.Backend.LibraryDir}
	for i := range c.Roots {
		paths = append(paths, &c.Roots[i].Path)
	}
	for i := range c.Shared {
		paths = append(paths, &c.Shared[i].Path)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// decodeProblems turns what the decoder found into problems with their places.
func decodeProblems(name string, err error) []config.Problem {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var out []config.Problem
		for _, e := range strict.Errors {
			row, _ := e.Position()
			out = append(out, config.Problem{Path: strings.Join(e.Key(), "."), Origin: fmt.Sprintf("%s:%d", name, row), Msg: "is not a known key"})
		}
		return out
	}
	place := name
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		row, col := decode.Position()
		place = fmt.Sprintf("%s:%d:%d", name, row, col)
		if key := strings.Join(decode.Key(), "."); key != "" {
			return []config.Problem{{Path: key, Origin: place, Msg: strings.TrimPrefix(err.Error(), "toml: ")}}
		}
	}
	return []config.Problem{{Path: place, Msg: strings.TrimPrefix(err.Error(), "toml: ")}}
}
