package daemonhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"syscall"
	"time"

	"signalbox/appliance/archive"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/daemonconfig"
)

// SocketFile is the socket in the data directory on which a running daemon tells its status.
const SocketFile = daemonconfig.SocketFile

// Status is what a daemon tells of itself.
type Status struct {
	ClientID          string      `json:"client_id"`
	StateEpoch        string      `json:"state_epoch"`
	Control           string      `json:"control"`
	Connection        string      `json:"connection"` // dialing, registered, waiting, or stopped
	Generation        uint64      `json:"generation"`
	InventoryRevision uint64      `json:"inventory_revision"`
	OutboxDepth       uint64      `json:"outbox_depth"`
	BusyWorkers       int         `json:"busy_workers"`
	Jobs              []JobStatus `json:"jobs"`
	Closing           []string    `json:"closing"` // IDs of ended jobs whose own files are still being removed
	Routes            []RouteLine `json:"routes"`
	// Reading is content without a torrent that is listed once it has been read.
	Reading []ReadingLine `json:"reading"`
	// Leftovers are directories of jobs that this daemon does not work on, and what it put aside because it has no record of
	// it: a database that was lost made them, or a job left them for a person. At most 100.
	Leftovers []Leftover `json:"leftovers"`
	// Refused tells which torrent files the backend does not use, and why; at most 100.
	Refused []string `json:"refused"`
}

// JobStatus is one job of a daemon.
type JobStatus struct {
	JobID     string `json:"job_id"`
	Role      string `json:"role"`
	State     string `json:"state"`
	Step      string `json:"step"` // "" without an open step
	Revision  uint64 `json:"revision"`
	Sequence  uint64 `json:"sequence"`
	Committed bool   `json:"committed"`
}

// Leftover is a directory of a job that ended here, or is not known here.
type Leftover struct {
	RootID string `json:"root_id"`
	Path   string `json:"path"` // as the machine names it

	job string // "" for what was put aside
}

// maxLeftovers is how many of them a status shows.
const maxLeftovers = 100

// owned are the IDs of the jobs that the daemon works on or clears away.
func (s Status) owned() map[string]bool {
	at := map[string]bool{}
	for _, j := range s.Jobs {
		at[j.JobID] = true
	}
	for _, id := range s.Closing {
		at[id] = true
	}
	return at
}

// leftovers lists them: what belongs to no job of at. A root that cannot be read has none to show.
func (r *roots) leftovers(at map[string]bool) []Leftover {
	out := []Leftover{}
	full := errors.New("enough")
	for _, o := range r.list {
		_ = layout.Leftovers(o.dir, func(id string) bool { return at[id] }, func(id, name string) error {
			if len(out) == maxLeftovers {
				return full
			}
			out = append(out, Leftover{o.ID, filepath.Join(o.Path, filepath.FromSlash(name)), id})
			return nil
		})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// RouteLine is one side of a route at a daemon.
type RouteLine struct {
	RouteID  string `json:"route_id"`
	Name     string `json:"name"`
	Side     string `json:"side"`
	State    string `json:"state"`
	Sequence uint64 `json:"sequence"`
}

// ReadingLine is content that is read, or waits for it.
type ReadingLine struct {
	ResourceID string `json:"resource_id"`
	Name       string `json:"name"`  // "" when it is not known
	Bytes      uint64 `json:"bytes"` // 0: not known
	Active     bool   `json:"active"`
}

// statusOf puts the engine's status into words.
func statusOf(s daemon.Status, control string, refused []error) Status {
	out := Status{ClientID: s.ClientID.String(), StateEpoch: s.Epoch.String(), Control: control, Connection: string(s.Connection),
		Generation: s.Generation, InventoryRevision: s.InventoryRevision, OutboxDepth: s.OutboxDepth, BusyWorkers: s.BusyWorkers,
		Jobs: []JobStatus{}, Closing: []string{}, Routes: []RouteLine{}, Reading: []ReadingLine{}, Refused: []string{}}
	for _, err := range refused {
		out.Refused = append(out.Refused, err.Error())
	}
	for _, r := range s.Reading {
		out.Reading = append(out.Reading, ReadingLine(r))
	}
	for _, j := range s.Jobs {
		out.Jobs = append(out.Jobs, JobStatus{JobID: j.GetJobId(), Role: archive.Word(j.GetRole()), State: archive.Word(j.GetState()), Step: archive.Word(j.GetActiveStep()),
			Revision: j.GetRevision(), Sequence: j.GetLastEventSequence(), Committed: j.GetCommitted()})
	}
	for _, id := range s.Closing {
		out.Closing = append(out.Closing, id.String())
	}
	for _, r := range s.Routes {
		out.Routes = append(out.Routes, RouteLine{RouteID: r.ID.String(), Name: r.Route.GetDisplayName(), Side: archive.Word(r.Side), State: archive.Word(r.State),
			Sequence: r.LastSequence})
	}
	sort.Slice(out.Routes, func(i, j int) bool { return out.Routes[i].Name < out.Routes[j].Name })
	return out
}

type statusServer struct {
	server *http.Server
	path   string
}

// serveStatus listens on a socket that only the daemon's own user may use.
func serveStatus(ctx context.Context, path string, d *daemon.Daemon, control string, refused func() []error, own *roots) (*statusServer, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("status socket: %w", err), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		s, err := d.Status(r.Context())
		out := statusOf(s, control, refused())
		if err == nil {
			at := out.owned()
			out.Leftovers = own.leftovers(at)
			// A job that began meanwhile is no leftover either.
			s, err = d.Status(r.Context())
			maps.Copy(at, statusOf(s, control, nil).owned())
			out.Leftovers = slices.DeleteFunc(out.Leftovers, func(l Leftover) bool { return at[l.job] })
		}
		if err != nil {
			http.Error(w, "the daemon's database could not be read", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})
	s := &statusServer{server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, path: path}
	go func() { _ = s.server.Serve(l) }()
	return s, nil
}

func (s *statusServer) close() {
	_ = s.server.Close()
	_ = os.Remove(s.path)
}

// ErrNotRunning is returned by ReadStatus when no daemon listens on the socket.
var ErrNotRunning = errors.New("the daemon is not running")

// ReadStatus asks a running daemon.
func ReadStatus(ctx context.Context, socket string) (Status, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/status", nil)
	if err != nil {
		return Status{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		if _, there := os.Stat(socket); there != nil || isRefused(err) {
			return Status{}, ErrNotRunning
		}
		return Status{}, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return Status{}, fmt.Errorf("the daemon answered %s", res.Status)
	}
	var s Status
	return s, json.NewDecoder(res.Body).Decode(&s)
}

// isRefused reports that a socket's file is there and nobody listens on it.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
