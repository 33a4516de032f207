package api

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/registry"
	ways "signalbox/appliance/archive/route"
)

// enumText is a value of the schema as REST and CLI write it: in lower case, without the prefix of its enum.
func enumText(e protoreflect.Enum) string { return archive.Word(e) }

// enumWords are all values of an enum in that form.
func enumWords(d protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range d.Values().Len() {
		if n := d.Values().Get(i).Number(); n != 0 {
			out = append(out, archive.EnumWord(d, n))
		}
	}
	return out
}

// enumValue finds the value of a word; 0 when there is none.
func enumValue(d protoreflect.EnumDescriptor, word string) protoreflect.EnumNumber {
	for i := range d.Values().Len() {
		if n := d.Values().Get(i).Number(); n != 0 && archive.EnumWord(d, n) == word {
			return n
		}
	}
	return 0
}

// instant is a time that may not be there.
func instant(t time.Time) *stamp {
	if t.IsZero() {
		return nil
	}
	return maybe(&t)
}

// archiveError is an ErrorDetail.
type archiveError struct {
	Code      string            `json:"code"`
	Retryable bool              `json:"retryable"`
	Message   string            `json:"message"`
	Details   map[string]string `json:"details"`
}

func showArchiveError(d *pb.ErrorDetail) *archiveError {
	if d == nil {
		return nil
	}
	e := &archiveError{Code: enumText(d.GetCode()), Retryable: d.GetRetryable(), Message: d.GetMessage(), Details: d.GetDetails()}
	if e.Details == nil {
		e.Details = map[string]string{}
	}
	return e
}

// showStoredError reads an ErrorDetail from the database.
func showStoredError(b []byte) *archiveError {
	if len(b) == 0 {
		return nil
	}
	d := &pb.ErrorDetail{}
	if proto.Unmarshal(b, d) != nil {
		return &archiveError{Code: "internal", Message: "the stored error cannot be read", Details: map[string]string{}}
	}
	return showArchiveError(d)
}

type daemonPublic struct {
	ID           string   `json:"id"`
	Name         string   `json:"name"`
	State        string   `json:"state"` // online, offline or paused
	Attached     bool     `json:"attached"`
	Role         string   `json:"role"`
	Software     string   `json:"software"`
	Version      string   `json:"version"`
	Capabilities []string `json:"capabilities"`
	Generation   int64    `json:"generation"`
	StateEpoch   string   `json:"state_epoch"`
	Remote       string   `json:"remote"`
	ClockSkewMS  int64    `json:"clock_skew_ms"`
	RegisteredAt stamp    `json:"registered_at"`
	LastSeenAt   stamp    `json:"last_seen_at"`
	OfflineAt    *stamp   `json:"offline_at"`
	FirstSeenAt  stamp    `json:"first_seen_at"`
}

func showDaemon(d *registry.Daemon) daemonPublic {
	state := "offline"
	switch {
	case d.Online && d.Paused:
		state = "paused"
	case d.Online:
		state = "online"
	}
	return daemonPublic{ID: d.ID.String(), Name: d.Name, State: state, Attached: d.Attached, Role: enumText(d.Role), Software: d.Software,
		Version: versionText(d.Major, d.Negotiated), Capabilities: texts(d.Capabilities), Generation: d.Generation, StateEpoch: d.Epoch.String(),
		Remote: d.Remote, ClockSkewMS: d.ClockSkew.Milliseconds(), RegisteredAt: stamp(d.RegisteredAt), LastSeenAt: stamp(d.LastSeenAt),
		OfflineAt: instant(d.OfflineAt), FirstSeenAt: stamp(d.CreatedAt)}
}

type alertPublic struct {
	ID        int64   `json:"id"`
	Kind      string  `json:"kind"`
	Detail    string  `json:"detail"`
	DaemonID  *string `json:"daemon_id"`
	JobID     *string `json:"job_id"`
	Times     int64   `json:"times"`
	RaisedAt  stamp   `json:"raised_at"`
	LastAt    stamp   `json:"last_at"`
	ClearedAt *stamp  `json:"cleared_at"`
}

func showAlert(a *registry.Alert) alertPublic {
	return alertPublic{ID: a.No, Kind: string(a.Kind), Detail: a.Detail, DaemonID: orNoID(a.DaemonID), JobID: orNoID(a.JobID), Times: a.Times,
		RaisedAt: stamp(a.RaisedAt), LastAt: stamp(a.LastAt), ClearedAt: instant(a.ClearedAt)}
}

