package valid_test

import (
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid/validtest"
)

func TestInventoryQuery(t *testing.T) {
	query := func(scope pb.InventoryScope) func() *pb.InventoryQuery {
		return func() *pb.InventoryQuery {
			return command(func(c *pb.Command) bool { return c.GetInventoryQuery().GetScope() == scope })().GetInventoryQuery()
		}
	}
	hold(t, query(pb.InventoryScope_INVENTORY_SCOPE_RESOURCES), []rule[*pb.InventoryQuery]{
		{"no scope", "scope", func(m *pb.InventoryQuery) { m.Scope = 0 }, unsupported},
		{"no purpose", "purpose", func(m *pb.InventoryQuery) { m.Purpose = 0 }, unsupported},
		{"1000 resources", "", func(m *pb.InventoryQuery) { m.ResourceIds = uuids(1000) }, 0},
		{"1001 resources", "resource_ids", func(m *pb.InventoryQuery) { m.ResourceIds = uuids(1001) }, 0},
		{"empty resource", "resource_ids[1]", func(m *pb.InventoryQuery) { m.ResourceIds[1] = "" }, 0},
		{"filter of another scope", "filter", func(m *pb.InventoryQuery) { m.Scope = pb.InventoryScope_INVENTORY_SCOPE_STORAGE }, 0},
		{"no state", "filter.states[0]", func(m *pb.InventoryQuery) { m.Filter.States[0] = 0 }, unsupported},
		{"empty identity", "filter.identity.infohash_v1", func(m *pb.InventoryQuery) { m.Filter.Identity = &pb.ResourceIdentity{} }, 0},
		{"page of 0", "page_size", func(m *pb.InventoryQuery) { m.PageSize = 0 }, 0},
		{"page of 10000", "", func(m *pb.InventoryQuery) { m.PageSize = 10000 }, 0},
		{"page of 10001", "page_size", func(m *pb.InventoryQuery) { m.PageSize = 10001 }, 0},
		{"token of 257", "page_token", func(m *pb.InventoryQuery) { m.PageToken = strings.Repeat("x", 257) }, 0},
		{"content revision", "expected_content_revision", func(m *pb.InventoryQuery) { m.ExpectedContentRevision = validtest.Hash(1) }, 0},
	})
	hold(t, query(pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE), []rule[*pb.InventoryQuery]{
		{"no resource", "resource_ids", func(m *pb.InventoryQuery) { m.ResourceIds = nil }, 0},
		{"two resources", "resource_ids", func(m *pb.InventoryQuery) { m.ResourceIds = []string{"a", "b"} }, 0},
		{"any content revision", "", func(m *pb.InventoryQuery) { m.ExpectedContentRevision = "" }, 0},
	})
}

