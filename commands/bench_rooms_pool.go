package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

const (
	// benchParallel is how many requests of the preparation are on their way at once.
	benchParallel = 16
	// benchCleanup bounds the deletions at the end of a run.
	benchCleanup = 5 * time.Minute
)

// roomsPool is what a run made: agents, and rooms with them.
type roomsPool struct {
	client   *client
	endpoint string
	http     *http.Client // of the agents
	run      string       // names what belongs to the run
	rooms    []*benchRoom

	mu     sync.Mutex
	agents []string // ids
	made   []string // ids of rooms
}

// benchRoom is one room with its agents.
type benchRoom struct {
	id        string
	senders   []*roomclient.Config
	receivers []*roomReceiver

	stored   atomic.Int64  // posts acknowledged
	received atomic.Int64  // of them, by all receivers together
	held     atomic.Int64  // senders that wait for the receivers
	moved    chan struct{} // has room for one hint
}

// openPool registers the agents and makes the rooms. When it fails nothing is left.
func (b *benchRooms) openPool(ctx context.Context, opts *options) (*roomsPool, error) {
	c, err := opts.newClient()
	if err != nil {
		return nil, err
	}
	p := &roomsPool{client: c, endpoint: b.url, run: "bench-" + uuid.NewString()[:8]}
	if p.endpoint == "" {
		p.endpoint = opts.findBrainURL(c)
	}
	if p.endpoint == "" {
		return nil, usagef("--agent-url: needed, for the server's own address is not known here")
	}
	base, err := parseServer(p.endpoint)
	if err != nil {
		return nil, usagef("--agent-url: %w", err)
	}
	p.endpoint = base.String()
	tlsConfig, err := opts.benchTLS()
	if err != nil {
		return nil, err
	}
	all := b.senders + b.receivers
	p.http = &http.Client{CheckRedirect: refuseRedirect, Transport: &http.Transport{TLSClientConfig: tlsConfig, Proxy: http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: all, DisableCompression: true}}
	configs := make([]*roomclient.Config, all)
	err = inParallel(ctx, all, benchParallel, func(ctx context.Context, i int) (err error) {
		if configs[i], err = p.register(ctx, fmt.Sprintf("%s-%d", p.run, i+1)); err == nil {
			configs[i].TLS = tlsConfig
		}
		return err
	})
	for i := 0; i < b.rooms && err == nil; i++ {
		room := &benchRoom{moved: make(chan struct{}, 1)}
		for n := i; n < b.senders; n += b.rooms {
			room.senders = append(room.senders, configs[n])
		}
		for n := b.senders + i; n < all; n += b.rooms {
			room.receivers = append(room.receivers, newRoomReceiver(room, configs[n]))
		}
		p.rooms = append(p.rooms, room)
		err = p.makeRoom(ctx, room, fmt.Sprintf("%s-room-%d", p.run, i+1))
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// register makes one agent that everybody may address. The request is not broken off by an interrupt: what it made would
// not be known.
func (p *roomsPool) register(ctx context.Context, name string) (*roomclient.Config, error) {
	var r registeredAgent
	body := map[string]any{"name": name, "description": "of signalbox bench rooms", "connection_model": "always_on", "open": true}
	if err := p.client.post(context.WithoutCancel(ctx), "/room-agents", body, &r); err != nil {
		return nil, fmt.Errorf("register room agent %s: %w", name, err)
	}
	p.mu.Lock()
	p.agents = append(p.agents, r.Agent.V.ID)
	p.mu.Unlock()
	id, err := uuid.Parse(r.Agent.V.ID)
	if err != nil {
		return nil, fmt.Errorf("register room agent %s: %w", name, err)
	}
	return &roomclient.Config{Endpoint: p.endpoint, Token: secret.NewText(r.APIKey), AgentID: id, HTTP: p.http}, nil
}

func (p *roomsPool) makeRoom(ctx context.Context, room *benchRoom, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ids := make([]string, 0, len(room.senders)+len(room.receivers))
	for _, v := range room.receivers {
		ids = append(ids, v.config.AgentID.String())
	}
	for _, c := range room.senders {
		ids = append(ids, c.AgentID.String())
	}
	founders := ids[:min(len(ids), benchFounders)]
	var r record[roomRow]
	body := map[string]any{"name": name, "description": "of signalbox bench rooms", "agent_ids": founders, "request_id": name}
	if err := p.client.post(context.WithoutCancel(ctx), "/rooms", body, &r); err != nil {
		return fmt.Errorf("create room %s: %w", name, err)
	}
	room.id, p.made = r.V.ID, append(p.made, r.V.ID)
	if late := ids[len(founders):]; len(late) > 0 {
		body := map[string]any{"agent_ids": late}
		if err := p.client.post(context.WithoutCancel(ctx), roomPath("rooms", room.id, "agents"), body, nil); err != nil {
			return fmt.Errorf("invite into room %s: %w", name, err)
		}
	}
	return nil
}

// close deletes the rooms and the agents.
func (p *roomsPool) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), benchCleanup)
	defer cancel()
	p.http.CloseIdleConnections()
	var (
		mu   sync.Mutex
		errs []error
	)
	remove := func(kind string, ids []string) {
		_ = inParallel(ctx, len(ids), benchParallel, func(ctx context.Context, i int) error {
			if err := p.client.do(ctx, http.MethodDelete, roomPath(kind, ids[i]), nil, nil, nil); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("delete %s %s: %w", kind, ids[i], err))
			}
			return nil
		})
	}
	remove("rooms", p.made)
	remove("room-agents", p.agents)
	if len(errs) > 1 {
		errs = []error{fmt.Errorf("%w; %d more of this run (%s) are left too", errs[0], len(errs)-1, url.PathEscape(p.run))}
	}
	return errors.Join(errs...)
}

// inParallel runs do for 0 to n-1, at most limit at a time. The first error ends it, when those that run have returned.
func inParallel(ctx context.Context, n, limit int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next    atomic.Int64
		workers sync.WaitGroup
	)
	for range min(limit, n) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}
