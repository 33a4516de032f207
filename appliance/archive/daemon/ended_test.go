package daemon_test

import (
	"context"
	"errors"
	"testing"

	"signalbox/appliance/archive/daemon"
	"signalbox/store/daemonstore"
)

// TestRunThatIsOverBeforeItBegins ends in good order: SIGTERM may come at any time.
func TestRunThatIsOverBeforeItBegins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		db, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: r.path, ClientID: self, Clock: r.clock})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		o := r.options
		o.Store, o.Steps, o.Inventory, o.Clock = db, r.steps, r.content, r.clock
		o.Dialer = dialFunc(func(context.Context) (daemon.Conn, error) { return nil, errors.New("nobody is there") })
		d, err := daemon.New(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := d.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
}
