package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/valid"
)

// Share is where this machine sees the outbox of another one.
type Share struct {
	// Marker is the name that routes give to the shared outbox.
	Marker string
	// Open returns the handle of the directory, as Root.Open does. The directory is another machine's: nothing is written
	// to it.
	Open func() (*beneath.Root, error)
}

// sharedDirectory is the RouteKind SHARED_DIRECTORY: the target reads the source's outbox in place.
type sharedDirectory struct {
	roots  []Root
	shares []Share
}

// NewSharedDirectory returns the kind SHARED_DIRECTORY for the configured roots and shares.
func NewSharedDirectory(roots []Root, shares []Share) RouteKind {
	return &sharedDirectory{roots: roots, shares: shares}
}

func (k *sharedDirectory) root(id string, kind pb.RootKind) *Root {
	for i := range k.roots {
		if k.roots[i].ID == id && k.roots[i].Kind == kind {
			return &k.roots[i]
		}
	}
	return nil
}

func (k *sharedDirectory) share(r *pb.Route) *Share {
	for i := range k.shares {
		if k.shares[i].Marker == r.GetTarget().GetShared().GetSharedMarker() {
			return &k.shares[i]
		}
	}
	return nil
}

// own returns the root of this side.
func (k *sharedDirectory) own(r *pb.Route, side pb.ParticipantRole) (id string, root *Root) {
	if side == pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
		id = r.GetSource().GetRootId()
		return id, k.root(id, pb.RootKind_ROOT_KIND_OUTBOX)
	}
	id = r.GetTarget().GetRootId()
	return id, k.root(id, pb.RootKind_ROOT_KIND_RECEIVE)
}

// Check looks for the root of this side, and at the target for the share.
func (k *sharedDirectory) Check(r *pb.Route, side pb.ParticipantRole) *pb.ErrorDetail {
	source := side == pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	id, root := k.own(r, side)
	switch {
	case root == nil && source:
		return valid.Detail(pb.ErrorCode_ERROR_CODE_NOT_FOUND, fmt.Sprintf("there is no outbox root %q here", id), "root_id", id)
	case root == nil:
		return valid.Detail(pb.ErrorCode_ERROR_CODE_NOT_FOUND, fmt.Sprintf("there is no receive root %q here", id), "root_id", id)
	case !source && k.share(r) == nil:
		marker := r.GetTarget().GetShared().GetSharedMarker()
		return valid.Detail(pb.ErrorCode_ERROR_CODE_PATH_UNMAPPED,
			fmt.Sprintf("this daemon is not told where it sees the shared outbox %q: add a [[shared]] entry with this marker", marker), "marker", marker)
	}
	return nil
}

// Probe files stand beside the owner file of the source's outbox root.
func probeName(r *pb.Route) string { return beneath.ControlDir + "/route-" + r.GetRouteId() + ".probe" }

const maxProbe = 1 << 10

// probeText is the content of a probe file.
func probeText(r *pb.Route, nonce string) []byte {
	return fmt.Appendf(nil, "archive-control route probe\n%s\n%s\n", r.GetRouteId(), nonce)
}

// nonceIn reads the nonce of a probe file; "" when it is none of this route.
func nonceIn(r *pb.Route, text []byte) string {
	rest, ok := bytes.CutPrefix(text, []byte("archive-control route probe\n"+r.GetRouteId()+"\n"))
	nonce, ended := bytes.CutSuffix(rest, []byte("\n"))
	if b, err := hex.DecodeString(string(nonce)); !ok || !ended || err != nil || len(b) != 16 {
		return ""
	}
	return string(nonce)
}

