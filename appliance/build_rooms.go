package appliance

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/media"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
	"signalbox/store"
	"signalbox/transport/gateway"
	"signalbox/transport/roomapi"
	"signalbox/transport/roomconn"
	"signalbox/transport/roommcp"
)

// MediaDir holds the files of messages, in the data directory.
const MediaDir = "media"

// rooms are the parts of the rooms plane.
type rooms struct {
	feed        *feed.Feed
	connections *connection.Registry
	timeline    *timeline.Timeline
	identity    *identity.Identity
	directory   *directory.Directory
	media       *media.Media
	metrics     *roomMetrics

	streams *roomconn.Server
	agents  *roomapi.Server
	mcp     *roommcp.Server // nil: turned off
	people  *gateway.Server
}

// buildRooms makes the services of the rooms plane. Only the numbering is looked at before the listeners are bound: a
// database that was put back gets new numbers first (rooms protocol N.5).
func (a *Appliance) buildRooms(ctx context.Context) (err error) {
	r, c := &a.rooms, a.cfg.Room
	if r.metrics, err = newRoomMetrics(a.registry, a); err != nil {
		return err
	}
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](a.db), feed.Options{Retained: c.RetainedEvents,
		Age: c.RetainedAge.Std(), Start: a.start, Clock: a.clock, Upkeep: store.BindUpkeep[feed.Tx, feed.ReadTx](a.db),
		Observer: r.metrics})
	if err := a.recoverRooms(ctx, r.feed); err != nil {
		return err
	}
	r.identity = identity.New(store.Bind[identity.Tx, identity.ReadTx](a.db), a.auditLog,
		identity.Keys{Current: a.master.Current, Previous: a.master.Previous},
		identity.Options{Clock: a.clock, OnDelete: a.forgetRoomAgent, Trouble: a.metrics.trouble,
			Closed: func(agentNo int64, why string) { r.connections.AgentClosed(agentNo, why) }})
	r.connections = connection.New(r.identity, connection.Options{Clock: a.clock, Version: a.opts.Version,
		Observer: r.metrics, RoomExists: a.roomExists})
	r.timeline = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](a.db), r.feed, r.connections, a.hub,
		timeline.Options{MaxBody: int(c.MessageSize.Bytes()), Appended: r.metrics.appended})
	r.directory = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](a.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](a.db), Audit: a.auditLog, Log: r.timeline, Queue: r.feed,
		Changes: r.connections, Hub: a.hub})
	r.timeline.UseDirectory(r.directory)
	if _, err := r.identity.Operator(ctx); err != nil {
		return err
	}
	r.media, err = media.New(ctx, store.Bind[media.Tx, media.ReadTx](a.db), media.Options{
		Dir: filepath.Join(a.cfg.DataDir, MediaDir), MaxFile: c.MediaSize.Bytes(), MaxTotal: c.MediaTotal.Bytes(), Clock: a.clock})
	return err
}

// forgetRoomAgent removes what the parts keep of an agent, in the transaction that deletes it.
func (a *Appliance) forgetRoomAgent(tx identity.Tx, deleted room.Agent) error {
	whole := any(tx).(*store.Tx)
	if err := a.rooms.feed.ForgetAgent(whole, deleted.No); err != nil {
		return err
	}
	return a.rooms.directory.AgentDeleted(whole, deleted.No)
}