type viewPublic struct {
	Scope       string `json:"scope"`
	Revision    uint64 `json:"revision"`
	Entries     int64  `json:"entries"`
	CommittedAt stamp  `json:"committed_at"`
}

func showView(v *inventory.View) viewPublic {
	return viewPublic{Scope: enumText(v.Scope), Revision: v.Revision, Entries: v.Entries, CommittedAt: stamp(v.CommittedAt)}
}

type identityPublic struct {
	InfohashV1      *string `json:"infohash_v1"`
	InfohashV2      *string `json:"infohash_v2"`
	TreeFingerprint *string `json:"tree_fingerprint"`
}

func showIdentity(r *pb.ResourceIdentity) identityPublic {
	return identityPublic{orNull(r.GetInfohashV1()), orNull(r.GetInfohashV2()), orNull(r.GetTreeFingerprint())}
}

type resourcePublic struct {
	ResourceID             string         `json:"resource_id"`
	Name                   string         `json:"name"`
	Identity               identityPublic `json:"identity"`
	ContentRevision        string         `json:"content_revision"`
	LogicalBytes           uint64         `json:"logical_bytes"`
	SelectedBytes          uint64         `json:"selected_bytes"`
	CompletedSelectedBytes uint64         `json:"completed_selected_bytes"`
	FileCount              uint32         `json:"file_count"`
	BackendState           string         `json:"backend_state"`
	Root                   string         `json:"root"`
	RelativeDir            string         `json:"relative_dir"`
	Category               string         `json:"category"`
	Labels                 []string       `json:"labels"`
	PartialSelection       bool           `json:"partial_selection"`
	Absent                 bool           `json:"absent"`
	SeenAt                 stamp          `json:"seen_at"`
}

func showResource(r *inventory.Resource) resourcePublic {
	s := r.Summary
	return resourcePublic{ResourceID: s.GetResource().GetResourceId(), Name: inventory.NameOf(s), Identity: showIdentity(s.GetResource().GetIdentity()),
		ContentRevision: s.GetContentRevision(), LogicalBytes: s.GetLogicalBytes(), SelectedBytes: s.GetSelectedBytes(),
		CompletedSelectedBytes: s.GetCompletedSelectedBytes(), FileCount: s.GetFileCount(), BackendState: enumText(s.GetBackendState()),
		Root: s.GetContentRootId(), RelativeDir: s.GetRelativeDir(), Category: s.GetCategory(), Labels: texts(s.GetLabels()),
		PartialSelection: s.GetPartialSelection(), Absent: r.Absent, SeenAt: stamp(r.SeenAt)}
}

type filePublic struct {
	Index          uint32 `json:"index"`
	Path           string `json:"path"`
	Kind           string `json:"kind"`
	LogicalBytes   uint64 `json:"logical_bytes"`
	AllocatedBytes uint64 `json:"allocated_bytes"`
	CompletedBytes uint64 `json:"completed_bytes"`
	Selected       bool   `json:"selected"`
	Sparse         bool   `json:"sparse"`
	Executable     bool   `json:"executable"`
	LinkCount      uint32 `json:"link_count"`
	Present        string `json:"present"`
	ModifiedAt     *stamp `json:"modified_at"`
}

func showFile(f **pb.FileEntry) filePublic {
	e := *f
	out := filePublic{Index: e.GetIndex(), Path: e.GetPath(), Kind: enumText(e.GetKind()), LogicalBytes: e.GetLogicalBytes(),
		AllocatedBytes: e.GetAllocatedBytes(), CompletedBytes: e.GetCompletedBytes(), Selected: e.GetSelected(), Sparse: e.GetSparse(),
		Executable: e.GetExecutable(), LinkCount: e.GetLinkCount(), Present: enumText(e.GetPresent())}
	if e.GetMtime() != nil {
		out.ModifiedAt = instant(e.GetMtime().AsTime())
	}
	return out
}

type profilePublic struct {
	CaseSensitive           bool   `json:"case_sensitive"`
	NormalizationPreserving bool   `json:"normalization_preserving"`
	WindowsNames            bool   `json:"windows_names"`
	MaxFileBytes            uint64 `json:"max_file_bytes"`
	MaxNameBytes            uint32 `json:"max_name_bytes"`
	Sparse                  bool   `json:"sparse"`
	Hardlink                bool   `json:"hardlink"`
	Reflink                 bool   `json:"reflink"`
	NoReplaceRename         bool   `json:"no_replace_rename"`
}

