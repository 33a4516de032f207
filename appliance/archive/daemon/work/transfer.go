package work

import (
	"context"
	"fmt"
	"path"
	"time"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// lookAgain is how long TRANSFER waits before it looks again at a job directory that is not complete: network file
// systems tell nobody when a name appears.
const lookAgain = 5 * time.Second

// transfer brings the job directory into the receive root (daemon protocol 3.2, 6.1).
func (w *Worker) transfer(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	switch kind := t.Job.Route.GetKind(); kind {
	case pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY:
		return w.transferShared(ctx, t)
	default:
		return nil, failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, fmt.Sprintf("routes of kind %v are not known here", kind))
	}
}

// transferShared copies from the shared outbox: by link or clone on one file system, otherwise by bytes, each file going
// on where an earlier attempt ended.
func (w *Worker) transferShared(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	params := t.Execute.GetTransfer()
	from, err := w.o.Roots.Shared(t.Job.Route.GetTarget().GetShared().GetSharedMarker())
	if err != nil {
		return nil, err
	}
	to, toID, err := w.receiveRoot(t.Job)
	if err != nil {
		return nil, err
	}
	if d, i := from.Identity(); sameDirectory(to, d, i) {
		return nil, failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("the shared outbox is the receive root %q itself: they must be two directories",
			toID), "root_id", toID)
	}
	got, err := w.complete(ctx, t, from, params.GetJobDir(), params.GetManifestSha256())
	if err != nil {
		return nil, err
	}
	known, err := load(ctx, t.Job, pb.JobStep_JOB_STEP_TRANSFER)
	if err != nil {
		return nil, err
	}
	if err := w.makeJobDir(ctx, t.Job, pb.JobStep_JOB_STEP_TRANSFER, known, to, toID, got.Manifest.GetAttempt()); err != nil {
		return nil, err
	}
	c := &carrying{w: w, t: t, from: from, to: to, toID: toID, dir: layout.JobDir(t.Job.ID.String(), got.Manifest.GetAttempt()), known: known, methods: map[string]int{}}
	e, err := c.carry(ctx, got)
	if err != nil && !ended(ctx, err) && codeOf(err) == pb.ErrorCode_ERROR_CODE_WRITE_ERROR {
		// What could not be flushed may be lost, and flushing it again proves nothing: the next attempt begins with new files
		// (row 43). After every other failure it goes on with these (row 1).
		err = afterwards(err, w.removeTrees(ctx, t.Job, c.dir, pb.JobStep_JOB_STEP_TRANSFER))
	}
	return e, err
}

// sameDirectory reports whether the root is the directory of that device and inode.
func sameDirectory(r *beneath.Root, device, inode uint64) bool {
	d, i := r.Identity()
	return d == device && i == inode
}

// complete waits until the job directory is complete, and refuses one that no waiting mends (rows 14, 15).
func (w *Worker) complete(ctx context.Context, t *daemon.Task, r *beneath.Root, dir, digest string) (*layout.Received, error) {
	id, attempt, ok := layout.ParseJobDir(dir)
	if !ok || id != t.Job.ID.String() {
		return nil, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, fmt.Sprintf("%q is no directory of this job", dir), "path", dir)
	}
	for {
		got, err := layout.Receive(ctx, r, id, attempt, expectation(t.Job, digest))
		if !layout.IsNotReady(err) {
			return got, err
		}
		if err := r.Verify(); err != nil {
			return nil, err
		}
		w.o.Reached("transfer: waiting")
		timer := w.o.Clock.NewTimer(lookAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-timer.C():
		}
	}
}

// carrying is one run of TRANSFER over a shared directory.
type carrying struct {
	w       *Worker
	t       *daemon.Task
	from    *beneath.Root
	to      *beneath.Root
	toID    string
	dir     string // of the job, below both roots
	known   entries
	meter   *meter
	methods map[string]int
}

// carry brings everything: first what the manifest lists, then the manifest, then the marker.
func (c *carrying) carry(ctx context.Context, got *layout.Received) (*pb.StepEvidence, error) {
	if err := c.payload(ctx, got.Manifest); err != nil {
		return nil, err
	}
	return c.seal(ctx, got)
}

// carried is one file of the job directory.
type carried struct {
	index int64
	name  string // relative to the job directory
	bytes uint64
	data  uint64 // without holes
	sum   string
	begun bool // some of it is there
}

// carriers are the methods of a shared directory, the best first (daemon protocol 6.1).
var carriers = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK,
	pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}

func (c *carrying) payload(ctx context.Context, m *pb.TransferManifest) error {
	var files []carried
	var total, data uint64
	for _, f := range m.GetFiles() {
		if f.GetPayload() != "" {
			files = append(files, carried{index: int64(f.GetIndex()), name: f.GetPayload(), bytes: f.GetLogicalBytes(), data: f.GetAllocatedBytes(), sum: f.GetSha256()})
			total += f.GetLogicalBytes()
			data += f.GetAllocatedBytes()
		}
	}
	for _, a := range m.GetArtifacts() {
		files = append(files, carried{index: thing, name: a.GetPayload(), bytes: a.GetBytes(), data: a.GetBytes(), sum: a.GetSha256()})
		total += a.GetBytes()
		data += a.GetBytes()
	}
	c.meter = newMeter(c.t, len(files), total, data)
	for start := 0; start < len(files); start += batch {
		if err := c.some(ctx, files[start:min(start+batch, len(files))]); err != nil {
			return err
		}
	}
	return nil
}

