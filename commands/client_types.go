package commands

import (
	"encoding/json"
	"time"
)

// record is a row of the server: the fields this client shows, and the bytes it came in. --json passes the bytes on, so a
// field that a newer server adds reaches scripts through an older client.
type record[T any] struct {
	V   T
	raw json.RawMessage
}

// values are the fields of rows.
func values[T any](rows []record[T]) []T {
	out := make([]T, 0, len(rows))
	for _, r := range rows {
		out = append(out, r.V)
	}
	return out
}

func (r *record[T]) UnmarshalJSON(data []byte) error {
	r.raw = append(json.RawMessage(nil), data...)
	return json.Unmarshal(data, &r.V)
}

func (r record[T]) MarshalJSON() ([]byte, error) {
	if len(r.raw) == 0 {
		return []byte("null"), nil
	}
	return r.raw, nil
}

// page is one page of a list, newest first.
type page[T any] struct {
	Items      []record[T] `json:"items"`
	NextCursor *string     `json:"next_cursor"`
}

type project struct {
	ID            string    `json:"id"`
	Slug          string    `json:"slug"`
	Name          string    `json:"name"`
	Description   *string   `json:"description"`
	Environment   string    `json:"environment"`
	Timezone      string    `json:"timezone"`
	RetentionDays int       `json:"retention_days"`
	IsActive      bool      `json:"is_active"`
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
}

type agentRow struct {
	ID                string              `json:"id"`
	ProjectID         string              `json:"project_id"`
	Name              string              `json:"name"`
	State             string              `json:"state"`
	ProtocolVersion   string              `json:"protocol_version"`
	FrameworkAdapter  string              `json:"framework_adapter"`
	EngineAdapters    []string            `json:"engine_adapters"`
	SchedulerAdapters []string            `json:"scheduler_adapters"`
	Capabilities      map[string][]string `json:"capabilities"`
	LastSeenAt        *time.Time          `json:"last_seen_at"`
	LastConnectAt     *time.Time          `json:"last_connect_at"`
	CreatedAt         time.Time           `json:"created_at"`
	RevokedAt         *time.Time          `json:"revoked_at"`
	HostName          *string             `json:"host_name"`
	AgentVersion      *string             `json:"agent_version"`
	VersionStatus     *string             `json:"version_status"`
	RuntimeFeatures   []string            `json:"runtime_features"`
	Sessions          []agentSession      `json:"sessions"`
	DeclaredEngines   []string            `json:"declared_engines"`
	Notes             []string            `json:"notes"`
}

type agentSession struct {
	Transport   string     `json:"transport"`
	SessionID   string     `json:"session_id"`
	WorkerID    *string    `json:"worker_id"`
	WorkerRole  *string    `json:"worker_role"`
	RemoteAddr  string     `json:"remote_addr"`
	ConnectedAt *time.Time `json:"connected_at"`
	LastFrameAt *time.Time `json:"last_frame_at"`
}

type minted struct {
	Agent      record[agentRow] `json:"agent"`
	Token      string           `json:"token"`
	HMACSecret string           `json:"hmac_secret"`
}

type commandRow struct {
	ID           string          `json:"id"`
	AgentID      *string         `json:"agent_id"`
	IssuedBy     *string         `json:"issued_by"`
	Action       string          `json:"action"`
	TargetType   string          `json:"target_type"`
	TargetID     *string         `json:"target_id"`
	Payload      json.RawMessage `json:"payload"`
	Status       string          `json:"status"`
	Result       json.RawMessage `json:"result"`
	Error        *string         `json:"error"`
	IssuedAt     *time.Time      `json:"issued_at"`
	DispatchedAt *time.Time      `json:"dispatched_at"`
	CompletedAt  *time.Time      `json:"completed_at"`
	TimeoutAt    *time.Time      `json:"timeout_at"`
}

// terminal reports whether nothing more happens to the command, except a late result, which changes nothing.
func (c commandRow) terminal() bool {
	switch c.Status {
	case "completed", "failed", "timeout", "cancelled":
		return true
	}
	return false
}

type delivery struct {
	Attempt    int        `json:"attempt"`
	Transport  string     `json:"transport"`
	SessionID  *string    `json:"session_id"`
	WorkerID   *string    `json:"worker_id"`
	ClaimedAt  *time.Time `json:"claimed_at"`
	SentAt     *time.Time `json:"sent_at"`
	AckedAt    *time.Time `json:"acked_at"`
	FinishedAt *time.Time `json:"finished_at"`
	Outcome    string     `json:"outcome"`
	Reason     *string    `json:"reason"`
}

type transition struct {
	Seq    int64      `json:"seq"`
	At     *time.Time `json:"at"`
	Status string     `json:"status"`
	Event  string     `json:"event"`
	Detail *string    `json:"detail"`
}

type explanation struct {
	Command    record[commandRow] `json:"command"`
	Summary    string             `json:"summary"`
	Sentences  []string           `json:"sentences"`
	WaitingFor *string            `json:"waiting_for"`
	Candidates []candidate        `json:"candidates"`
	Next       *struct {
		What string     `json:"what"`
		At   *time.Time `json:"at"`
	} `json:"next"`
	Deliveries []delivery   `json:"deliveries"`
	Timeline   []transition `json:"timeline"`
}

