package archivesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
)

// Content is what a simulated daemon tells of: Resources resources with Files files each. It lists the first Resources,
// and knows any by its ID, so that every job can have one of its own. Nobody else has the same content.
type Content struct {
	Resources int
	Files     int // at least 1
	// Tree is the number of files of resource 0; 0: Files.
	Tree int
}

// The roots of every simulated daemon; all are on one file system.
const (
	ContentRoot = "content"
	ReceiveRoot = "receive"
	OutboxRoot  = "outbox"
)

const (
	idPrefix  = "sim-"
	fileBytes = 1 << 20
)

// ResourceID is the ID of the n-th resource of any daemon.
func ResourceID(n int) string { return fmt.Sprintf("%s%07d", idPrefix, n) }

// numberOf reads an ID that ResourceID made.
func numberOf(id string) (int, bool) {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0
}

func sum(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (d *Daemon) files(n int) int {
	if n == 0 && d.o.Content.Tree > 0 {
		return d.o.Content.Tree
	}
	return max(d.o.Content.Files, 1)
}

func (d *Daemon) resource(n int) *pb.ResourceRef {
	return &pb.ResourceRef{ClientId: d.id, ResourceId: ResourceID(n), Identity: &pb.ResourceIdentity{
		TreeFingerprint: sum("content", d.id, ResourceID(n)), DisplayName: d.title(n)}}
}

func (d *Daemon) title(n int) string { return fmt.Sprintf("%s %07d", d.o.Name, n) }

func (d *Daemon) revision(n int) string { return sum("revision", d.id, ResourceID(n)) }

func (d *Daemon) summary(n int) *pb.ResourceSummary {
	files := d.files(n)
	bytes := uint64(files) * fileBytes
	return &pb.ResourceSummary{Resource: d.resource(n), ContentRevision: d.revision(n), LogicalBytes: bytes, SelectedBytes: bytes,
		CompletedSelectedBytes: bytes, FileCount: uint32(files), BackendState: pb.BackendState_BACKEND_STATE_NOT_MANAGED,
		ContentRootId: ContentRoot, AddedAt: timestamppb.New(d.begun)}
}

// header is a tree without its files.
func (d *Daemon) header(n int) *pb.ContentTree {
	files := uint64(d.files(n))
	bytes := files * fileBytes
	return &pb.ContentTree{Resource: d.resource(n), ContentRevision: d.revision(n), BackendState: pb.BackendState_BACKEND_STATE_NOT_MANAGED,
		Totals: &pb.ContentTotals{Logical: bytes, Selected: bytes, CompletedSelected: bytes, Allocated: bytes, FileCount: files}}
}

func (d *Daemon) file(title, revision string, i int) *pb.FileEntry {
	return &pb.FileEntry{Index: uint32(i), Path: fmt.Sprintf("%s/part %04d/file %07d.bin", title, i/1000, i),
		Kind: pb.FileKind_FILE_KIND_REGULAR, LogicalBytes: fileBytes, AllocatedBytes: fileBytes, CompletedBytes: fileBytes, Selected: true,
		DiskBytes: fileBytes, Mtime: timestamppb.New(d.begun), LinkCount: 1, Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME,
		ContentRevision: revision}
}

func profile() *pb.FilesystemProfile {
	return &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxFileBytes: 1 << 44, MaxNameBytes: 255,
		SupportsSparse: true, SupportsHardlink: true, SupportsNoreplaceRename: true}
}

func storage() []*pb.StorageEntry {
	entry := func(id string, kind pb.RootKind, same ...string) *pb.StorageEntry {
		return &pb.StorageEntry{RootId: id, RootKind: kind, TotalBytes: 1 << 50, FreeBytes: 1 << 49, Profile: profile(), SameFilesystemAs: same,
			Writable: true}
	}
	return []*pb.StorageEntry{entry(ContentRoot, pb.RootKind_ROOT_KIND_CONTENT, ReceiveRoot, OutboxRoot),
		entry(ReceiveRoot, pb.RootKind_ROOT_KIND_RECEIVE, ContentRoot, OutboxRoot),
		entry(OutboxRoot, pb.RootKind_ROOT_KIND_OUTBOX, ContentRoot, ReceiveRoot)}
}
