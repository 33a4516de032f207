package commands

import (
	"encoding/json"
	"time"
)

type jobPeer struct {
	DaemonID string `json:"daemon_id"`
	Name     string `json:"name"`
	Online   bool   `json:"online"`
}

type jobWait struct {
	Reason    string     `json:"reason"`
	Detail    string     `json:"detail"`
	ReturnsTo string     `json:"returns_to"`
	RetryAt   *time.Time `json:"retry_at"`
}

type jobProgress struct {
	Fraction        float64    `json:"fraction"`
	OverallFraction float64    `json:"overall_fraction"`
	BytesTotal      *uint64    `json:"bytes_total"`
	BytesDone       *uint64    `json:"bytes_done"`
	FilesTotal      int64      `json:"files_total"`
	FilesDone       int64      `json:"files_done"`
	BytesPerSecond  uint64     `json:"bytes_per_second"`
	MovedAt         *time.Time `json:"moved_at"`
}

type jobRow struct {
	ID          string        `json:"id"`
	Operation   string        `json:"operation"`
	Title       string        `json:"title"`
	State       string        `json:"state"`
	Waiting     *jobWait      `json:"waiting"`
	Outcome     *string       `json:"outcome"`
	Source      *jobPeer      `json:"source"`
	Target      *jobPeer      `json:"target"`
	ResourceID  string        `json:"resource_id"`
	RouteID     *string       `json:"route_id"`
	ParentID    *string       `json:"parent_id"`
	EvictAfter  bool          `json:"evict_after"`
	Step        *string       `json:"step"`
	StepNumber  int           `json:"step_number"`
	Steps       int           `json:"steps"`
	Attempt     int           `json:"attempt"`
	Failures    int           `json:"failures"`
	Allowance   int           `json:"allowance"`
	Committed   bool          `json:"committed"`
	Progress    jobProgress   `json:"progress"`
	Error       *archiveFault `json:"error"`
	Foreign     bool          `json:"foreign"`
	RetainUntil *time.Time    `json:"retain_until"`
	CreatedBy   string        `json:"created_by"`
	CreatedAt   *time.Time    `json:"created_at"`
	StartedAt   *time.Time    `json:"started_at"`
	EndedAt     *time.Time    `json:"ended_at"`
}

// ended tells whether nothing more happens to the job.
func (j *jobRow) ended() bool {
	return j.State == "completed" || j.State == "failed" || j.State == "cancelled"
}

// held tells whether only a person can get the job on.
func (j *jobRow) held() bool {
	return j.State == "manual" || j.Waiting != nil && j.Waiting.Reason == "operator_hold"
}

// stateText is the state with the reason of a wait.
func (j *jobRow) stateText() string {
	switch {
	case j.Waiting != nil:
		return "waiting: " + words(j.Waiting.Reason)
	case j.Outcome != nil:
		return "cancelling, ends as " + *j.Outcome
	}
	return j.State
}

// way is where the content goes.
func (j *jobRow) way() string {
	source, target := "?", "?"
	if j.Source != nil {
		source = j.Source.Name
	}
	if j.Target != nil {
		target = j.Target.Name
	}
	switch j.Operation {
	case "adopt":
		return target
	case "evict":
		return source + " (kept by " + target + ")"
	}
	return source + " → " + target
}

type jobStep struct {
	Step       string          `json:"step"`
	State      string          `json:"state"`
	Role       string          `json:"role"`
	Daemon     *string         `json:"daemon"`
	Attempts   int             `json:"attempts"`
	Evidence   json.RawMessage `json:"evidence"`
	EvidenceAt *time.Time      `json:"evidence_at"`
}

type jobSide struct {
	Role      string `json:"role"`
	Daemon    string `json:"daemon"`
	Online    bool   `json:"online"`
	State     string `json:"state"`
	Revision  int64  `json:"revision"`
	Sequence  int64  `json:"sequence"`
	Committed bool   `json:"committed"`
	Assigned  bool   `json:"assigned"`
	Closed    bool   `json:"closed"`
	Reported  *struct {
		State             string `json:"state"`
		Revision          int64  `json:"revision"`
		LastEventSequence int64  `json:"last_event_sequence"`
		Committed         bool   `json:"committed"`
	} `json:"reported"`
	ReportedAt *time.Time `json:"reported_at"`
}

type jobExplanation struct {
	Summary    string          `json:"summary"`
	Sentences  []string        `json:"sentences"`
	WaitsFor   string          `json:"waits_for"`
	NextAction string          `json:"next_action"`
	Commands   []daemonCommand `json:"commands"` // of a job; absent elsewhere
}

type jobDetail struct {
	jobRow
	PreviewID    *string        `json:"preview_id"`
	Participants []jobSide      `json:"participants"`
	StepList     []jobStep      `json:"step_list"`
	Alerts       []alertRow     `json:"alerts"`
	Explanation  jobExplanation `json:"explanation"`
}

// jobEntry is one line of a job's story.
type jobEntry struct {
	Cursor    string          `json:"cursor"`
	At        *time.Time      `json:"at"`
	Event     string          `json:"event"`
	State     string          `json:"state"`
	Daemon    *string         `json:"daemon"`
	CommandID *string         `json:"command_id"`
	Detail    json.RawMessage `json:"detail"`
}

// jobRecord is one line of a job's stream.
type jobRecord struct {
	Entry *jobEntry `json:"entry"`
	Job   jobRow    `json:"job"`
}

type previewNeed struct {
	Daemon    string `json:"daemon"`
	RootID    string `json:"root_id"`
	Kind      string `json:"kind"`
	Bytes     uint64 `json:"bytes"`
	KeepFree  uint64 `json:"keep_free"`
	FreeBytes uint64 `json:"free_bytes"`
	With      string `json:"with"`
}

type previewRow struct {
	ID        string `json:"id"`
	Operation string `json:"operation"`
	State     string `json:"state"`
	Summary   struct {
		Files          int64         `json:"files"`
		Requested      uint64        `json:"requested"`
		RequestedBytes uint64        `json:"requested_bytes"`
		Present        uint64        `json:"present"`
		PresentBytes   uint64        `json:"present_bytes"`
		Transfer       uint64        `json:"transfer"`
		TransferBytes  uint64        `json:"transfer_bytes"`
		Synthesized    uint64        `json:"synthesized"`
		Omitted        uint64        `json:"omitted"`
		DroppedPieces  int64         `json:"dropped_pieces"`
		StageMethod    string        `json:"stage_method"`
		Materialize    string        `json:"materialize_method"`
		Needs          []previewNeed `json:"needs"`
	} `json:"summary"`
	Warnings   []string      `json:"warnings"`
	Error      *archiveFault `json:"error"`
	Started    bool          `json:"started"`
	JobID      *string       `json:"job_id"`
	CreatedAt  *time.Time    `json:"created_at"`
	FinishedAt *time.Time    `json:"finished_at"`
}

type plannedFile struct {
	Index   int64   `json:"index"`
	Path    string  `json:"path"`
	Action  string  `json:"action"`
	Method  *string `json:"method"`
	Bytes   uint64  `json:"bytes"`
	Warning *string `json:"warning"`
}
