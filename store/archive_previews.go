package store

import (
	"strings"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/preflight"
)

var (
	_ preflight.Tx     = (*Tx)(nil)
	_ preflight.ReadTx = (*ReadTx)(nil)
)

// PreflightPeer implements preflight.ReadTx.
func (r *reader) PreflightPeer(id uuid.UUID, jobNo int64) (p preflight.Peer, ok bool, err error) {
	var limits []byte
	err = r.QueryRow(`SELECT daemon_no, id, name, role, online, paused, limits,
			(SELECT count(*) FROM archive_participants a WHERE a.daemon_no = d.daemon_no AND a.closed = 0 AND a.job_no <> ?)
		FROM daemons d WHERE id = ? AND forgotten_at IS NULL`, jobNo, id).
		Scan(&p.Ref.No, &p.Ref.ID, &p.Name, &p.Role, &p.Online, &p.Paused, &limits, &p.ActiveJobs)
	if ok, err = oneRow(err); !ok {
		return p, false, err
	}
	p.Limits = &pb.Limits{}
	if _, err := pbRead(limits, p.Limits); err != nil {
		return p, false, err
	}
	p.Capabilities, err = r.daemonCapabilities(p.Ref.No)
	return p, err == nil, err
}

// reservedWords say what a reserved name is.
var reservedWords = map[string]string{"infohash_v1": "the same torrent", "infohash_v2": "the same torrent", "tree": "the same content",
	"resource": "the same resource", "destination": "the same destination"}

// PreflightHolder implements preflight.ReadTx.
func (r *reader) PreflightHolder(names []preflight.Name, jobNo int64) (h preflight.Holder, ok bool, err error) {
	for _, n := range names {
		if n.Name == "" {
			continue
		}
		err := r.QueryRow(`SELECT j.id FROM archive_reservations v JOIN archive_jobs j ON j.job_no = v.job_no
			WHERE v.daemon_no = ? AND v.kind = ? AND v.name = ? AND v.released_at IS NULL AND v.job_no <> ?`, n.DaemonNo, n.Kind, n.Name,
			jobNo).Scan(&h.Job)
		if found, err := oneRow(err); err != nil || found {
			h.What = reservedWords[n.Kind]
			return h, found, err
		}
	}
	return h, false, nil
}

// PreflightParent implements preflight.ReadTx.
func (r *reader) PreflightParent(id uuid.UUID) (*pb.JobDefinition, *pb.CommitEvidence, bool, error) {
	var definition, evidence []byte
	err := r.QueryRow(`SELECT j.definition, e.evidence FROM archive_jobs j
			JOIN archive_evidence e ON e.job_no = j.job_no AND e.step = ?
		WHERE j.id = ? AND j.state = ? AND j.operation IN (1, 2) AND j.definition IS NOT NULL`, int32(pb.JobStep_JOB_STEP_COMMIT), id,
		int32(pb.JobState_JOB_STATE_COMPLETED)).Scan(&definition, &evidence)
	ok, err := oneRow(err)
	if !ok {
		return nil, nil, false, err
	}
	def, step := &pb.JobDefinition{}, &pb.StepEvidence{}
	if _, err := pbRead(definition, def); err != nil {
		return nil, nil, false, err
	}
	if _, err := pbRead(evidence, step); err != nil {
		return nil, nil, false, err
	}
	return def, step.GetCommit(), true, nil
}

const previewSelect = `SELECT preview_no, id, operation, request, state, created_by, coalesce(source_content_revision, ''),
		coalesce(target_content_revision, ''), draft, summary, warnings, error, coalesce(job_no, 0),
		(SELECT j.id FROM archive_jobs j WHERE j.job_no = archive_previews.job_no), created_at, finished_at
	FROM archive_previews WHERE `

func scanPreview(scan func(...any) error) (p preflight.Preview, err error) {
	var (
		draft, detail     []byte
		summary, warnings string
		job               uuid.NullUUID
	)
	if err := scan(&p.No, &p.ID, &p.Operation, &p.Request, &p.State, &p.By, &p.SourceRev, &p.TargetRev, &draft, &summary, &warnings,
		&detail, &p.JobNo, &job, &p.CreatedAt, &p.FinishedAt); err != nil {
		return p, err
	}
	if err := fromJSON(summary, &p.Summary); err != nil {
		return p, err
	}
	if err := fromJSON(warnings, &p.Warnings); err != nil {
		return p, err
	}
	if draft != nil {
		p.Draft = &pb.JobDefinition{}
		if _, err := pbRead(draft, p.Draft); err != nil {
			return p, err
		}
	}
	p.Job = job.UUID
	p.Error, err = pbDetail(detail)
	return p, err
}