// Probe measures the root of this side. The source leaves a probe file with the nonce in its outbox, the target reads it
// where it sees that outbox.
func (k *sharedDirectory) Probe(ctx context.Context, p RouteProbe) (*pb.ProbeResult, error) {
	if d := k.Check(p.Route, p.Side); d != nil {
		return nil, backend.Fail("PATH_UNMAPPED", "%s", d.GetMessage())
	}
	_, root := k.own(p.Route, p.Side)
	dir, err := root.Open()
	if err != nil {
		return nil, err
	}
	if err := dir.Verify(); err != nil {
		return nil, err
	}
	result := &pb.ProbeResult{SameFilesystem: true} // Verify has compared the root with what it was
	if _, result.FreeBytes, err = dir.Space(); err != nil {
		return nil, err
	}
	m, err := dir.Probe(ctx)
	if err != nil {
		return nil, err
	}
	result.Profile, result.DurableRename = m.Profile, m.DurableRename
	result.SparseOk, result.NoreplaceRenameOk = m.Profile.GetSupportsSparse(), m.Profile.GetSupportsNoreplaceRename()
	if p.Side == pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
		return result, k.leave(dir, p, result)
	}
	return result, k.find(p, result)
}

// leave writes the probe file, unless it is there already.
func (k *sharedDirectory) leave(dir *beneath.Root, p RouteProbe, result *pb.ProbeResult) error {
	name, text := probeName(p.Route), probeText(p.Route, p.Nonce)
	sum := sha256.Sum256(text)
	result.NonceSeen, result.Sha256 = p.Nonce, hex.EncodeToString(sum[:])
	found, err := dir.ReadFile(name, maxProbe)
	if err == nil && bytes.Equal(found, text) {
		return nil
	}
	if err != nil && !beneath.IsNotFound(err) {
		return err
	}
	temp := name + ".tmp-" + p.Nonce
	if err := dir.Unlink(temp); err != nil && !beneath.IsNotFound(err) {
		return err
	}
	f, err := dir.Create(temp, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := dir.Unlink(name); err != nil && !beneath.IsNotFound(err) {
		return err
	}
	if err := dir.RenameNoReplace(temp, dir, name); err != nil {
		return err
	}
	_, err = dir.SyncDir(beneath.ControlDir)
	return err
}

// find reads the source's probe file. The owner file of the directory must name the source and its root: an empty mount
// point has none, and the outbox of another machine may have a root of that name.
func (k *sharedDirectory) find(p RouteProbe, result *pb.ProbeResult) error {
	share := k.share(p.Route)
	dir, err := share.Open()
	if err != nil {
		return err
	}
	if err := dir.Verify(); err != nil {
		return err
	}
	owner, err := dir.Owner()
	if err != nil {
		return err
	}
	if want := p.Route.GetSource().GetRootId(); owner.Root != want {
		return backend.Fail("UNAVAILABLE", "the shared outbox %q holds root %q instead of %q; is it mounted?", share.Marker, owner.Root, want)
	}
	if want := p.Route.GetSourceClientId(); owner.Daemon != "" && owner.Daemon != want {
		return backend.Fail("UNAVAILABLE", "the shared outbox %q is root %q of daemon %s instead of daemon %s; is the right one mounted?", share.Marker,
			owner.Root, owner.Daemon, want)
	}
	text, err := dir.ReadFile(probeName(p.Route), maxProbe)
	if beneath.IsNotFound(err) {
		return backend.Fail("UNAVAILABLE", "the source's probe file is not in the shared outbox %q", share.Marker)
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	result.NonceSeen, result.Sha256 = nonceIn(p.Route, text), hex.EncodeToString(sum[:])
	if result.NonceSeen == "" {
		return backend.Fail("UNAVAILABLE", "the probe file in the shared outbox %q is not of this route", share.Marker)
	}
	return nil
}

// Remove takes the source's probe file away.
func (k *sharedDirectory) Remove(_ context.Context, p RouteProbe, _ bool) error {
	if p.Side != pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
		return nil
	}
	_, root := k.own(p.Route, p.Side)
	if root == nil {
		return nil // the root is no longer configured: its files are the operator's
	}
	dir, err := root.Open()
	if err != nil {
		return err
	}
	if err := dir.Unlink(probeName(p.Route)); err != nil && !beneath.IsNotFound(err) {
		return err
	}
	return nil
}
