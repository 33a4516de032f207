package job

import (
	"fmt"
	"path"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// The kinds of a reservation.
const (
	reserveV1          = "infohash_v1"
	reserveV2          = "infohash_v2"
	reserveTree        = "tree"
	reserveResource    = "resource"
	reserveDestination = "destination"
)

// reservations are the names that a job of the definition keeps for itself: every identity it touches at both
// participants, the resources, and the name it builds at the target (daemon protocol 3.3 row 4, 11). A draft will do.
func reservations(def *pb.JobDefinition, sourceNo, targetNo int64) []Reservation {
	var out []Reservation
	seen := map[Reservation]bool{}
	add := func(daemonNo int64, kind, name string) {
		r := Reservation{DaemonNo: daemonNo, Kind: kind, Name: name}
		if daemonNo != 0 && name != "" && !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	for _, ref := range []*pb.ResourceRef{def.GetSource(), def.GetEviction().GetTargetCommit().GetResource()} {
		for _, daemonNo := range []int64{sourceNo, targetNo} {
			id := ref.GetIdentity()
			add(daemonNo, reserveV1, id.GetInfohashV1())
			add(daemonNo, reserveV2, id.GetInfohashV2())
			add(daemonNo, reserveTree, id.GetTreeFingerprint())
		}
	}
	add(sourceNo, reserveResource, def.GetSource().GetResourceId())
	add(targetNo, reserveResource, def.GetEviction().GetTargetCommit().GetResource().GetResourceId())
	if d := def.GetDestination(); d != nil && def.GetSource().GetIdentity().GetDisplayName() != "" {
		name := path.Join(d.GetContentRootId(), d.GetRelativeDir(), def.GetSource().GetIdentity().GetDisplayName())
		if p := def.GetBaseline().GetFilesystemProfile(); p != nil && !p.GetCaseSensitive() {
			name = strings.ToLower(name)
		}
		add(targetNo, reserveDestination, name)
	}
	return out
}

// reserve takes all the names for the job, or none: holder is the job that has one of them. The job's own names are no
// obstacle.
func reserve(tx Tx, jobNo int64, names []Reservation) (holder int64, err error) {
	var missing []Reservation
	for _, r := range names {
		no, err := tx.JobHolder(r)
		if err != nil {
			return 0, err
		}
		switch no {
		case 0:
			missing = append(missing, r)
		case jobNo:
		default:
			return no, nil
		}
	}
	for _, r := range missing {
		r.JobNo = jobNo
		if err := tx.JobReserve(r); err != nil {
			if fault.Is(err, fault.Conflict) {
				return 0, fault.Wrap(fault.Internal, err, "a name was reserved twice in one transaction")
			}
			return 0, err
		}
	}
	return 0, nil
}

// wanted are the names that the job reserves: from its definition, its preview, or the job that it follows.
func (b *book) wanted() ([]Reservation, error) {
	def := b.def
	if def == nil {
		preview, ok, err := b.rtx.JobPreviewOf(b.row.No)
		if err != nil {
			return nil, err
		}
		if ok && len(preview.Draft) > 0 {
			if def, err = parse(preview.Draft, &pb.JobDefinition{}); err != nil {
				return nil, err
			}
		}
	}
	if def == nil && b.row.ParentNo != 0 {
		parent, commit, err := b.parent()
		if err != nil {
			return nil, err
		}
		def = &pb.JobDefinition{Source: parent.GetSource(), Eviction: &pb.EvictionBasis{TargetCommit: commit}}
	}
	return reservations(def, b.row.SourceNo, b.row.TargetNo), nil
}

// reserveAgain takes back the names of a job that had ended and is now held; a job that has taken one since waits for a
// person.
func (b *book) reserveAgain() error {
	names, err := b.wanted()
	if err != nil {
		return err
	}
	displaced := map[int64]bool{}
	for _, r := range names {
		holder, err := b.tx.JobHolder(r)
		if err != nil {
			return err
		}
		if holder == b.row.No {
			continue
		}
		if holder != 0 {
			r.JobNo = holder
			if err := b.tx.JobUnreserve(r); err != nil {
				return err
			}
			displaced[holder] = true
		}
		r.JobNo = b.row.No
		if err := b.tx.JobReserve(r); err != nil {
			return err
		}
	}
	for no := range displaced {
		row, err := b.tx.JobByNo(no)
		if err != nil {
			return err
		}
		other, err := b.e.load(b.tx, row)
		if err != nil {
			return err
		}
		words := fmt.Sprintf("job %s is held and has taken its reservation back", b.row.ID)
		c := cause{what: words, detail: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BUSY, Retryable: true, Message: words}}
		if err := other.advance(decide.Displaced{}, c); err != nil {
			return err
		}
		other.done()
	}
	return nil
}

// release gives the reservations up and lets the jobs that wait for some try again.
func (b *book) release() error {
	if err := b.tx.JobRelease(b.row.No); err != nil {
		return err
	}
	after := int64(0)
	for {
		waiting, err := b.tx.JobsWaiting(int32(waitReserved), after, 100)
		if err != nil || len(waiting) == 0 {
			return err
		}
		for _, no := range waiting {
			after = no
			if no == b.row.No {
				continue
			}
			row, err := b.tx.JobByNo(no)
			if err != nil {
				return err
			}
			row.RetryAt = b.tx.Now()
			if err := b.tx.JobUpdate(&row); err != nil {
				return err
			}
		}
		e := b.e
		b.tx.Hint(e.timer.poke)
	}
}