func showProfile(p *pb.FilesystemProfile) *profilePublic {
	if p == nil {
		return nil
	}
	return &profilePublic{p.GetCaseSensitive(), p.GetNormalizationPreserving(), p.GetWindowsNames(), p.GetMaxFileBytes(), p.GetMaxNameBytes(),
		p.GetSupportsSparse(), p.GetSupportsHardlink(), p.GetSupportsReflink(), p.GetSupportsNoreplaceRename()}
}

type storagePublic struct {
	RootID           string         `json:"root_id"`
	Kind             string         `json:"kind"`
	TotalBytes       uint64         `json:"total_bytes"`
	FreeBytes        uint64         `json:"free_bytes"`
	Writable         bool           `json:"writable"`
	SameFilesystemAs []string       `json:"same_filesystem_as"`
	Profile          *profilePublic `json:"profile"`
	Error            *archiveError  `json:"error"`
	SeenAt           stamp          `json:"seen_at"`
}

func showStorage(s *inventory.Storage) storagePublic {
	e := s.Entry
	return storagePublic{RootID: e.GetRootId(), Kind: enumText(e.GetRootKind()), TotalBytes: e.GetTotalBytes(), FreeBytes: e.GetFreeBytes(),
		Writable: e.GetWritable(), SameFilesystemAs: texts(e.GetSameFilesystemAs()), Profile: showProfile(e.GetProfile()),
		Error: showArchiveError(e.GetError()), SeenAt: stamp(s.SeenAt)}
}

type routeSidePublic struct {
	DaemonID    string        `json:"daemon_id"`
	Daemon      string        `json:"daemon"`
	Online      bool          `json:"online"`
	RootID      string        `json:"root_id"`
	State       string        `json:"state"` // "" until its daemon was asked
	Sequence    uint64        `json:"sequence"`
	Quarantined bool          `json:"quarantined"`
	Error       *archiveError `json:"error"`
	UpdatedAt   *stamp        `json:"updated_at"`
}

func showRouteSide(d *ways.Daemon, e *pb.RouteEndpoint, s *ways.Side) routeSidePublic {
	out := routeSidePublic{DaemonID: d.Ref.ID.String(), Daemon: d.Name, Online: d.Online, RootID: e.GetRootId()}
	if s != nil {
		out.State, out.Sequence, out.Quarantined = enumText(s.State), s.LastSequence, s.Quarantined
		out.Error, out.UpdatedAt = showArchiveError(s.Error), instant(s.UpdatedAt)
	}
	return out
}

type routePublic struct {
	ID              string          `json:"id"`
	Name            string          `json:"name"`
	Kind            string          `json:"kind"`
	State           string          `json:"state"`
	Ready           bool            `json:"ready"`
	NotReadyBecause []string        `json:"not_ready_because"`
	SharedMarker    *string         `json:"shared_marker"`
	Source          routeSidePublic `json:"source"`
	Target          routeSidePublic `json:"target"`
	Error           *archiveError   `json:"error"`
	CreatedAt       stamp           `json:"created_at"`
	RemovedAt       *stamp          `json:"removed_at"`
}

func showRoute(v *ways.View) routePublic {
	return routePublic{ID: v.ID.String(), Name: v.Name, Kind: enumText(v.Message.GetKind()), State: enumText(v.Verdict.State), Ready: v.Verdict.Ready,
		NotReadyBecause: texts(v.Verdict.Why), SharedMarker: orNull(v.Message.GetSource().GetShared().GetSharedMarker()),
		Source: showRouteSide(&v.Source, v.Message.GetSource(), v.SourceSide),
		Target: showRouteSide(&v.Target, v.Message.GetTarget(), v.TargetSide), Error: showArchiveError(v.Verdict.Error),
		CreatedAt: stamp(v.CreatedAt), RemovedAt: instant(v.RemovedAt)}
}

type routeUpdatePublic struct {
	Side     string        `json:"side"`
	Sequence uint64        `json:"sequence"`
	State    string        `json:"state"`
	Error    *archiveError `json:"error"`
	At       stamp         `json:"at"`
}

func showRouteUpdate(u *ways.Update) routeUpdatePublic {
	return routeUpdatePublic{Side: enumText(u.Side), Sequence: u.Sequence, State: enumText(u.Message.GetState()),
		Error: showArchiveError(u.Message.GetError()), At: stamp(u.At)}
}
