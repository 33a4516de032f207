package daemonconfig

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/config"
)

// idRule is the form of root IDs and markers: they stand in routes, jobs and commands that people type.
var idRule = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

const idText = "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"

// problems checks every rule. It opens no file.
func (c *Config) problems() []config.Problem {
	v := &validator{}
	v.control(c)
	if id, err := uuid.Parse(c.ClientID); err != nil || id == uuid.Nil || id.String() != c.ClientID {
		v.add("client_id", "must be a UUID in lower case, such as 0b5e7a4e-3c0f-4d8e-9a51-6f0c2d1e8b77; make one with signalbox daemon init")
	}
	v.require("data_dir", c.DataDir, "must be set: the directory of the daemon's database")
	// A path of 107 bytes is the longest that a socket can have.
	if n := len(filepath.Join(c.DataDir, SocketFile)); c.DataDir != "" && n > 107 {
		v.add("data_dir", "is too long: the status socket %s in it would have a path of %d bytes, and at most 107 are possible", SocketFile, n)
	}
	v.require("token_file", c.TokenFile, "must be set: the file that holds the token of Archive Control")
	if n := len(c.Name); n < 1 || n > 128 || !utf8.ValidString(c.Name) || strings.ContainsFunc(c.Name, unicode.IsControl) {
		v.add("name", "must be a text of 1 to 128 bytes without control characters")
	}
	v.word("role", c.Role, "source", "target", "source_and_target")
	v.word("log.level", string(c.Log.Level), "trace", "debug", "info", "warn", "error")
	v.word("log.format", string(c.Log.Format), "auto", "text", "json")
	v.word("backend.kind", c.Backend.Kind, "directory")
	if c.Backend.QuietTime < 0 || c.Backend.QuietTime.Std().Minutes() > 10 {
		v.add("backend.quiet_time", "must be 0s to 10m")
	}
	v.mode("backend.library_mode", c.Backend.LibraryMode, 0o400)
	v.between("backend.search_depth", c.Backend.SearchDepth, 0, 16)
	v.rate("work.read_rate", c.Work.ReadRate)
	v.rate("work.write_rate", c.Work.WriteRate)
	v.between("work.transfers_per_root", c.Work.TransfersPerRoot, 1, 16)
	v.between("work.verifies_per_root", c.Work.VerifiesPerRoot, 1, 16)
	v.mode("publish.file_mode", c.Publish.FileMode, 0o400)
	v.mode("publish.directory_mode", c.Publish.DirectoryMode, 0o700)
	if s := c.TLS.CertificateSHA256; s != "" {
		if b, err := hex.DecodeString(s); err != nil || len(b) != 32 {
			v.add("tls.certificate_sha256", "must be 64 hex digits")
		}
	}
	v.roots(c)
	return v.all
}

type validator struct{ all []config.Problem }

func (v *validator) add(path, format string, args ...any) {
	v.all = append(v.all, config.Problem{Path: path, Msg: fmt.Sprintf(format, args...)})
}

func (v *validator) require(path, value, msg string) {
	switch {
	case value == "":
		v.add(path, "%s", msg)
	case strings.ContainsRune(value, 0):
		v.add(path, "must not contain a zero byte")
	}
}

func (v *validator) word(path, value string, words ...string) {
	if !slices.Contains(words, value) {
		v.add(path, "must be one of %s, got %q", strings.Join(words, ", "), value)
	}
}

func (v *validator) between(path string, n, low, high int) {
	if n < low || n > high {
		v.add(path, "must be %d to %d, got %d", low, high, n)
	}
}

func (v *validator) rate(path string, n config.Size) {
	if n < 0 || n > 0 && n < 64*config.KiB {
		v.add(path, "must be 0 for no bound, or at least 64KiB a second")
	}
}

// mode checks permission bits: readable by the owner, and never setuid, setgid or sticky.
func (v *validator) mode(path, text string, least uint64) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 || n&least != least {
		v.add(path, "must be octal permission bits up to 0777 that hold at least %#o, got %q", least, text)
	}
}

func (v *validator) control(c *Config) {
	u, err := url.Parse(c.Control)
	switch {
	case c.Control == "":
		v.add("control", "must be set: the URL of Archive Control, such as wss://box.example/daemon/v2")
	case err != nil || u.Host == "" || u.Scheme != "wss" && u.Scheme != "ws":
		v.add("control", "must be a ws:// or wss:// URL, such as wss://box.example/daemon/v2")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		v.add("control", "must not hold a user, a query or a fragment: the token is sent after the connection stands")
	case u.Scheme == "ws" && !c.AllowPlain && !loopback(u.Hostname()):
		v.add("control", "%s is on another machine and the token would cross the network in clear: use wss://, or set allow_plain = true "+
			"where something else encrypts the way", u.Host)
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// roots checks IDs and that no two roots lie in each other: a file would then have two names.
func (v *validator) roots(c *Config) {
	ids := map[string]bool{}
	kinds := map[RootKind]int{}
	for i, r := range c.Roots {
		at := fmt.Sprintf("root %d (%s)", i+1, r.ID)
		if !idRule.MatchString(r.ID) {
			v.add(at, "id %s", idText)
		} else if ids[r.ID] {
			v.add(at, "id is taken by another root")
		}
		ids[r.ID] = true
		if r.Kind != Content && r.Kind != Receive && r.Kind != Outbox {
			v.add(at, "kind must be one of content, receive, outbox, got %q", string(r.Kind))
		}
		kinds[r.Kind]++
		v.require(at+" path", r.Path, "must be set")
		for j, other := range c.Roots[:i] {
			if r.Path != "" && other.Path != "" && inside(r.Path, other.Path) {
				v.add(at, "its path and that of root %d (%s) lie in each other", j+1, other.ID)
			}
		}
	}
	if kinds[Content] == 0 {
		v.add("root", "at least one root of kind content is needed")
	}
	if c.Role != "target" && kinds[Outbox] == 0 {
		v.add("root", "a source needs a root of kind outbox")
	}
	if c.Role != "source" && kinds[Receive] == 0 {
		v.add("root", "a target needs a root of kind receive")
	}
	markers := map[string]bool{}
	for i, s := range c.Shared {
		at := fmt.Sprintf("shared %d (%s)", i+1, s.Marker)
		if !idRule.MatchString(s.Marker) {
			v.add(at, "marker %s", idText)
		} else if markers[s.Marker] {
			v.add(at, "marker is taken by another entry")
		}
		markers[s.Marker] = true
		v.require(at+" path", s.Path, "must be set")
	}
}

// inside reports whether one of the paths is the other or lies below it.
func inside(a, b string) bool {
	a, b = filepath.Clean(a), filepath.Clean(b)
	return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/") || strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/")
}
