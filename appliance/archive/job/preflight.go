package job

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Preflight finds out whether a job can be done, and how (daemon protocol 3.3). It is implemented above this package.
type Preflight interface {
	// Check runs the checks afresh for a job in state PREFLIGHT and returns when they have an outcome. With a preview,
	// both content revisions must equal the previewed ones; without one (the EVICT that follows a move) it plans afresh.
	// It blocks as long as queries to daemons take, looks at ctx, keeps no locks, and may be called again for the same
	// job after a restart. Error is for what is no outcome: ctx ended, or the database failed; the engine tries again.
	Check(ctx context.Context, c Check) (Outcome, error)
}

// Check is the job that a fresh preflight is for.
type Check struct {
	JobNo     int64
	JobID     uuid.UUID
	PreviewNo int64     // 0: there was no preview
	PreviewID uuid.UUID // uuid.Nil: there was no preview
	Request   Request
	// Parent is the definition of the job whose commit an EVICT rests on, and Commit is that commit; nil for others.
	Parent *pb.JobDefinition
	Commit *pb.CommitEvidence
}

// Outcome is how a fresh preflight ended: exactly one of Definition and Error is set.
type Outcome struct {
	// Definition is the draft of a job that passed: everything but job_id and created_at, which the engine sets.
	Definition *pb.JobDefinition
	// Error is why the job did not pass. Retryable: the job waits, for Wait, and is checked again; else it fails.
	Error *pb.ErrorDetail
	// Wait is what a retryable error waits for: CLIENT_OFFLINE, ROUTE_NOT_READY, NO_SPACE, BACKEND_UNAVAILABLE,
	// RESOURCE_RESERVED or, also when unset, RETRY_BACKOFF. A job that waits for a daemon or a route is checked again as
	// soon as that is there, and all are checked again after a growing delay.
	Wait pb.WaitReason
	// Detail says in plain words what is waited for; may be empty.
	Detail string
}

// StorageCheck asks the daemons whether there is room now. It is implemented above this package with STORAGE queries.
type StorageCheck interface {
	// Room reports whether the roots that the step writes to have at least need bytes free beyond what the job's policy
	// keeps free; a need of 0 means that it is not known and any free byte beyond the policy is room. It blocks as long
	// as the query takes. An error means that nobody knows; the engine asks again later.
	Room(ctx context.Context, r RoomRequest) (bool, error)
}

// RoomRequest is what a StorageCheck is asked.
type RoomRequest struct {
	JobNo      int64
	Daemon     uuid.UUID // who ran out of space
	Step       pb.JobStep
	Definition *pb.JobDefinition
	Need       uint64 // bytes; details["needed_bytes"] of the NO_SPACE error, or 0
}

// Request is what an operator asks for. Unset policies take the defaults of daemon protocol 2.7.
type Request struct {
	Operation  pb.JobOperation
	Source     uuid.UUID    // daemon that has the content; for ADOPT the same as Target
	Target     uuid.UUID    // daemon that gets it, has it (ADOPT), or keeps it (EVICT)
	ResourceID string       // resource at the source
	Route      uuid.UUID    // TRANSFER only
	Requested  *pb.IndexSet // nil: every selected file that is no padding

	Destination *pb.Destination // TRANSFER and ADOPT
	Policies    *pb.JobPolicies // fields that are not set take their default

	// Parent is the completed TRANSFER or ADOPT whose result an EVICT rests on.
	Parent uuid.UUID
	// MaxVerifyAge and AllowLibraryLinks are of the eviction basis; 0 means 24 h.
	MaxVerifyAge      time.Duration
	AllowLibraryLinks bool
	// EvictAfter makes a TRANSFER a move: when it is complete, an EVICT of the source follows.
	EvictAfter bool
	// AcceptDrop says that the operator accepts boundary pieces that nobody can verify (PartfileMode DROP).
	AcceptDrop bool
}

// requestJSON is the stored form of a Request.
type requestJSON struct {
	Operation         string          `json:"operation"`
	Source            uuid.UUID       `json:"source"`
	Target            uuid.UUID       `json:"target"`
	ResourceID        string          `json:"resource_id"`
	Route             *uuid.UUID      `json:"route,omitempty"`
	Requested         json.RawMessage `json:"requested,omitempty"`
	Destination       json.RawMessage `json:"destination,omitempty"`
	Policies          json.RawMessage `json:"policies,omitempty"`
	Parent            *uuid.UUID      `json:"parent,omitempty"`
	MaxVerifySeconds  int64           `json:"max_verify_seconds,omitempty"`
	AllowLibraryLinks bool            `json:"allow_library_links,omitempty"`
	EvictAfter        bool            `json:"evict_after,omitempty"`
	AcceptDrop        bool            `json:"accept_drop,omitempty"`
}

// MarshalJSON makes the stored form: snake case keys, enums by name, messages in the protobuf mapping.
func (r Request) MarshalJSON() ([]byte, error) {
	out := requestJSON{Operation: r.Operation.String(), Source: r.Source, Target: r.Target, ResourceID: r.ResourceID,
		Route: idOrNil(r.Route), Parent: idOrNil(r.Parent), MaxVerifySeconds: int64(r.MaxVerifyAge / time.Second),
		AllowLibraryLinks: r.AllowLibraryLinks, EvictAfter: r.EvictAfter, AcceptDrop: r.AcceptDrop}
	var err error
	if r.Requested != nil {
		if out.Requested, err = protojson.Marshal(r.Requested); err != nil {
			return nil, err
		}
	}
	if r.Destination != nil {
		if out.Destination, err = protojson.Marshal(r.Destination); err != nil {
			return nil, err
		}
	}
	if r.Policies != nil {
		if out.Policies, err = protojson.Marshal(r.Policies); err != nil {
			return nil, err
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the stored form.
func (r *Request) UnmarshalJSON(b []byte) error {
	var in requestJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	op, ok := pb.JobOperation_value[in.Operation]
	if !ok {
		return fault.Field("operation", "%q is no job operation", in.Operation)
	}
	*r = Request{Operation: pb.JobOperation(op), Source: in.Source, Target: in.Target, ResourceID: in.ResourceID,
		MaxVerifyAge: time.Duration(in.MaxVerifySeconds) * time.Second, AllowLibraryLinks: in.AllowLibraryLinks,
		EvictAfter: in.EvictAfter, AcceptDrop: in.AcceptDrop}
	if in.Route != nil {
		r.Route = *in.Route
	}
	if in.Parent != nil {
		r.Parent = *in.Parent
	}
	if in.Requested != nil {
		r.Requested = &pb.IndexSet{}
		if err := protojson.Unmarshal(in.Requested, r.Requested); err != nil {
			return err
		}
	}
	if in.Destination != nil {
		r.Destination = &pb.Destination{}
		if err := protojson.Unmarshal(in.Destination, r.Destination); err != nil {
			return err
		}
	}
	if in.Policies != nil {
		r.Policies = &pb.JobPolicies{}
		if err := protojson.Unmarshal(in.Policies, r.Policies); err != nil {
			return err
		}
	}
	return nil
}

func idOrNil(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}