func (r *reader) previews(where string, args ...any) ([]preflight.Preview, error) {
	rows, err := r.Query(previewSelect+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []preflight.Preview
	for rows.Next() {
		p, err := scanPreview(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

func firstPreview(list []preflight.Preview, err error) (preflight.Preview, bool, error) {
	if err != nil || len(list) == 0 {
		return preflight.Preview{}, false, err
	}
	return list[0], true, nil
}

// PreviewByNo implements preflight.ReadTx.
func (r *reader) PreviewByNo(no int64) (preflight.Preview, bool, error) {
	return firstPreview(r.previews(`preview_no = ?`, no))
}

// PreviewByID implements preflight.ReadTx.
func (r *reader) PreviewByID(id uuid.UUID) (preflight.Preview, bool, error) {
	return firstPreview(r.previews(`id = ?`, id))
}

// Previews implements preflight.ReadTx.
func (r *reader) Previews(before int64, limit int) ([]preflight.Preview, error) {
	return r.previews(`(?1 = 0 OR preview_no < ?1) ORDER BY preview_no DESC LIMIT ?2`, before, limit)
}

// PreviewsRunning implements preflight.ReadTx.
func (r *reader) PreviewsRunning() ([]preflight.Preview, error) {
	return r.previews(`state = 'running' ORDER BY preview_no`)
}

// PreviewFiles implements preflight.ReadTx.
func (r *reader) PreviewFiles(previewNo, after int64, limit int) ([]preflight.PlannedFile, error) {
	rows, err := r.Query(`SELECT file_index, path, action, method, logical_bytes, warning FROM archive_preview_files
		WHERE preview_no = ? AND file_index > ? ORDER BY file_index LIMIT ?`, previewNo, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []preflight.PlannedFile
	for rows.Next() {
		var (
			f       preflight.PlannedFile
			logical int64
		)
		if err := rows.Scan(&f.Index, &f.Path, &f.Action, &f.Method, &logical, &f.Warning); err != nil {
			return nil, err
		}
		f.Logical = uint64(logical)
		out = append(out, f)
	}
	return out, rows.Err()
}

// PreviewInsert implements preflight.Tx.
func (tx *Tx) PreviewInsert(p *preflight.Preview) error {
	summary, err := jsonText(p.Summary)
	if err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO archive_previews (id, operation, request, state, created_by, summary, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, p.ID, int32(p.Operation), p.Request, string(p.State), p.By, summary, p.CreatedAt)
	p.No = res.LastInsertID()
	return err
}

// PreviewUpdate implements preflight.Tx.
func (tx *Tx) PreviewUpdate(p *preflight.Preview) error {
	draft, err := pbBytes(p.Draft)
	if err != nil {
		return err
	}
	detail, err := pbBytes(p.Error)
	if err != nil {
		return err
	}
	summary, err := jsonText(p.Summary)
	if err != nil {
		return err
	}
	if p.Warnings == nil {
		p.Warnings = []string{}
	}
	warnings, err := jsonText(p.Warnings)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE archive_previews SET request = ?, state = ?, source_content_revision = ?, target_content_revision = ?,
		draft = ?, summary = ?, warnings = ?, error = ?, finished_at = ? WHERE preview_no = ?`, p.Request, string(p.State),
		stringOrNull(p.SourceRev), stringOrNull(p.TargetRev), draft, summary, warnings, detail, p.FinishedAt, p.No)
	return err
}

// previewRows inserts n planned files; 8 a statement save half of the time.
func previewRows(n int) string {
	return `INSERT INTO archive_preview_files (preview_no, file_index, path, action, method, logical_bytes, warning)
		VALUES (?,?,?,?,?,?,?)` + strings.Repeat(`,(?,?,?,?,?,?,?)`, n-1)
}

var previewInserts = map[int]string{1: previewRows(1), 8: previewRows(8)}

// PreviewInsertFiles implements preflight.Tx.
func (tx *Tx) PreviewInsertFiles(previewNo int64, files []preflight.PlannedFile) error {
	args := make([]any, 0, 7*8)
	for len(files) > 0 {
		n := 8
		if len(files) < n {
			n = 1
		}
		args = args[:0]
		for _, f := range files[:n] {
			args = append(args, previewNo, int64(f.Index), f.Path, int32(f.Action), int32(f.Method), int64(f.Logical), f.Warning)
		}
		if _, err := tx.Exec(previewInserts[n], args...); err != nil {
			return err
		}
		tx.rows += n - 1
		files = files[n:]
	}
	return nil
}

// PreviewDropFiles implements preflight.Tx.
func (tx *Tx) PreviewDropFiles(previewNo int64) error {
	_, err := tx.Exec(`DELETE FROM archive_preview_files WHERE preview_no = ?`, previewNo)
	return err
}

// PreviewPrune implements preflight.Tx.
func (tx *Tx) PreviewPrune(before time.Time, limit int) (int64, error) {
	res, err := tx.Exec(`DELETE FROM archive_previews WHERE preview_no IN (SELECT preview_no FROM archive_previews
		WHERE job_no IS NULL AND state <> 'running' AND created_at < ? ORDER BY preview_no LIMIT ?)`, before, limit)
	return res.RowsAffected(), err
}
