// Package audit is the tamper-evident record of who did what: rows chained by HMAC.
//
// The mac of a row covers every column of the row and the mac of the row before it, so no byte can change and no row can
// go, come or move without breaking the chain at a known place. Two more records in the database close its ends: the
// anchor says what retention removed from the start, the head says where the log ends. Both are authenticated with the
// chain key, which is derived from the master secret and never stored.
//
// Append runs inside the transaction that does the audited work: either both are durable or neither is.
package audit

import (
	"encoding/binary"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// The outcomes of a row (agent protocol H.7).
const (
	Allow   = "allow"
	Deny    = "deny"
	Error   = "error"
	Failure = "failure"
)

// The results of a row.
const (
	Success = "success"
	Failed  = "failed"
)

// Limits of an entry's fields. User agents are strangers' text and are cut (agent protocol I.4); metadata is ours, so
// more of it than this is a mistake of the caller.
const (
	MaxUserAgent = 256       // characters
	MaxSourceIP  = 64        // characters
	MaxMetadata  = 64 << 10  // bytes
	MaxExport    = 50_000    // rows of one export (agent protocol H.7)
	maxAction    = 80        // characters: what action_prefix can ask for
	noMetadata   = "{}"      // stored when there is none
	macBytes     = 32        // HMAC-SHA256
	maxRowNo     = 1<<62 - 1 // what an id has room for
)

// Entry is what a caller records.
type Entry struct {
	ProjectNo  int64   // 0: no project
	UserID     *string // principal that acted; nil: the appliance itself, or a stranger
	Action     string  // dotted, such as "agent.token.minted"
	TargetType string
	TargetID   *string
	Result     string // Success or Failed
	Outcome    string // Allow, Deny, Error or Failure
	Metadata   []byte // JSON object; nil is {}
	SourceIP   *string
	UserAgent  *string
}

// Row is an entry in its place in the chain: the columns of audit_log.
type Row struct {
	No         int64 // position; consecutive
	EventID    uuid.UUID
	ProjectNo  int64 // 0: NULL
	UserID     *string
	Action     string
	TargetType string
	TargetID   *string
	Result     string
	Outcome    string
	Metadata   []byte
	SourceIP   *string
	UserAgent  *string
	At         time.Time // UTC, whole microseconds
	KeyID      string    // which chain key made Mac
	Mac        []byte
}

// Record is a row as a reader sees it.
type Record struct {
	Row
	ProjectID *uuid.UUID // nil: no project
}

// ID is the row's public identity: a UUID (version 8) of its time and number, so that it sorts as the log does and a
// cursor that holds it leads straight to the row.
func (r *Row) ID() uuid.UUID {
	var id uuid.UUID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(r.At.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = 0x80
	binary.BigEndian.PutUint64(id[8:], uint64(r.No))
	id[8] |= 0x80
	return id
}

// NoOf returns the row number inside an id that ID made; ok is false for any other UUID.
func NoOf(id uuid.UUID) (no int64, ok bool) {
	if id[6] != 0x80 || id[7] != 0 || id[8]&0xc0 != 0x80 {
		return 0, false
	}
	no = int64(binary.BigEndian.Uint64(id[8:]) &^ (3 << 62))
	return no, no > 0
}

// row checks the entry and gives it everything but its place in the chain.
func (e *Entry) row() (Row, error) {
	meta := e.Metadata
	if len(meta) == 0 {
		meta = []byte(noMetadata)
	}
	switch {
	case e.Action == "" || utf8.RuneCountInString(e.Action) > maxAction:
		return Row{}, fault.New(fault.Internal, "audit action must have 1..%d characters", maxAction)
	case e.TargetType == "" || e.Result == "":
		return Row{}, fault.New(fault.Internal, "audit entry %s has no target type or result", e.Action)
	case len(meta) > MaxMetadata:
		return Row{}, fault.New(fault.Internal, "audit entry %s has %d bytes of metadata", e.Action, len(meta))
	}
	switch e.Outcome {
	case Allow, Deny, Error, Failure:
	default:
		return Row{}, fault.New(fault.Internal, "audit entry %s has no outcome", e.Action)
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return Row{}, fault.Wrap(fault.Internal, err, "make an audit event id")
	}
	return Row{
		EventID: id, ProjectNo: e.ProjectNo, UserID: e.UserID, Action: e.Action, TargetType: e.TargetType,
		TargetID: e.TargetID, Result: e.Result, Outcome: e.Outcome, Metadata: meta,
		SourceIP: cut(e.SourceIP, MaxSourceIP), UserAgent: cut(e.UserAgent, MaxUserAgent),
	}, nil
}

// cut shortens a stranger's text to n characters and makes it valid UTF-8 without NUL, which SQLite text cannot hold
// faithfully.
func cut(s *string, n int) *string {
	if s == nil {
		return nil
	}
	out := make([]rune, 0, min(len(*s), n))
	for _, r := range *s {
		if len(out) == n {
			break
		}
		if r == 0 {
			r = utf8.RuneError
		}
		out = append(out, r)
	}
	t := string(out)
	return &t
}
