package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/rawjson"
)

// previewJob begins a preview and, when the caller wants, waits for it.
func (a *API) previewJob(w http.ResponseWriter, c *call) error {
	q := c.query()
	wait := q.wait()
	if err := q.err(); err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	req, patterns := jobRequest(b)
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	id, err := s.Previews.PreviewFiles(c.Context(), req, patterns, by(c).Principal)
	if err != nil {
		return inOurWords(err, "resource_id", "source.resource", "source", "source.daemon", "target", "target.daemon",
			"destination.content_root_id", "destination.root",
			"destination.relative_dir", "destination.dir", "parent", "parent_job", "requested", "indices", "max_verify_age", "max_verify_age_seconds",
			"policies.sparse_policy", "policies.sparse", "policies.partfile_mode", "policies.partfile", "policies.conflict_policy", "policies.conflict",
			"policies.trash_retention", "policies.trash_retention_seconds")
	}
	return a.replyPreview(w, c, s, id, wait)
}

func (a *API) getPreview(w http.ResponseWriter, c *call) error {
	q := c.query()
	wait := q.wait()
	if err := q.err(); err != nil {
		return err
	}
	return a.onJob(c, func(s *Archive, id uuid.UUID) error { return a.replyPreview(w, c, s, id, wait) })
}

// wait is how long the caller waits for an answer of daemons.
func (q *query) wait() time.Duration {
	n := q.count("wait", 0, 0)
	if n > maxQueryWait {
		q.bad("wait", "must be 0 to %d seconds", maxQueryWait)
	}
	return time.Duration(n) * time.Second
}

// replyPreview answers 202 while the preview runs.
func (a *API) replyPreview(w http.ResponseWriter, c *call, s *Archive, id uuid.UUID, wait time.Duration) error {
	if wait > 0 {
		ctx, cancel := context.WithTimeout(c.Context(), wait)
		_, err := s.Previews.Wait(ctx, id)
		cancel()
		if err != nil && !(errors.Is(ctx.Err(), context.DeadlineExceeded) && c.Context().Err() == nil) {
			return err
		}
	}
	p, err := s.Previews.Show(c.Context(), id)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if p.State == preflight.Running {
		status = http.StatusAccepted
	}
	return reply(w, c, status, showPreview(&p))
}

func (a *API) listPreviewFiles(w http.ResponseWriter, c *call) error {
	q := c.query()
	after := q.count("cursor", 0, -1)
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	if err := q.err(); err != nil {
		return err
	}
	limit = min(limit, int64(a.opts.MaxPage))
	return a.onJob(c, func(s *Archive, id uuid.UUID) error {
		files, err := s.Previews.Files(c.Context(), id, after, int(limit))
		if err != nil {
			return err
		}
		out := list[plannedPublic]{Items: each(files, showPlanned)}
		if len(files) > 0 && len(files) == int(limit) {
			next := strconv.FormatInt(int64(out.Items[len(files)-1].Index), 10)
			out.NextCursor = &next
		}
		return reply(w, c, http.StatusOK, out)
	})
}

// jobRequest reads what an operator asks for.
func jobRequest(b *body) (req job.Request, patterns []string) {
	b.only("operation", "source", "target", "route", "files", "indices", "destination", "policies", "parent_job", "evict_after",
		"max_verify_age_seconds", "allow_library_links", "accept_drop")
	word := oneWord(b, "operation", enumWords(pb.JobOperation(0).Descriptor()))
	r := job.Request{Operation: pb.JobOperation(enumValue(pb.JobOperation(0).Descriptor(), word)), EvictAfter: b.is("evict_after"),
		AllowLibraryLinks: b.is("allow_library_links"), AcceptDrop: b.is("accept_drop")}
	patterns = b.texts("files", preflight.MaxPatterns)
	if source := b.within("source", "daemon", "resource"); source != nil {
		r.Source, r.ResourceID = orNilID(source.id("daemon")), source.required("resource")
		b.take(source)
	}
	if target := b.within("target", "daemon"); target != nil {
		r.Target = orNilID(target.id("daemon"))
		b.take(target)
	}
	if r.Operation == pb.JobOperation_JOB_OPERATION_ADOPT && !b.has("target") {
		r.Target = r.Source
	}
	r.Route, r.Parent = orNilID(b.id("route")), orNilID(b.id("parent_job"))
	if text := b.text("indices"); text != nil {
		set, err := parseIndices(*text)
		if err != nil {
			b.bad("indices", "%v", err)
		}
		if patterns != nil {
			b.bad("indices", "is not for use beside files")
		}
		r.Requested = set
	}
	if d := b.within("destination", "root", "dir", "category", "labels", "preserve_layout"); d != nil {
		r.Destination = &pb.Destination{ContentRootId: d.required("root"), RelativeDir: orEmpty(d.text("dir")), Category: orEmpty(d.text("category")),
			Labels: d.texts("labels", 64), PreserveLayout: d.is("preserve_layout")}
		b.take(d)
	}
	r.Policies = policies(b)
	if n := b.int("max_verify_age_seconds"); n != nil {
		if *n < 1 {
			b.bad("max_verify_age_seconds", "must be at least 1")
		}
		r.MaxVerifyAge = time.Duration(*n) * time.Second
	}
	return r, patterns
}

