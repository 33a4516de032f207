package preflight

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// draft makes the definition of a job whose checks have passed: everything but job_id and created_at (daemon protocol 2.7).
func draft(f *Facts) *pb.JobDefinition {
	h := f.SourceTree.Header
	def := &pb.JobDefinition{Operation: f.Operation, Source: proto.CloneOf(h.GetResource()), TargetClientId: f.Target.Ref.ID.String(),
		Requested: f.Requested.Message(), SourceContentRevision: f.SourceTree.Revision, Policies: proto.CloneOf(f.Policies),
		RequiredCapabilities: required(f)}
	if f.Operation != evict {
		def.Destination = proto.CloneOf(f.Destination)
		mode, _, _ := f.partfile()
		def.Policies.PartfileMode = mode
	}
	switch f.Operation {
	case transfer:
		def.RouteId = f.Route.Message.GetRouteId()
		content := f.contentRoot()
		def.Baseline = &pb.TargetBaseline{Present: f.present().Message(), FreeBytes: content.GetFreeBytes(),
			BackendHasResource: f.TargetTree != nil, FilesystemProfile: proto.CloneOf(content.GetProfile())}
		if f.TargetTree != nil {
			def.Baseline.TargetContentRevision = f.TargetTree.Revision
		}
	case evict:
		def.ParentJobId = f.ParentID
		def.Eviction = &pb.EvictionBasis{TargetCommit: proto.CloneOf(f.Commit), MaxVerifyAge: durationpb.New(f.MaxVerifyAge),
			AllowLibraryLinks: f.AllowLibraryLinks}
	}
	return def
}

// required are the capabilities that both sides must have when they are assigned.
func required(f *Facts) []string {
	both, _, _ := needed(f)
	if f.Operation == transfer {
		mode, gaps, _ := f.partfile()
		switch {
		case gaps == 0:
		case mode == pb.PartfileMode_PARTFILE_MODE_COPY:
			both = append(both, archive.CapPartfileCopy)
		case mode == pb.PartfileMode_PARTFILE_MODE_EXPLODE:
			both = append(both, archive.CapPartfileExplode)
		}
	}
	slices.Sort(both)
	return slices.Compact(both)
}

// envelopeRoom is what an envelope holds beside a definition: IDs, digests, a cursor and a reason.
const envelopeRoom = 4 << 10

// checkDefinitionSize makes sure that the definition fits one envelope of every participant: 90 % of its limit, as JSON
// (daemon protocol 2.7).
func checkDefinitionSize(f *Facts, def *pb.JobDefinition) *pb.ErrorDetail {
	whole := proto.CloneOf(def)
	whole.JobId, whole.CreatedAt = uuid.Max.String(), timestamppb.Now()
	b, err := frame.Marshal(whole)
	if err != nil {
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "", "the definition of the job cannot be encoded: "+err.Error())
	}
	size := uint64(len(b)) + envelopeRoom
	for _, p := range []*Peer{&f.Source, &f.Target} {
		limit := uint64(p.Limits.GetMaxEnvelopeBytes()) * 9 / 10
		if limit > 0 && size > limit {
			return failure(pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "request fewer or more of the files, so that they form fewer ranges",
				fmt.Sprintf("the definition of the job takes %d bytes, and daemon %s takes %d", size, p.Name, limit), "daemon", p.Name,
				"expected", fmt.Sprint(limit), "found", fmt.Sprint(size), "ranges", fmt.Sprint(len(def.GetRequested().GetRanges())))
		}
	}
	return nil
}

// completePolicies gives the fields that are not set their defaults (daemon protocol 2.7), and takes the methods out of a
// default list that a daemon does not announce.
func completePolicies(f *Facts, asked *pb.JobPolicies) {
	p := archive.DefaultPolicies()
	if asked.GetVerifyLevel() != 0 {
		p.VerifyLevel = asked.VerifyLevel
	}
	if asked.GetSparsePolicy() != 0 {
		p.SparsePolicy = asked.SparsePolicy
	}
	if asked.GetPartfileMode() != 0 {
		p.PartfileMode = asked.PartfileMode
	}
	if asked.GetConflictPolicy() != 0 {
		p.ConflictPolicy = asked.ConflictPolicy
	}
	if asked.GetQuiesce() != 0 {
		p.Quiesce = asked.Quiesce
	}
	if asked.GetActivation() != 0 {
		p.Activation = asked.Activation
	}
	if asked.GetKeepFreeBytes() != 0 {
		p.KeepFreeBytes = asked.KeepFreeBytes
	}
	if asked.GetTrashRetention() != nil {
		p.TrashRetention = proto.CloneOf(asked.TrashRetention)
	}
	if asked.GetCleanup() != 0 {
		p.Cleanup = asked.Cleanup
	}
	p.StageMethods, f.ChoseStage = methods(asked.GetStageMethods(), p.StageMethods, &f.Source)
	p.MaterializeMethods, f.ChoseMaterialize = methods(asked.GetMaterializeMethods(), p.MaterializeMethods, &f.Target)
	f.Policies = p
}

func methods(asked, standard []pb.MaterializeMethod, p *Peer) (list []pb.MaterializeMethod, chosen bool) {
	if len(asked) > 0 {
		return slices.Clone(asked), true
	}
	for _, m := range standard {
		if g := gate(m); g == "" || p.Has(g) {
			list = append(list, m)
		}
	}
	return list, false
}
