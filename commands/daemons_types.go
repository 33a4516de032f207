package commands

import (
	"fmt"
	"strings"
	"time"

	pb "signalbox/appliance/archive/archivepb"
)

// archiveFault is an error of the archive plane, of a daemon or of control.
type archiveFault struct {
	Code      string            `json:"code"`
	Retryable bool              `json:"retryable"`
	Message   string            `json:"message"`
	Details   map[string]string `json:"details"`
}

func (e *archiveFault) String() string {
	if e == nil {
		return ""
	}
	if e.Message == "" {
		return e.Code
	}
	return e.Message + " (" + e.Code + ")"
}

type daemonRow struct {
	ID           string       `json:"id"`
	Name         string       `json:"name"`
	State        string       `json:"state"`
	Attached     bool         `json:"attached"`
	Role         string       `json:"role"`
	Software     string       `json:"software"`
	Version      string       `json:"version"`
	Capabilities []string     `json:"capabilities"`
	Generation   int64        `json:"generation"`
	StateEpoch   string       `json:"state_epoch"`
	Remote       string       `json:"remote"`
	ClockSkewMS  int64        `json:"clock_skew_ms"`
	RegisteredAt *time.Time   `json:"registered_at"`
	LastSeenAt   *time.Time   `json:"last_seen_at"`
	OfflineAt    *time.Time   `json:"offline_at"`
	FirstSeenAt  *time.Time   `json:"first_seen_at"`
	Alerts       []alertRow   `json:"alerts"`
	Views        []viewRow    `json:"views"`
	Storage      []storageRow `json:"storage"`
}

type alertRow struct {
	ID        int64      `json:"id"`
	Kind      string     `json:"kind"`
	Detail    string     `json:"detail"`
	DaemonID  *string    `json:"daemon_id"`
	JobID     *string    `json:"job_id"`
	Times     int64      `json:"times"`
	RaisedAt  *time.Time `json:"raised_at"`
	LastAt    *time.Time `json:"last_at"`
	ClearedAt *time.Time `json:"cleared_at"`
}

type viewRow struct {
	Scope       string     `json:"scope"`
	Entries     int64      `json:"entries"`
	CommittedAt *time.Time `json:"committed_at"`
}

type storageRow struct {
	RootID           string        `json:"root_id"`
	Kind             string        `json:"kind"`
	TotalBytes       uint64        `json:"total_bytes"`
	FreeBytes        uint64        `json:"free_bytes"`
	Writable         bool          `json:"writable"`
	SameFilesystemAs []string      `json:"same_filesystem_as"`
	Error            *archiveFault `json:"error"`
	SeenAt           *time.Time    `json:"seen_at"`
}

type contentIdentity struct {
	InfohashV1      *string `json:"infohash_v1"`
	InfohashV2      *string `json:"infohash_v2"`
	TreeFingerprint *string `json:"tree_fingerprint"`
}

type resourceRow struct {
	ResourceID             string          `json:"resource_id"`
	Name                   string          `json:"name"`
	Identity               contentIdentity `json:"identity"`
	LogicalBytes           uint64          `json:"logical_bytes"`
	SelectedBytes          uint64          `json:"selected_bytes"`
	CompletedSelectedBytes uint64          `json:"completed_selected_bytes"`
	FileCount              int64           `json:"file_count"`
	BackendState           string          `json:"backend_state"`
	Root                   string          `json:"root"`
	RelativeDir            string          `json:"relative_dir"`
	Absent                 bool            `json:"absent"`
	SeenAt                 *time.Time      `json:"seen_at"`
}

type treeDoc struct {
	ResourceID        string              `json:"resource_id"`
	Name              string              `json:"name"`
	Identity          contentIdentity     `json:"identity"`
	ContentRevision   string              `json:"content_revision"`
	BackendState      string              `json:"backend_state"`
	LogicalBytes      uint64              `json:"logical_bytes"`
	AllocatedBytes    uint64              `json:"allocated_bytes"`
	FileCount         int64               `json:"file_count"`
	MetaVersion       *int64              `json:"meta_version"`
	PieceBytes        *uint64             `json:"piece_bytes"`
	MetainfoAvailable bool                `json:"metainfo_available"`
	SharedWith        []string            `json:"shared_with"`
	FetchedAt         *time.Time          `json:"fetched_at"`
	Files             []record[treeEntry] `json:"files"`
	NextCursor        *string             `json:"next_cursor"`
}

type treeEntry struct {
	Index          int64  `json:"index"`
	Path           string `json:"path"`
	Kind           string `json:"kind"`
	LogicalBytes   uint64 `json:"logical_bytes"`
	AllocatedBytes uint64 `json:"allocated_bytes"`
	CompletedBytes uint64 `json:"completed_bytes"`
	Selected       bool   `json:"selected"`
	Sparse         bool   `json:"sparse"`
	Present        string `json:"present"`
}

type queryAnswer struct {
	QueryID  string        `json:"query_id"`
	State    string        `json:"state"`
	Entries  int64         `json:"entries"`
	Revision uint64        `json:"revision"`
	Error    *archiveFault `json:"error"`
}

type routeSide struct {
	DaemonID    string        `json:"daemon_id"`
	Daemon      string        `json:"daemon"`
	Online      bool          `json:"online"`
	RootID      string        `json:"root_id"`
	State       string        `json:"state"`
	Sequence    uint64        `json:"sequence"`
	Quarantined bool          `json:"quarantined"`
	Error       *archiveFault `json:"error"`
	UpdatedAt   *time.Time    `json:"updated_at"`
}

type routeRow struct {
	ID              string        `json:"id"`
	Name            string        `json:"name"`
	Kind            string        `json:"kind"`
	State           string        `json:"state"`
	Ready           bool          `json:"ready"`
	NotReadyBecause []string      `json:"not_ready_because"`
	SharedMarker    *string       `json:"shared_marker"`
	Source          routeSide     `json:"source"`
	Target          routeSide     `json:"target"`
	Error           *archiveFault `json:"error"`
	CreatedAt       *time.Time    `json:"created_at"`
	RemovedAt       *time.Time    `json:"removed_at"`
	Updates         []struct {
		Side     string        `json:"side"`
		Sequence uint64        `json:"sequence"`
		State    string        `json:"state"`
		Error    *archiveFault `json:"error"`
		At       *time.Time    `json:"at"`
	} `json:"updates"`
}

// sizeText shows bytes as people read them.
func sizeText(n uint64) string {
	if n < 1<<40 {
		return bytesText(int64(n))
	}
	return fmt.Sprintf("%.1f TiB", float64(n)/(1<<40))
}

// words shows a word of the protocol, which has underscores for spaces.
func words(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '_' {
			b[i] = ' '
		}
	}
	return string(b)
}

// protoWord is a value of the daemon protocol in lower case, without the prefix of its enum.
func protoWord(code pb.ErrorCode) string {
	return strings.ToLower(strings.TrimPrefix(code.String(), "ERROR_CODE_"))
}
