package work

import (
	"context"
	"path"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/archive/torrent"
)

// resourceEntry is the name of the journal entry about the content in the target's backend, from VERIFY on: an intent
// before it is registered, then its resource ID in Detail. Method tells whether the backend had it before: then it is not
// the job's to forget.
const resourceEntry = ".resource"

const (
	hadBefore = pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT
	newHere   = pb.MaterializeMethod_MATERIALIZE_METHOD_SYNTHESIZED
)

// registered reads the entry.
func registered(ctx context.Context, job *daemon.Job) (daemon.JournalEntry, bool, error) {
	return job.Journal.Get(ctx, pb.JobStep_JOB_STEP_VERIFY, thing, resourceEntry)
}

// addition is what the target's backend is asked to hold.
func addition(job *daemon.Job, m *pb.TransferManifest, metainfo []byte) backend.Addition {
	d := job.Definition.GetDestination()
	a := backend.Addition{Metainfo: metainfo, Location: backend.Location{RootID: d.GetContentRootId(), Dir: d.GetRelativeDir()},
		Category: d.GetCategory(), Labels: d.GetLabels()}
	if metainfo != nil {
		a.Selected = job.Definition.GetRequested()
	} else if len(m.GetFiles()) > 0 {
		a.Name = top(m.GetFiles()[0].GetPath())
	}
	return a
}

// register has the backend hold the content, stopped, and remembers under which name.
func (w *Worker) register(ctx context.Context, job *daemon.Job, a backend.Addition, meta *torrent.Metainfo) (string, error) {
	e, known, err := registered(ctx, job)
	if err != nil {
		return "", err
	}
	if !known || e.State == daemon.RolledBack {
		e = daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_VERIFY, Index: thing, RootID: a.Location.RootID, Name: resourceEntry,
			State: daemon.Intent, Method: newHere}
		had, err := w.has(ctx, a, meta)
		if err != nil {
			return "", err
		}
		if had {
			e.Method = hadBefore
		}
		if err := job.Journal.Put(ctx, e); err != nil {
			return "", err
		}
	}
	w.o.Reached("register: intent")
	id, err := w.o.Backend.AddStopped(ctx, a)
	if err != nil {
		return "", err
	}
	w.o.Reached("register: effect")
	e.State, e.Detail = daemon.Published, []byte(id)
	return id, job.Journal.Put(ctx, e)
}

// has reports whether the backend holds the content already: the torrent, or the same place.
func (w *Worker) has(ctx context.Context, a backend.Addition, meta *torrent.Metainfo) (bool, error) {
	list, err := w.o.Backend.ListResources(ctx)
	if err != nil {
		return false, err
	}
	for _, r := range list.Resources {
		id := r.GetResource().GetIdentity()
		if meta == nil {
			if id.GetInfohashV1()+id.GetInfohashV2() == "" && r.GetContentRootId() == a.Location.RootID &&
				r.GetRelativeDir() == a.Location.Dir && id.GetDisplayName() == torrent.DisplayName(a.Name) {
				return true, nil
			}
			continue
		}
		if v1 := meta.V1Hex(); v1 != "" && v1 == id.GetInfohashV1() {
			return true, nil
		}
		if v2 := meta.V2Hex(); v2 != "" && v2 == id.GetInfohashV2() {
			return true, nil
		}
	}
	return false, nil
}

// unregister has the backend forget what an uncommitted job has registered. The backend's own files of the entry are the
// job's then, and go.
func (w *Worker) unregister(ctx context.Context, job *daemon.Job) error {
	e, known, err := registered(ctx, job)
	if err != nil || !known || e.State == daemon.RolledBack || e.Method != newHere {
		return err
	}
	id := string(e.Detail)
	if e.State == daemon.Intent {
		if id, err = w.halfRegistered(ctx, job); err != nil {
			return err
		}
	}
	if id != "" {
		remove := w.o.Backend.RemoveEntry
		if b, ok := w.o.Backend.(backend.Unadder); ok {
			remove = b.UndoAdd // somebody may have added the same torrent since
		}
		trashed, err := remove(ctx, id, job.ID.String())
		if err != nil {
			return err
		}
		w.o.Reached("unregister: entry removed")
		if err := w.removeTrashed(job, e.RootID, trashed); err != nil {
			return err
		}
	}
	e.State = daemon.RolledBack
	return job.Journal.Put(ctx, e)
}

// halfRegistered finds the ID of content that was registered, or not, right before the process ended: registering it once
// more tells, and changes nothing if it was. It is "" when the content cannot be registered, and so was not.
func (w *Worker) halfRegistered(ctx context.Context, job *daemon.Job) (string, error) {
	receive, err := w.receivedFrom(ctx, job)
	if err != nil {
		return "", err
	}
	staged, err := job.Evidence(ctx, pb.JobStep_JOB_STEP_TRANSFER)
	if err != nil {
		return "", err
	}
	dir := staged.GetTransfer().GetJobDir()
	if dir == "" {
		return "", nil
	}
	got, err := w.received(ctx, receive, job, dir, staged.GetTransfer().GetManifestSha256(), true)
	if err != nil {
		return "", err
	}
	metainfo, _, err := readMetainfo(receive, dir, got.Manifest)
	if err != nil {
		return "", err
	}
	id, err := w.o.Backend.AddStopped(ctx, addition(job, got.Manifest, metainfo))
	switch backend.CodeOf(err) {
	case pb.ErrorCode_ERROR_CODE_NOT_FOUND, pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE:
		return "", nil
	}
	return id, err
}

// removeTrashed removes what the backend put aside of an entry that this job had made, and the directory if it is empty.
func (w *Worker) removeTrashed(job *daemon.Job, rootID string, list []backend.Trashed) error {
	home, err := w.root(rootID, "content root of the resource")
	if err != nil {
		return err
	}
	dirs := map[*beneath.Root]bool{home: true}
	for _, t := range list {
		if t.RootID == "" || !strings.HasPrefix(t.Name, layout.TrashDir(job.ID.String())+"/") {
			continue // out of reach: it stays aside
		}
		r, err := w.root(t.RootID, "content root of the backend's files")
		if err != nil {
			return err
		}
		if err := r.Unlink(t.Name); err != nil && !isNotFound(err) {
			return err
		}
		dirs[r] = true
	}
	for r := range dirs {
		if err := r.Rmdir(layout.TrashDir(job.ID.String())); err != nil && !isNotFound(err) && !isTaken(err) {
			return err
		}
		if _, err := r.SyncDir(path.Dir(layout.TrashDir(job.ID.String()))); err != nil && !isNotFound(err) {
			return err
		}
	}
	return nil
}

// notStarted holds a job whose content the backend has at work although this daemon has no commit record: its database is
// then older than what it did (daemon protocol 3.7). Content that the backend had before may well be at work.
func (w *Worker) notStarted(ctx context.Context, job *daemon.Job) error {
	e, known, err := registered(ctx, job)
	if err != nil || !known || e.State != daemon.Published || e.Method != newHere {
		return err
	}
	list, err := w.o.Backend.ListResources(ctx)
	if err != nil {
		return err
	}
	for _, r := range list.Resources {
		if r.GetResource().GetResourceId() != string(e.Detail) {
			continue
		}
		switch r.GetBackendState() {
		case pb.BackendState_BACKEND_STATE_SEEDING, pb.BackendState_BACKEND_STATE_DOWNLOADING:
			return held(pb.ErrorCode_ERROR_CODE_STATE_LOST, "the backend has the content at work and this daemon has no record of starting it",
				"resource_id", string(e.Detail))
		}
	}
	return nil
}