func TestInventoryChunk(t *testing.T) {
	chunk := func(i int) func() *pb.InventoryChunk {
		return func() *pb.InventoryChunk { return validtest.Chunks()[i] }
	}
	hold(t, chunk(0), []rule[*pb.InventoryChunk]{
		{"total before the end", "entries_total", func(m *pb.InventoryChunk) { m.LastChunk = false }, 0},
		{"token before the end", "next_page_token", func(m *pb.InventoryChunk) { m.LastChunk, m.EntriesTotal = false, 0 }, 0},
		{"middle", "", func(m *pb.InventoryChunk) {
			m.LastChunk, m.EntriesTotal, m.NextPageToken, m.ChunkIndex = false, 0, "", 3
		}, 0},
		{"token of 257", "next_page_token", func(m *pb.InventoryChunk) { m.NextPageToken = strings.Repeat("x", 257) }, 0},
		{"error with entries", "error", func(m *pb.InventoryChunk) { m.Error = validtest.Failure() }, 0},
		{"nothing at the end", "", func(m *pb.InventoryChunk) { m.Content = nil }, 0},
		{"nothing in the middle", "content", func(m *pb.InventoryChunk) {
			m.Content, m.LastChunk, m.EntriesTotal, m.NextPageToken = nil, false, 0, ""
		}, 0},
		{"no resource", "resources.entries[0].resource", func(m *pb.InventoryChunk) { m.GetResources().Entries[0].Resource = nil }, 0},
		{"directory", "resources.entries[0].relative_dir", func(m *pb.InventoryChunk) { m.GetResources().Entries[0].RelativeDir = "/a" }, unsafe},
		{"no revision yet", "", func(m *pb.InventoryChunk) { m.GetResources().Entries[0].ContentRevision = "" }, 0},
	})
	hold(t, chunk(5), []rule[*pb.InventoryChunk]{
		{"error before the end", "error", func(m *pb.InventoryChunk) { m.LastChunk = false }, 0},
	})
	hold(t, chunk(1), []rule[*pb.InventoryChunk]{
		{"no header at first", "content_tree.header", func(m *pb.InventoryChunk) { m.GetContentTree().Header = nil }, 0},
		{"header later", "content_tree.header", func(m *pb.InventoryChunk) { m.ChunkIndex = 1 }, 0},
		{"later", "", func(m *pb.InventoryChunk) { m.ChunkIndex = 1; m.GetContentTree().Header = nil }, 0},
		{"files in the header", "content_tree.header.files", func(m *pb.InventoryChunk) {
			m.GetContentTree().Header.Files = []*pb.FileEntry{validtest.File(0)}
		}, 0},
		{"header of another revision", "content_tree.header.content_revision", func(m *pb.InventoryChunk) { m.GetContentTree().Header.ContentRevision = validtest.Hash(99) }, 0},
		{"file of another revision", "content_tree.files[1].content_revision", func(m *pb.InventoryChunk) { m.GetContentTree().Files[1].ContentRevision = validtest.Hash(99) }, 0},
		{"index twice", "content_tree.files[1].index", func(m *pb.InventoryChunk) { m.GetContentTree().Files[1].Index = 0 }, 0},
		{"no resource", "content_tree.header.resource", func(m *pb.InventoryChunk) { m.GetContentTree().Header.Resource = nil }, 0},
		{"version of a torrent", "content_tree.header.torrent.meta_version", func(m *pb.InventoryChunk) { m.GetContentTree().Header.Torrent.MetaVersion = 3 }, 0},
		{"plain tree", "", func(m *pb.InventoryChunk) {
			m.GetContentTree().Header.Torrent, m.GetContentTree().Header.Partfile = nil, nil
		}, 0},
		{"more pieces than there are", "content_tree.header.partfile.pieces_stored", func(m *pb.InventoryChunk) { m.GetContentTree().Header.Partfile.PiecesStored = 11 }, 0},
	})
	hold(t, chunk(4), []rule[*pb.InventoryChunk]{
		{"no root", "storage.entries[0].root_id", func(m *pb.InventoryChunk) { m.GetStorage().Entries[0].RootId = "" }, 0},
		{"no kind", "storage.entries[0].root_kind", func(m *pb.InventoryChunk) { m.GetStorage().Entries[0].RootKind = 0 }, unsupported},
		{"no error", "", func(m *pb.InventoryChunk) { m.GetStorage().Entries[0].Error = nil }, 0},
	})
}

func TestContentTree(t *testing.T) {
	many := func(n int) func(*pb.ContentTree) {
		return func(m *pb.ContentTree) {
			for i := range n {
				m.Files = append(m.Files, &pb.FileEntry{Index: uint32(i), Path: "a", Kind: pb.FileKind_FILE_KIND_REGULAR, ContentRevision: m.ContentRevision})
			}
		}
	}
	hold(t, validtest.Tree, []rule[*pb.ContentTree]{
		{"most files", "", many(200_000), 0},
		{"too many files", "files", many(200_001), 0},
	})
}