func (c *carrying) some(ctx context.Context, files []carried) error {
	entry := func(f carried, state daemon.JournalState) daemon.JournalEntry {
		return daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_TRANSFER, Index: f.index, RootID: c.toID, Name: path.Join(c.dir, f.name), SHA256: f.sum, State: state}
	}
	var todo []carried
	var before, after []daemon.JournalEntry
	for _, f := range files {
		done, begun, err := c.there(f)
		if err != nil {
			return err
		}
		f.begun = begun
		if done {
			c.methods[methodName(c.known[path.Join(c.dir, f.name)].Method)]++
			c.meter.file(f.bytes, f.data)
			continue
		}
		todo = append(todo, f)
		before = append(before, entry(f, daemon.Intent))
	}
	if len(todo) == 0 {
		return nil
	}
	if err := c.t.Job.Journal.Put(ctx, before...); err != nil {
		return err
	}
	c.w.o.Reached("transfer: intent")
	var failed error
	for _, f := range todo {
		methods := carriers
		if f.begun { // by a copy; links and clones are made in one piece
			methods = carriers[len(carriers)-1:]
		}
		r, err := copyfile.Place(ctx, c.from, path.Join(c.dir, f.name), c.to, path.Join(c.dir, f.name), methods,
			copyfile.Options{Limit: c.w.o.Write, Progress: c.meter.within, Resume: true, SkipDigest: true,
				Check: func(st beneath.Stat) error {
					if uint64(st.Size) != f.bytes {
						return failure(pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID, fmt.Sprintf("%s has %d bytes, the manifest says %d", f.name, st.Size, f.bytes), "path", f.name)
					}
					return nil
				}})
		if err != nil {
			failed = err
			break
		}
		e := identify(entry(f, daemon.Published), r.Target)
		e.Method = r.Method
		c.methods[methodName(r.Method)]++
		after = append(after, e)
		c.meter.file(f.bytes, f.data)
	}
	c.w.o.Reached("transfer: effect")
	if len(after) > 0 && ctx.Err() == nil {
		// Finished files count also when a later one failed: they are not copied again (row 1).
		if err := c.t.Job.Journal.Put(ctx, after...); err != nil {
			return err
		}
	}
	return failed
}

// there reports whether an earlier call has brought the file, or has begun to. What it has begun is gone on with, or, when
// it cannot be, taken away: the directory is the job's own.
func (c *carrying) there(f carried) (done, begun bool, err error) {
	name := path.Join(c.dir, f.name)
	st, there, err := found(c.to, name)
	if err != nil || !there {
		return false, false, err
	}
	if e := c.known[name]; e.State == daemon.Published && same(e, st) && e.Size == f.bytes {
		return true, false, nil
	}
	if !st.Mode.IsRegular() || st.Nlink > 1 || uint64(st.Size) > f.bytes {
		return false, false, c.to.Unlink(name)
	}
	return false, true, nil
}

// seal brings manifest and marker, in this order and as the exact bytes, and looks at the result as its receiver will.
func (c *carrying) seal(ctx context.Context, got *layout.Received) (*pb.StepEvidence, error) {
	for _, dir := range []string{path.Join(c.dir, layout.Payload), path.Join(c.dir, layout.Aux), c.dir} {
		if _, err := c.to.SyncDir(dir); err != nil && !isNotFound(err) {
			return nil, err
		}
	}
	for _, f := range []struct {
		name  string
		limit int64
	}{{layout.ManifestFile, layout.MaxManifest}, {layout.MarkerFile, layout.MaxMarker}} {
		content, err := c.from.ReadFile(path.Join(c.dir, f.name), f.limit)
		if err != nil {
			return nil, err
		}
		if _, err := layout.WriteAtomic(c.to, path.Join(c.dir, f.name), content); err != nil {
			return nil, err
		}
		c.w.o.Reached("transfer: " + f.name)
	}
	at, err := c.w.received(ctx, c.to, c.t.Job, path.Base(c.dir), got.ManifestSHA256, false)
	if err != nil {
		return nil, err
	}
	t := at.Manifest.GetTotals()
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: path.Base(c.dir), ManifestSha256: at.ManifestSHA256,
		Files: t.GetPayloadFiles(), LogicalBytes: t.GetPayloadLogicalBytes(), AllocatedBytes: t.GetPayloadAllocatedBytes(),
		CarrierDetail: c.detail(at.Extras)}}}, nil
}

// detail says how the files came, and what else lies in the directory.
func (c *carrying) detail(x layout.Extras) string {
	text := "shared directory:"
	for _, m := range []string{"HARDLINK", "REFLINK", "COPY_SPARSE"} {
		if n := c.methods[m]; n > 0 {
			text += fmt.Sprintf(" %s %d", m, n)
		}
	}
	if x.Count > 0 {
		text += fmt.Sprintf("; %d other names ignored, such as %.80q", x.Count, x.First[0].Name)
	}
	return text
}
