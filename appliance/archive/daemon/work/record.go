package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"path"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// batch is how many files share two writes of the journal: one before their effects, one after.
const batch = 64

// thing is the index of entries that are no file of the content.
const thing = -1

// Details of entries that are no file.
const (
	isDir     = "dir"     // a directory that the job made
	isTree    = "tree"    // a directory with all below it that the job made and nobody else uses: a job directory, the work area
	isContent = "content" // a directory of content that was published whole
)

// entries are a job's journal entries of one step, by name.
type entries map[string]daemon.JournalEntry

// load reads the entries of a step.
func load(ctx context.Context, job *daemon.Job, step pb.JobStep) (entries, error) {
	all := entries{}
	err := job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		all[e.Name] = e
		return true
	}, step)
	return all, err
}

// identify fills in what tells the file from every other.
func identify(e daemon.JournalEntry, st beneath.Stat) daemon.JournalEntry {
	e.Device, e.Inode, e.Size, e.MtimeNs = st.Dev, st.Ino, uint64(st.Size), st.MtimeNS
	return e
}

// holds reports whether the name still has what the entry says: a file of the same device, inode, size and time; of links,
// whose time nobody sets, and of directories the same inode.
func holds(e daemon.JournalEntry, st beneath.Stat) bool {
	if e.Method == symlinked || e.Index == thing {
		return sameInode(e, st)
	}
	return same(e, st)
}

// same reports whether the name still has the file of the entry: device, inode, size and time (daemon protocol 7.6).
func same(e daemon.JournalEntry, st beneath.Stat) bool {
	return sameInode(e, st) && e.Size == uint64(st.Size) && e.MtimeNs == st.MtimeNS
}

// sameInode is same for directories, whose size and time change with what is in them.
func sameInode(e daemon.JournalEntry, st beneath.Stat) bool {
	return e.Inode != 0 && e.Device == st.Dev && e.Inode == st.Ino
}

// found describes a name, and whether it is there.
func found(r *beneath.Root, name string) (beneath.Stat, bool, error) {
	st, err := r.Lstat(name)
	if isNotFound(err) {
		return st, false, nil
	}
	return st, err == nil, err
}

// makeTree makes a directory that will be the job's with all below it, journaled as one thing. One that is there without
// an entry was made by a database that is gone (daemon protocol 9, row 13), for its name holds the job's ID: nobody knows
// what it is worth, so it is put aside, whole, for a person.
func (w *Worker) makeTree(ctx context.Context, job *daemon.Job, step pb.JobStep, known entries, r *beneath.Root, rootID, name string, create func() error) error {
	e, ours := known[name]
	ours = ours && e.State != daemon.RolledBack && e.State != daemon.Removed
	if st, there, err := found(r, name); err != nil {
		return err
	} else if there {
		if !ours {
			if _, err := layout.PutAside(r, name); err != nil {
				return failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("%s is there already, this daemon has no record of making it, and it "+
					"cannot be put aside: %v", name, err), "path", name)
			}
			w.o.Reached("put aside")
		} else if e.State == daemon.Published {
			if sameInode(e, st) {
				return nil
			}
			return failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("another directory took the place of %s", name), "path", name)
		} else if err := w.removeTree(ctx, r, name); err != nil { // made by a call that did not live to say so, perhaps not whole
			return err
		}
	}
	e = daemon.JournalEntry{Step: step, Index: thing, RootID: rootID, Name: name, State: daemon.Intent, Detail: []byte(isTree)}
	if err := job.Journal.Put(ctx, e); err != nil {
		return err
	}
	w.o.Reached("intent of a directory")
	if err := create(); err != nil {
		return err
	}
	st, err := r.Lstat(name)
	if err != nil {
		return err
	}
	e = identify(e, st)
	e.State = daemon.Published
	known[name] = e
	return job.Journal.Put(ctx, e)
}

// putAll journals many entries, a few at a time.
func putAll(ctx context.Context, job *daemon.Job, list []daemon.JournalEntry) error {
	for start := 0; start < len(list); start += 8 * batch {
		if err := job.Journal.Put(ctx, list[start:min(start+8*batch, len(list))]...); err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes a directory that the job made for itself alone. In a job directory marker and manifest go first, so
// that what an interruption leaves is not taken for complete, and the payload's other names stay known to the cache.
func (w *Worker) removeTree(ctx context.Context, r *beneath.Root, name string) error {
	if _, _, ok := layout.ParseJobDir(path.Base(name)); ok {
		for _, part := range []string{layout.MarkerFile, layout.ManifestFile} {
			if err := r.Unlink(path.Join(name, part)); err != nil && !isNotFound(err) {
				return err
			}
		}
		shared := &inodes{cache: w.o.Cache}
		payload := path.Join(name, layout.Payload)
		err := r.ReadDir(payload, func(e beneath.Entry) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if e.Type != 0 {
				return nil
			}
			return shared.unlink(ctx, r, path.Join(payload, e.Name))
		})
		if err != nil && !isNotFound(err) {
			return err
		}
		if err := shared.flush(ctx); err != nil {
			return err
		}
	}
	if err := r.RemoveAll(ctx, name); err != nil {
		return err
	}
	_, err := r.SyncDir(path.Dir(name))
	if isNotFound(err) {
		return nil
	}
	return err
}

// provenance digests a step's entries about files in their order: what MaterializeEvidence proves.
type provenance struct{ h hash.Hash }

func newProvenance() provenance { return provenance{sha256.New()} }

func (p provenance) add(e daemon.JournalEntry) {
	fmt.Fprintf(p.h, "%d\x00%s\x00%d\x00%d\x00%s\n", e.Index, e.Name, e.Method, e.Size, e.SHA256)
}

func (p provenance) sum() string { return hex.EncodeToString(p.h.Sum(nil)) }

// methodName is the key of a method in evidence.
func methodName(m pb.MaterializeMethod) string {
	const prefix = len("MATERIALIZE_METHOD_")
	return m.String()[prefix:]
}

// digestOf reads a digest of 64 hex digits; nil when there is none.
func digestOf(text string) *[sha256.Size]byte {
	var d [sha256.Size]byte
	if n, err := hex.Decode(d[:], []byte(text)); err != nil || n != len(d) || len(text) != 2*len(d) {
		return nil
	}
	return &d
}