// roomExists tells a room that is not there from one that the agent is not in.
func (a *Appliance) roomExists(ctx context.Context, id uuid.UUID) (bool, error) {
	_, err := a.rooms.directory.Room(ctx, room.Platform(), id)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// buildRoomTransport makes what room agents and people connect to.
func (a *Appliance) buildRoomTransport(context.Context) error {
	r := &a.rooms
	log := a.log.With().Str("part", "rooms").Logger()
	delivered := roomconn.NewMetrics(a.registry)
	r.streams = roomconn.New(a.sessions, roomconn.Services{Agents: r.identity, Registry: r.connections, Feed: r.feed,
		Clock: a.clock, Log: log, Metrics: delivered},
		roomconn.Options{Version: a.opts.Version, RemoveSSE: !a.cfg.Room.SSE})
	table := operation.New(operation.Services{Directory: r.directory, Identity: r.identity, Timeline: r.timeline, Feed: r.feed,
		Connections: r.connections})
	r.agents = roomapi.New(roomapi.Services{Identity: r.identity, Operations: table, Timeline: r.timeline,
		Media: r.media, Connections: r.connections}, roomapi.Options{Version: a.opts.Version, Log: log})
	if a.cfg.Room.MCP {
		r.mcp = roommcp.New(roommcp.Services{Identity: r.identity, Operations: table, Connections: r.connections,
			Feed: r.feed}, roommcp.Options{Version: a.opts.Version, MaxBody: a.roomBodyLimit(), Clock: a.clock, Log: log,
			Metrics: delivered})
	}
	r.people = gateway.New(gateway.Services{Identity: r.identity, Directory: r.directory, Timeline: r.timeline, Media: r.media,
		Connections: r.connections, Hub: a.hub}, gateway.Options{Version: a.opts.Version,
		BehindProxy: a.cfg.Server.BehindProxy, Clock: a.clock, Log: log})
	return nil
}

// isUpload tells whether a request brings files.
func isUpload(r *http.Request) bool { return roomapi.IsUpload(r) || gateway.IsUpload(r) }

// takesRoomTexts tells whether a request may bring what rooms keep: messages, documents, instructions, profiles. Signing in
// is not among them, since it is open to everybody.
func takesRoomTexts(r *http.Request) bool {
	path := r.URL.Path
	switch path {
	case "/agents", "/mcp", "/api/v1/rooms", "/api/v1/room-agents":
		return true
	}
	for _, prefix := range []string{"/agents/", "/gateway/", "/api/v1/rooms/", "/api/v1/room-agents/"} {
		if strings.HasPrefix(path, prefix) {
			return !strings.HasPrefix(path, "/gateway/auth/")
		}
	}
	return false
}

// roomBodyLimit is the cap of a body that brings the largest text there is: JSON makes up to three times as much of
// letters, and of control characters more than anybody means.
func (a *Appliance) roomBodyLimit() int64 {
	return 3*max(a.cfg.Room.MessageSize.Bytes(), directory.MaxDocument) + 64<<10
}

// roomRoutes are those of the rooms plane on the main listener.
func (a *Appliance) roomRoutes(mux *http.ServeMux) {
	r := &a.rooms
	r.streams.Routes(mux)
	r.agents.Routes(mux)
	if r.mcp != nil {
		r.mcp.Routes(mux)
	}
	r.people.Routes(mux)
}

// sweepConnections ends what has lapsed. Its lateness is how the registry notices that the server stood still, so it has a
// goroutine of its own.
func (a *Appliance) sweepConnections(ctx context.Context) error {
	ticker := a.clock.NewTimer(connection.SweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
		a.rooms.connections.Sweep(a.clock.Now())
		ticker.Reset(connection.SweepEvery)
	}
}

// roomWorkers is the background work of the rooms plane.
func (a *Appliance) roomWorkers() []worker {
	r := &a.rooms
	return []worker{
		{"room event retention", eventSweepEvery, r.feed.Sweep},
		{"deleted rooms", retentionEvery, r.directory.PurgeDeleted},
		{"room files", retentionEvery, func(ctx context.Context) (n int, err error) {
			for more := true; more && err == nil; {
				var done media.Swept
				done, more, err = r.media.Sweep(ctx)
				n += done.Rows + done.Files
			}
			return n, err
		}},
	}
}

// eventSweepEvery is how often aged events are removed. Readers do not wait for it: they pass over them already.
const eventSweepEvery = 30 * time.Second

// mcpSessions counts the open MCP sessions.
func (r *rooms) mcpSessions() int {
	if r.mcp == nil {
		return 0
	}
	return r.mcp.Sessions()
}

// close ends what the transports of the plane have running.
func (r *rooms) close(ctx context.Context) error {
	if r.streams != nil {
		r.streams.Close()
	}
	return r.drainMCP(ctx)
}

// drainMCP ends the MCP sessions.
func (r *rooms) drainMCP(ctx context.Context) error {
	if r.mcp == nil {
		return nil
	}
	return r.mcp.Drain(ctx)
}
