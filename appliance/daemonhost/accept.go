package daemonhost

import (
	"fmt"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/fault"
)

// Accepted is what Accept did.
type Accepted struct {
	Root string `json:"root"`
	Path string `json:"path"`
	// Was is the client ID of the daemon that the root belonged to; empty when its owner file named none.
	Was string `json:"was"`
	// Daemon is the client ID of the daemon that it belongs to now.
	Daemon string `json:"daemon"`
}

// Accept hands the configured root over to this daemon when it belongs to another one: its disk was moved here. A root that
// is this daemon's already stays as it is. It refuses a directory without an owner file, which may be an empty mount point,
// and one of another root; then nothing is written. NotFound when no root of that id is configured.
func Accept(c *daemonconfig.Config, id string) (Accepted, error) {
	for _, r := range c.Roots {
		if r.ID != id {
			continue
		}
		dir, err := openDir("root "+id, r.Path, nil)
		if err != nil {
			return Accepted{}, err
		}
		defer func() { _ = dir.Close() }()
		was, err := dir.Accept(beneath.Owner{Root: id, Daemon: c.ClientID})
		if err != nil {
			return Accepted{}, fmt.Errorf("root %s (%s): %w", id, r.Path, err)
		}
		return Accepted{Root: id, Path: r.Path, Was: was.Daemon, Daemon: c.ClientID}, nil
	}
	return Accepted{}, fault.New(fault.NotFound, "the configuration has no root %q", id)
}
