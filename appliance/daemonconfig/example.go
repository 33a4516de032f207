package daemonconfig

import (
	"fmt"
	"strings"
)

// Example are the values that Render fills into a new file.
type Example struct {
	Control, ClientID, Name, Role, DataDir, TokenFile string
	CertificateSHA256                                 string
	AllowPlain                                        bool
	Roots                                             []Root
	Shared                                            []Share
}

// Render writes a configuration file with every key, its meaning and its default or the given value.
func Render(e Example) []byte {
	d := Default()
	if e.Role == "" {
		e.Role = d.Role
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Configuration of a Signalbox archive daemon. Relative paths are relative to this file's directory.")
	line("# Check it with: signalbox daemon check --config FILE")
	line("")
	line("# URL of Archive Control. ws:// is for loopback only, unless allow_plain is true.")
	line("control = %q", e.Control)
	line("allow_plain = %t", e.AllowPlain)
	line("# This daemon, for good. Control knows it by this; a copy of the file on another machine would be taken for the same daemon.")
	line("client_id = %q", e.ClientID)
	line("# Name of this machine, for people.")
	line("name = %q", e.Name)
	line("# What this machine may be in a job: source, target or source_and_target.")
	line("role = %q", e.Role)
	line("# Directory of the daemon's database. Losing it makes running jobs ask for a person; content is never touched for it.")
	line("data_dir = %q", e.DataDir)
	line("# File with the shared token of Archive Control; mode 0600.")
	line("token_file = %q", e.TokenFile)
	line("")
	line("[tls]")
	line("# PEM file of roots to trust instead of the system's; empty: the system's.")
	line("ca_file = \"\"")
	line("# SHA-256 of control's certificate, 64 hex digits: only that one is then accepted. Empty: not pinned.")
	line("certificate_sha256 = %q", e.CertificateSHA256)
	line("")
	line("[log]")
	line("# trace, debug, info, warn or error; auto, text or json.")
	line("level = %q", string(d.Log.Level))
	line("format = %q", string(d.Log.Format))
	line("")
	line("[backend]")
	line("# Who holds the content: directory.")
	line("kind = %q", d.Backend.Kind)
	line("# Directory of *.torrent files that describe content below the content roots; empty: none.")
	line("metainfo_dir = \"\"")
	line("# Directory that takes the torrent file of content that a job has brought here; empty: none.")
	line("library_dir = \"\"")
	line("# Permission bits of torrent files in library_dir: they may hold private keys. A client of another user needs 0640.")
	line("library_mode = %q", d.Backend.LibraryMode)
	line("# How many directories deep below a content root the content of torrents is looked for.")
	line("search_depth = %d", d.Backend.SearchDepth)
	line("# Also look whether a process has content open for writing before it is staged.")
	line("check_open_files = %t", d.Backend.CheckOpenFiles)
	line("# Two scans so far apart must be equal before content is staged.")
	line("quiet_time = %q", d.Backend.QuietTime.String())
	line("")
	line("[work]")
	line("# Steps at work on one root at a time.")
	line("transfers_per_root = %d", d.Work.TransfersPerRoot)
	line("verifies_per_root = %d", d.Work.VerifiesPerRoot)
	line("# Bytes per second that staging and verification read; 0: no bound.")
	line("read_rate = %q", d.Work.ReadRate.String())
	line("# Bytes per second that transfers and publishing copy; 0: as read_rate.")
	line("write_rate = %q", d.Work.WriteRate.String())
	line("")
	line("[publish]")
	line("# Permission bits of published files and directories, and their group; empty: the daemon's.")
	line("file_mode = %q", d.Publish.FileMode)
	line("directory_mode = %q", d.Publish.DirectoryMode)
	line("group = \"\"")
	line("")
	line("# Directories that the daemon may use. content: final content; receive: where jobs arrive, best on the file system of the")
	line("# content; outbox: where jobs are staged, best on the file system of the content. IDs are stable: jobs and routes name them.")
	for _, r := range e.Roots {
		line("")
		line("[[root]]")
		line("id = %q", r.ID)
		line("kind = %q", string(r.Kind))
		line("path = %q", r.Path)
	}
	line("")
	line("# Where this machine sees the outbox of another one: a mounted export, or a directory of the same machine.")
	if len(e.Shared) == 0 {
		line("# [[shared]]")
		line("# marker = \"nas-outbox\"")
		line("# path = \"/mnt/nas/outbox\"")
	}
	for _, s := range e.Shared {
		line("[[shared]]")
		line("marker = %q", s.Marker)
		line("path = %q", s.Path)
	}
	return []byte(b.String())
}
