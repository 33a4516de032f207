package preflight

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/fault"
)

// validRequest checks what needs no look at anything else.
func validRequest(r job.Request, patterns []string) error {
	switch {
	case r.Operation != transfer && r.Operation != adopt && r.Operation != evict:
		return fault.Field("operation", "must be TRANSFER, ADOPT or EVICT")
	case r.Source == uuid.Nil:
		return fault.Field("source", "is required")
	case r.Target == uuid.Nil:
		return fault.Field("target", "is required")
	case r.Operation == adopt && r.Source != r.Target:
		return fault.Field("target", "an adoption has one daemon: it must equal the source")
	case r.Operation != adopt && r.Source == r.Target:
		return fault.Field("target", "must be another daemon than the source")
	case len(r.ResourceID) < 1 || len(r.ResourceID) > 160:
		return fault.Field("resource_id", "1 to 160 bytes, got %d", len(r.ResourceID))
	case r.Operation == transfer && r.Route == uuid.Nil:
		return fault.Field("route", "is required for a transfer")
	case r.Operation != transfer && r.Route != uuid.Nil:
		return fault.Field("route", "only a transfer uses one")
	case r.Operation == evict && r.Parent == uuid.Nil:
		return fault.Field("parent", "is required for an eviction: the job that brought the content to the target")
	case r.Operation != evict && r.Parent != uuid.Nil:
		return fault.Field("parent", "only an eviction has one")
	case r.Operation == evict && r.Destination != nil:
		return fault.Field("destination", "an eviction has none")
	case r.EvictAfter && r.Operation != transfer:
		return fault.Field("evict_after", "only a transfer can be followed by an eviction")
	case r.Requested != nil && len(patterns) > 0:
		return fault.Field("files", "choose files by index or by pattern, not by both")
	case r.MaxVerifyAge < 0 || r.MaxVerifyAge > 24*time.Hour:
		return fault.Field("max_verify_age", "from 0 to 24 h")
	}
	if r.Requested != nil {
		set, err := archive.ReadIndexSet("requested", r.Requested)
		if err == nil && set.Empty() {
			err = fault.Field("requested", "must not be empty")
		}
		if err != nil {
			return err
		}
	}
	if err := pathrule.CheckDir(r.Destination.GetRelativeDir()); err != nil {
		return fault.Field("destination.relative_dir", "%s", err)
	}
	if err := validPolicies(r.Policies); err != nil {
		return err
	}
	return validPatterns(patterns)
}

func validPolicies(p *pb.JobPolicies) error {
	for _, e := range []struct {
		field string
		value int32
		names map[int32]string
	}{{"verify_level", int32(p.GetVerifyLevel()), pb.VerifyLevel_name}, {"sparse_policy", int32(p.GetSparsePolicy()), pb.SparsePolicy_name},
		{"partfile_mode", int32(p.GetPartfileMode()), pb.PartfileMode_name}, {"conflict_policy", int32(p.GetConflictPolicy()), pb.ConflictPolicy_name},
		{"quiesce", int32(p.GetQuiesce()), pb.QuiescePolicy_name}, {"activation", int32(p.GetActivation()), pb.ActivationPolicy_name},
		{"cleanup", int32(p.GetCleanup()), pb.CleanupPolicy_name}} {
		if e.names[e.value] == "" {
			return fault.Field("policies."+e.field, "%d is no known value", e.value)
		}
	}
	if d := p.GetTrashRetention(); d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > archive.MaxTrashRetention) {
		return fault.Field("policies.trash_retention", "from 0 to 90 days")
	}
	for _, l := range []struct {
		field   string
		list    []pb.MaterializeMethod
		renames bool
	}{{"stage_methods", p.GetStageMethods(), false}, {"materialize_methods", p.GetMaterializeMethods(), true}} {
		seen := map[pb.MaterializeMethod]bool{}
		for _, m := range l.list {
			ok := m >= pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK && m <= pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE ||
				l.renames && m == pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME
			if !ok || seen[m] {
				return fault.Field("policies."+l.field, "%s is not possible there, or named twice", methodText(m))
			}
			seen[m] = true
		}
	}
	return nil
}
