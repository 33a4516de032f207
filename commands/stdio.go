package commands

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Assets are the files that only main can embed, and the version stamped at link time.
type Assets struct {
	Schema        string // schema.sql
	ExampleConfig string // config.example.toml
	Version       string // empty: taken from the build information
}

// Stdio is the world a command sees: its streams and its environment. Tests hand in their own.
type Stdio struct {
	In  io.Reader
	Out io.Writer // results
	Err io.Writer // talk: notices, hints, errors

	IsTerminal   bool // Out is a terminal: relative times and indented JSON
	InIsTerminal bool // In is a terminal: a confirmation may be asked for

	Env []string // "NAME=value", like os.Environ; the last of equal names counts
}

// SystemStdio is the Stdio of the process.
func SystemStdio() Stdio {
	return Stdio{
		In:           os.Stdin,
		Out:          os.Stdout,
		Err:          os.Stderr,
		IsTerminal:   term.IsTerminal(int(os.Stdout.Fd())),
		InIsTerminal: term.IsTerminal(int(os.Stdin.Fd())),
		Env:          os.Environ(),
	}
}

// env returns the value of a variable, "" when it is unset.
func (s Stdio) env(key string) string {
	for i := len(s.Env) - 1; i >= 0; i-- {
		if name, value, ok := strings.Cut(s.Env[i], "="); ok && name == key {
			return value
		}
	}
	return ""
}