type candidate struct {
	SessionID string  `json:"session_id"`
	Transport string  `json:"transport"`
	WorkerID  *string `json:"worker_id"`
	Eligible  bool    `json:"eligible"`
	Reason    string  `json:"reason"`
}

type eventRow struct {
	ID         string          `json:"id"`
	AgentID    *string         `json:"agent_id"`
	Engine     string          `json:"engine"`
	TaskID     string          `json:"task_id"`
	Kind       string          `json:"kind"`
	OccurredAt *time.Time      `json:"occurred_at"`
	Payload    json.RawMessage `json:"payload"`
}

type taskRow struct {
	Engine       string          `json:"engine"`
	TaskID       string          `json:"task_id"`
	Name         string          `json:"name"`
	Queue        *string         `json:"queue"`
	State        string          `json:"state"`
	Priority     string          `json:"priority"`
	Args         json.RawMessage `json:"args"`
	Kwargs       json.RawMessage `json:"kwargs"`
	Result       json.RawMessage `json:"result"`
	Exception    *string         `json:"exception"`
	Traceback    *string         `json:"traceback"`
	RetryCount   int             `json:"retry_count"`
	ReceivedAt   *time.Time      `json:"received_at"`
	StartedAt    *time.Time      `json:"started_at"`
	FinishedAt   *time.Time      `json:"finished_at"`
	RuntimeMS    *float64        `json:"runtime_ms"`
	WorkerName   *string         `json:"worker_name"`
	ParentTaskID *string         `json:"parent_task_id"`
	RootTaskID   *string         `json:"root_task_id"`
	UpdatedAt    *time.Time      `json:"updated_at"`
}

type taskTree struct {
	RootTaskID string     `json:"root_task_id"`
	NodeCount  int        `json:"node_count"`
	Truncated  bool       `json:"truncated"`
	Nodes      []treeNode `json:"nodes"`
}

type treeNode struct {
	TaskID       string     `json:"task_id"`
	Name         string     `json:"name"`
	State        string     `json:"state"`
	ParentTaskID *string    `json:"parent_task_id"`
	ReceivedAt   *time.Time `json:"received_at"`
	FinishedAt   *time.Time `json:"finished_at"`
}

type workerRow struct {
	ID            string     `json:"id"`
	Engine        string     `json:"engine"`
	Name          string     `json:"name"`
	Hostname      *string    `json:"hostname"`
	PID           *int64     `json:"pid"`
	Concurrency   *int64     `json:"concurrency"`
	Queues        []string   `json:"queues"`
	State         string     `json:"state"`
	LastHeartbeat *time.Time `json:"last_heartbeat"`
	ActiveTasks   *int64     `json:"active_tasks"`
}

type queueRow struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	Engine       string     `json:"engine"`
	BrokerType   *string    `json:"broker_type"`
	PendingCount *int64     `json:"pending_count"`
	LastSeenAt   *time.Time `json:"last_seen_at"`
}

type auditRow struct {
	ID         string          `json:"id"`
	ProjectID  *string         `json:"project_id"`
	UserID     *string         `json:"user_id"`
	Action     string          `json:"action"`
	TargetType *string         `json:"target_type"`
	TargetID   *string         `json:"target_id"`
	Result     *string         `json:"result"`
	Outcome    *string         `json:"outcome"`
	Metadata   json.RawMessage `json:"metadata"`
	SourceIP   *string         `json:"source_ip"`
	OccurredAt *time.Time      `json:"occurred_at"`
}

type auditVerdict struct {
	OK       bool   `json:"ok"`
	Checked  int64  `json:"checked"`
	FirstSeq *int64 `json:"first_seq"`
	LastSeq  *int64 `json:"last_seq"`
	Broken   *struct {
		Seq    int64  `json:"seq"`
		Reason string `json:"reason"`
	} `json:"broken"`
}

type apiKeyRow struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Prefix     string     `json:"prefix"`
	Role       string     `json:"role"`
	Scopes     []string   `json:"scopes"`
	ProjectID  *string    `json:"project_id"`
	CreatedAt  *time.Time `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	Token      string     `json:"token"`
}

type statusRow struct {
	Version   string     `json:"version"`
	StartedAt *time.Time `json:"started_at"`
	Epoch     string     `json:"epoch"`
	Store     struct {
		Path          string `json:"path"`
		SizeBytes     int64  `json:"size_bytes"`
		WALBytes      int64  `json:"wal_bytes"`
		SchemaVersion int    `json:"schema_version"`
	} `json:"store"`
	Sessions struct {
		WS       int `json:"ws"`
		LongPoll int `json:"longpoll"`
	} `json:"sessions"`
	Agents struct {
		Online int `json:"online"`
		Total  int `json:"total"`
	} `json:"agents"`
	Commands struct {
		Pending    int64 `json:"pending"`
		Dispatched int64 `json:"dispatched"`
	} `json:"commands"`
	Rooms *struct {
		Agents struct {
			Connected int   `json:"connected"`
			Total     int64 `json:"total"`
		} `json:"agents"`
		Rooms      int64          `json:"rooms"`
		Attached   map[string]int `json:"attached"`
		Detached   int            `json:"detached"`
		MediaBytes int64          `json:"media_bytes"`
	} `json:"rooms"`
	Degraded []string `json:"degraded"`
}

// text is the string behind an optional field, "" when absent.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
