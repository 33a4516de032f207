package config

import (
	"bufio"
	"fmt"
	"io"
	"text/tabwriter"
)

// Entry is one setting as "config show" prints it.
type Entry struct {
	// Key is the TOML path.
	Key string `json:"key"`
	// Value is the value in TOML syntax; a secret that is set is masked, one that is not is "".
	Value string `json:"value"`
	// Origin is "default", "file:line", "env NAME" or "flag --name".
	Origin string `json:"origin"`
}

// Show lists every setting with its value and origin, secrets masked. A nil Origins says default for all.
func Show(c *Config, o *Origins) []Entry {
	bound := bind(c)
	out := make([]Entry, len(bound))
	for i, b := range bound {
		out[i] = Entry{Key: b.Path, Value: b.literal(), Origin: o.Of(b.Path).String()}
	}
	return out
}

// WriteShow writes entries as aligned text, one setting a line.
func WriteShow(w io.Writer, entries []Entry) error {
	buf := bufio.NewWriter(w)
	tab := tabwriter.NewWriter(buf, 0, 4, 2, ' ', 0)
	for _, e := range entries {
		if _, err := fmt.Fprintf(tab, "%s\t= %s\t# %s\n", e.Key, e.Value, e.Origin); err != nil {
			return err
		}
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	return buf.Flush()
}