func TestFileEntry(t *testing.T) {
	const symlink = pb.FileKind_FILE_KIND_SYMLINK
	hold(t, func() *pb.FileEntry { return validtest.File(1) }, []rule[*pb.FileEntry]{
		{"no path", "path", func(m *pb.FileEntry) { m.Path = "" }, unsafe},
		{"backslash", "path", func(m *pb.FileEntry) { m.Path = `a\b` }, unsafe},
		{"drive", "path", func(m *pb.FileEntry) { m.Path = "C:/a" }, unsafe},
		{"dot", "path", func(m *pb.FileEntry) { m.Path = "a/./b" }, unsafe},
		{"empty component", "path", func(m *pb.FileEntry) { m.Path = "a//b" }, unsafe},
		{"component of 256", "path", func(m *pb.FileEntry) { m.Path = strings.Repeat("x", 256) }, unsafe},
		{"path of 4097", "path", func(m *pb.FileEntry) { m.Path = strings.Repeat("x/", 2048) + "x" }, unsafe},
		{"no kind", "kind", func(m *pb.FileEntry) { m.Kind = 0 }, unsupported},
		{"more complete than there is", "completed_bytes", func(m *pb.FileEntry) { m.CompletedBytes = 101 }, 0},
		{"padding of another kind", "padding", func(m *pb.FileEntry) { m.Padding = true }, 0},
		{"kind without padding", "padding", func(m *pb.FileEntry) { m.Kind = pb.FileKind_FILE_KIND_PADDING }, 0},
		{"selected padding", "selected", func(m *pb.FileEntry) { m.Kind, m.Padding = pb.FileKind_FILE_KIND_PADDING, true }, 0},
		{"padding", "", func(m *pb.FileEntry) { m.Kind, m.Padding, m.Selected = pb.FileKind_FILE_KIND_PADDING, true, false }, 0},
		{"pieces backwards", "last_piece", func(m *pb.FileEntry) { m.LastPiece = 0 }, 0},
		{"link of a file", "symlink_target", func(m *pb.FileEntry) { m.SymlinkTarget = "a" }, 0},
		{"link to nothing", "symlink_target", func(m *pb.FileEntry) { m.Kind = symlink }, unsafe},
		{"link outside", "symlink_target", func(m *pb.FileEntry) { m.Kind, m.SymlinkTarget = symlink, "../a" }, unsafe},
		{"link", "", func(m *pb.FileEntry) { m.Kind, m.SymlinkTarget = symlink, "A film (2020)/b" }, 0},
		{"no revision", "content_revision", func(m *pb.FileEntry) { m.ContentRevision = "" }, 0},
		{"no presence", "", func(m *pb.FileEntry) { m.Present = 0 }, 0},
	})
}