// policies reads what of a job's policies is not as usual; nil when all of it is.
func policies(b *body) *pb.JobPolicies {
	p := b.within("policies", "verify_level", "sparse", "partfile", "conflict", "stage_methods", "materialize_methods", "quiesce",
		"activation", "keep_free_bytes", "trash_retention_seconds", "cleanup")
	if p == nil {
		return nil
	}
	out := &pb.JobPolicies{
		VerifyLevel:        pb.VerifyLevel(p.enum("verify_level", pb.VerifyLevel(0))),
		SparsePolicy:       pb.SparsePolicy(p.enum("sparse", pb.SparsePolicy(0))),
		PartfileMode:       pb.PartfileMode(p.enum("partfile", pb.PartfileMode(0))),
		ConflictPolicy:     pb.ConflictPolicy(p.enum("conflict", pb.ConflictPolicy(0))),
		Quiesce:            pb.QuiescePolicy(p.enum("quiesce", pb.QuiescePolicy(0))),
		Activation:         pb.ActivationPolicy(p.enum("activation", pb.ActivationPolicy(0))),
		Cleanup:            pb.CleanupPolicy(p.enum("cleanup", pb.CleanupPolicy(0))),
		StageMethods:       p.methods("stage_methods"),
		MaterializeMethods: p.methods("materialize_methods"),
	}
	if n := p.long("keep_free_bytes", 1); n != nil {
		out.KeepFreeBytes = uint64(*n)
	}
	if n := p.long("trash_retention_seconds", 0); n != nil {
		if *n > int64(archive.MaxTrashRetention/time.Second) {
			p.bad("trash_retention_seconds", "must be at most %d", int64(archive.MaxTrashRetention/time.Second))
		} else {
			out.TrashRetention = durationpb.New(time.Duration(*n) * time.Second)
		}
	}
	b.take(p)
	return out
}

func orNilID(id *uuid.UUID) uuid.UUID {
	if id == nil {
		return uuid.Nil
	}
	return *id
}

// parseIndices reads a set of file indices such as 0-3,7.
func parseIndices(text string) (*pb.IndexSet, error) {
	bad := errors.New("must be indices and ranges in ascending order, such as 0-3,7")
	set := &pb.IndexSet{}
	next := uint64(0)
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 31)
		if err != nil {
			return nil, bad
		}
		last, err := strconv.ParseUint(high, 10, 31)
		if err != nil || last < first || first < next {
			return nil, bad
		}
		next = last + 1
		if n := len(set.Ranges); n > 0 && uint64(set.Ranges[n-1].Last)+1 == first { // neighbours are one range
			set.Ranges[n-1].Last = uint32(last)
			continue
		}
		set.Ranges = append(set.Ranges, &pb.IndexRange{First: uint32(first), Last: uint32(last)})
	}
	return set, nil
}

// The members of bodies that these requests have and others do not.

// is is an optional truth value that is false when absent.
func (b *body) is(name string) bool {
	v := b.flag(name)
	return v != nil && *v
}

// long is an optional integer of at least low.
func (b *body) long(name string, low int64) *int64 {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	n, ok := v.Int64()
	if !ok || n < low {
		b.bad(name, "must be an integer of at least %d", low)
		return nil
	}
	return &n
}

// within is an optional object with these members; nil when it is absent. take gives its mistakes to the body around it.
func (b *body) within(name string, members ...string) *body {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	if v.Kind() != rawjson.Object {
		b.bad(name, "must be an object")
		return nil
	}
	in := &body{doc: b.doc, root: v, prefix: name + "."}
	in.only(members...)
	return in
}

func (b *body) take(in *body) { b.items = append(b.items, in.items...) }

// enum is an optional value of an enum; 0 when it is absent.
func (b *body) enum(name string, of protoreflect.Enum) int32 {
	s := b.text(name)
	if s == nil {
		return 0
	}
	n := enumValue(of.Descriptor(), *s)
	if n == 0 {
		b.bad(name, "must be one of %s", strings.Join(enumWords(of.Descriptor()), ", "))
	}
	return int32(n)
}

func (b *body) methods(name string) []pb.MaterializeMethod {
	var out []pb.MaterializeMethod
	for _, s := range b.texts(name, 16) {
		n := enumValue(pb.MaterializeMethod(0).Descriptor(), s)
		if n == 0 {
			b.bad(name, "must be a list of %s", strings.Join(enumWords(pb.MaterializeMethod(0).Descriptor()), ", "))
			return nil
		}
		out = append(out, pb.MaterializeMethod(n))
	}
	return out
}

type previewPublic struct {
	ID         string            `json:"id"`
	Operation  string            `json:"operation"`
	State      string            `json:"state"` // running, passed or failed
	Summary    preflight.Summary `json:"summary"`
	Warnings   []string          `json:"warnings"`
	Error      *archiveError     `json:"error"`
	Started    bool              `json:"started"` // a job was made of it
	JobID      *string           `json:"job_id"`  // that job; null: none
	CreatedAt  stamp             `json:"created_at"`
	FinishedAt *stamp            `json:"finished_at"`
}

type plannedPublic struct {
	Index   uint32  `json:"index"`
	Path    string  `json:"path"`
	Action  string  `json:"action"`
	Method  *string `json:"method"` // expected at the target
	Bytes   uint64  `json:"bytes"`
	Warning *string `json:"warning"`
}

func showPreview(p *preflight.Preview) previewPublic {
	return previewPublic{ID: p.ID.String(), Operation: enumText(p.Operation), State: string(p.State), Summary: p.Summary, Warnings: texts(p.Warnings),
		Error: showArchiveError(p.Error), Started: p.JobNo != 0, JobID: orNoID(p.Job), CreatedAt: stamp(p.CreatedAt), FinishedAt: instant(p.FinishedAt)}
}

func showPlanned(f *preflight.PlannedFile) plannedPublic {
	return plannedPublic{f.Index, f.Path, enumText(f.Action), orNull(enumText(f.Method)), f.Logical, orNull(f.Warning)}
}
