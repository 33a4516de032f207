package layout

import (
	"context"
	"encoding/hex"
	"errors"
	"path/filepath"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/pathrule"
)

// Report is what Verify found in a job directory.
type Report struct {
	JobID          string
	Attempt        uint32
	ManifestSHA256 string
	Manifest       *pb.TransferManifest // nil when it could not be accepted
	Files          int                  // payload and artifact files whose content was read and is right
	Bytes          uint64               // read from them
	Problems       []Problem            // in the order they were found; at most 1000
	More           int                  // problems beyond those
	Extras         Extras
}

// OK reports a directory without a problem. Extra names are none.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

// Problem is one thing that is wrong.
type Problem struct {
	Code    pb.ErrorCode
	Path    string // relative to the job directory; empty for the directory itself
	Message string
}

const maxProblems = 1000

func (r *Report) add(err error) {
	if len(r.Problems) == maxProblems {
		r.More++
		return
	}
	p := Problem{Code: beneath.CodeOf(err), Message: err.Error()}
	var own *beneath.Error
	var rule *pathrule.Error
	var wait *NotReady
	switch {
	case errors.As(err, &own):
		p.Path = own.Path
		if own.Op == Op || own.Op == copyfile.Op {
			p.Message = own.Err.Error()
		}
	case errors.As(err, &rule):
		p.Code, p.Path = rule.Code, ManifestFile
	case errors.As(err, &wait):
		p.Code, p.Message = beneath.NotFound, wait.Reason
	}
	r.Problems = append(r.Problems, p)
}

// Verify reads a whole job directory, without a job or a database: marker, manifest, and every byte of payload and
// artifacts against the digests of the manifest. It changes nothing. What is wrong with the directory is in the report;
// an error means that it could not be looked at, or ctx ended. progress, if not nil, is told the bytes read and the bytes
// to read.
func Verify(ctx context.Context, dir string, progress func(done, total uint64)) (*Report, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := beneath.Open(abs, beneath.Options{})
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return verify(ctx, root, filepath.Base(abs), progress)
}

func verify(ctx context.Context, root *beneath.Root, name string, progress func(done, total uint64)) (*Report, error) {
	r := &Report{}
	var exp Expect
	var named bool
	if exp.JobID, exp.Attempt, named = ParseJobDir(name); !named {
		r.add(invalid("", "the directory's name %q is not a job ID and an attempt", name))
	}
	r.JobID, r.Attempt = exp.JobID, exp.Attempt
	marker, manifest, err := readPair(root, "")
	if err != nil {
		r.add(err)
		return r, ctx.Err()
	}
	got := &Received{Marker: &pb.ReadyMarker{}, Manifest: &pb.TransferManifest{}}
	if err := decode(MarkerFile, marker, got.Marker); err != nil {
		r.add(err)
		return r, ctx.Err()
	}
	if r.ManifestSHA256, err = checkMarker("", got.Marker, manifest, exp); err == nil {
		err = decode(ManifestFile, manifest, got.Manifest)
	}
	if err == nil {
		err = ValidateManifest(got.Manifest, exp)
	}
	if err == nil {
		err = checkTotals("", got)
	}
	if err != nil {
		r.add(err)
		return r, ctx.Err()
	}
	r.Manifest, r.JobID, r.Attempt = got.Manifest, got.Manifest.JobId, got.Manifest.Attempt
	err = checkSizes(ctx, root, "", got)
	r.Extras = got.Extras
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil && !IsNotReady(err) { // what is missing is found, and named, below
		r.add(err)
	}
	if err := r.content(ctx, root, progress); err != nil {
		return r, err
	}
	if r.OK() {
		if err := checkTorrent(root, "", r.Manifest); err != nil {
			r.add(err)
		}
	}
	return r, nil
}

// content reads payload and artifacts.
func (r *Report) content(ctx context.Context, root *beneath.Root, progress func(done, total uint64)) error {
	total := uint64(0)
	for _, size := range listed(r.Manifest) {
		total += size
	}
	done := uint64(0)
	one := func(name string, size uint64, digest string) {
		o := copyfile.Options{Progress: func(logical, _ int64) {
			if progress != nil {
				progress(done+uint64(logical), total)
			}
		}}
		o.Check = func(st beneath.Stat) error {
			if uint64(st.Size) != size {
				return failure(integrity, name, "has %d bytes, the manifest says %d", st.Size, size)
			}
			return nil
		}
		found, err := copyfile.Digest(ctx, root, name, o)
		if err == nil && hex.EncodeToString(found.SHA256[:]) != digest {
			err = failure(integrity, name, "has SHA-256 %x, the manifest says %s", found.SHA256, digest)
		}
		if ctx.Err() != nil {
			return
		}
		done += size
		if err != nil {
			r.add(err)
			return
		}
		r.Files++
		r.Bytes += size
	}
	for _, f := range r.Manifest.Files {
		if f.Payload != "" && ctx.Err() == nil {
			one(f.Payload, f.LogicalBytes, f.Sha256)
		}
	}
	for _, a := range r.Manifest.Artifacts {
		if ctx.Err() == nil {
			one(a.Payload, a.Bytes, a.Sha256)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