func TestRoutes(t *testing.T) {
	for i := range validtest.Routes() {
		hold(t, func() *pb.Route { return validtest.Routes()[i] }, []rule[*pb.Route]{
			{"no kind", "kind", func(m *pb.Route) { m.Kind = 0 }, unsupported},
			{"another kind", "source.endpoint", func(m *pb.Route) { m.Kind = validtest.Routes()[(i+1)%3].Kind }, 0},
			{"ends of two kinds", "target.endpoint", func(m *pb.Route) { m.Target = validtest.Routes()[(i+1)%3].Target }, 0},
			{"no source", "source", func(m *pb.Route) { m.Source = nil }, 0},
			{"no target", "target", func(m *pb.Route) { m.Target = nil }, 0},
			{"no root", "target.root_id", func(m *pb.Route) { m.Target.RootId = "" }, 0},
			{"no end", "source.endpoint", func(m *pb.Route) { m.Source.Endpoint = nil }, 0},
			{"no options", "", func(m *pb.Route) { m.Options = nil }, 0},
			{"writes in place", "options.in_place_writes", func(m *pb.Route) { m.Options.InPlaceWrites = true }, 0},
		})
	}
	hold(t, func() *pb.Route { return validtest.Routes()[1] }, []rule[*pb.Route]{
		{"port", "source.rsync.port", func(m *pb.Route) { m.Source.GetRsync().Port = 65536 }, 0},
		{"line break in a host", "source.rsync.host", func(m *pb.Route) { m.Source.GetRsync().Host = "a\nb" }, 0},
		{"line break in a user", "source.rsync.user", func(m *pb.Route) { m.Source.GetRsync().User = "a\nb" }, 0},
		{"line break in a host key", "source.rsync.host_key", func(m *pb.Route) { m.Source.GetRsync().HostKey = "a\nb" }, 0},
		{"key_ref of 129", "source.rsync.key_ref", func(m *pb.Route) { m.Source.GetRsync().KeyRef = strings.Repeat("x", 129) }, 0},
		{"key for its name", "source.rsync.key_ref", func(m *pb.Route) { m.Source.GetRsync().KeyRef = "-----BEGIN\nx" }, 0},
	})
	hold(t, func() *pb.RouteEndpoint { return validtest.Routes()[0].Source }, []rule[*pb.RouteEndpoint]{
		{"no end", "endpoint", func(m *pb.RouteEndpoint) { m.Endpoint = nil }, 0},
		{"empty end", "shared", func(m *pb.RouteEndpoint) { m.Endpoint = &pb.RouteEndpoint_Shared{} }, 0},
	})
	hold(t, func() *pb.Route { return validtest.Routes()[2] }, []rule[*pb.Route]{
		{"line break in a device", "source.syncthing.device_id", func(m *pb.Route) { m.Source.GetSyncthing().DeviceId = "a\nb" }, 0},
		{"line break in a folder", "source.syncthing.folder_id", func(m *pb.Route) { m.Source.GetSyncthing().FolderId = "a\nb" }, 0},
	})
	hold(t, func() *pb.Route { return validtest.Routes()[0] }, []rule[*pb.Route]{
		{"line break in a marker", "target.shared.shared_marker", func(m *pb.Route) { m.Target.GetShared().SharedMarker = "a\nb" }, 0},
		{"name of 513", "display_name", func(m *pb.Route) { m.DisplayName = strings.Repeat("x", 513) }, 0},
	})
	const (
		ready    = pb.RouteState_ROUTE_STATE_READY
		degraded = pb.RouteState_ROUTE_STATE_DEGRADED
		failed   = pb.RouteState_ROUTE_STATE_FAILED
	)
	hold(t, func() *pb.RouteUpdate { return validtest.Update(1) }, []rule[*pb.RouteUpdate]{
		{"sequence 0", "sequence", func(m *pb.RouteUpdate) { m.Sequence = 0 }, 0},
		{"no command", "", func(m *pb.RouteUpdate) { m.CommandId = "" }, 0},
		{"no side", "side", func(m *pb.RouteUpdate) { m.Side = 0 }, unsupported},
		{"no state", "state", func(m *pb.RouteUpdate) { m.State = 0 }, unsupported},
		{"ready without probe", "probe", func(m *pb.RouteUpdate) { m.State, m.Probe = ready, nil }, 0},
		{"ready without error", "", func(m *pb.RouteUpdate) { m.State, m.Error = ready, nil }, 0},
		{"degraded without error", "error", func(m *pb.RouteUpdate) { m.State, m.Error = degraded, nil }, 0},
		{"failed without error", "error", func(m *pb.RouteUpdate) { m.State, m.Error = failed, nil }, 0},
		{"failed without probe", "", func(m *pb.RouteUpdate) { m.State, m.Probe = failed, nil }, 0},
		{"no nonce seen", "", func(m *pb.RouteUpdate) { m.Probe.NonceSeen = "" }, 0},
	})
	snapshot := func() *pb.RouteSnapshot {
		return &pb.RouteSnapshot{RouteId: validtest.UUID(4), Side: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, CreationCommandId: validtest.UUID(7),
			LastSequence: 2, Updates: []*pb.RouteUpdate{validtest.Update(1), validtest.Update(2)}, State: ready}
	}
	hold(t, snapshot, []rule[*pb.RouteSnapshot]{
		{"gap", "", func(m *pb.RouteSnapshot) { m.Updates = m.Updates[1:] }, 0},
		{"update", "updates[1].sequence", func(m *pb.RouteSnapshot) { m.Updates[1].Sequence = 0 }, 0},
		{"no state", "state", func(m *pb.RouteSnapshot) { m.State = 0 }, unsupported},
	})
}
