package api

import (
	"encoding/json"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/job"
)

type peerPublic struct {
	DaemonID string `json:"daemon_id"`
	Name     string `json:"name"`
	Online   bool   `json:"online"`
}

func showPeer(p *job.Peer) *peerPublic {
	if p.ID == uuid.Nil {
		return nil
	}
	return &peerPublic{p.ID.String(), p.Name, p.Online}
}

type waitPublic struct {
	Reason    string `json:"reason"`
	Detail    string `json:"detail"`
	ReturnsTo string `json:"returns_to"`
	RetryAt   *stamp `json:"retry_at"`
}

// progressPublic is how far a job and its active step are. Byte counts are null while the step does not know them.
type progressPublic struct {
	Fraction        float64 `json:"fraction"` // of the step
	OverallFraction float64 `json:"overall_fraction"`
	BytesTotal      *uint64 `json:"bytes_total"`
	BytesDone       *uint64 `json:"bytes_done"`
	AllocatedTotal  *uint64 `json:"allocated_total"`
	AllocatedDone   *uint64 `json:"allocated_done"`
	FilesTotal      uint32  `json:"files_total"`
	FilesDone       uint32  `json:"files_done"`
	BytesPerSecond  uint64  `json:"bytes_per_second"`
	MovedAt         *stamp  `json:"moved_at"` // when a byte or file counter moved last
}

func showProgress(j *job.Job) progressPublic {
	out := progressPublic{OverallFraction: float64(j.Permille) / 1000, MovedAt: instant(j.MovedAt)}
	p := &pb.Progress{}
	if len(j.Progress) == 0 || proto.Unmarshal(j.Progress, p) != nil {
		return out
	}
	if int64(archive.OverallPermille(j.Operation, j.Position, p.GetFractionComplete())) != int64(j.Permille) {
		return out // it is the end of the step before: the active one has told nothing yet
	}
	out.Fraction = p.GetFractionComplete()
	out.FilesTotal, out.FilesDone, out.BytesPerSecond = p.GetFilesTotal(), p.GetFilesDone(), p.GetBytesPerSecond()
	if b := p.GetBytes(); b.GetKnown() {
		total, done, allocatedTotal, allocatedDone := b.GetLogicalTotal(), b.GetLogicalDone(), b.GetAllocatedTotal(), b.GetAllocatedDone()
		out.BytesTotal, out.BytesDone, out.AllocatedTotal, out.AllocatedDone = &total, &done, &allocatedTotal, &allocatedDone
	}
	return out
}

type jobPublic struct {
	ID         string         `json:"id"`
	Operation  string         `json:"operation"`
	Title      string         `json:"title"`
	State      string         `json:"state"`
	Waiting    *waitPublic    `json:"waiting"` // null: not waiting
	Outcome    *string        `json:"outcome"` // of one that is being wound down
	Source     *peerPublic    `json:"source"`
	Target     *peerPublic    `json:"target"`
	ResourceID string         `json:"resource_id"`
	RouteID    *string        `json:"route_id"`
	ParentID   *string        `json:"parent_id"`
	EvictAfter bool           `json:"evict_after"`
	Step       *string        `json:"step"` // the active one
	StepNumber int            `json:"step_number"`
	Steps      int            `json:"steps"`
	Attempt    int            `json:"attempt"`
	Failures   int            `json:"failures"`
	Allowance  int            `json:"allowance"`
	Committed  bool           `json:"committed"`
	Progress   progressPublic `json:"progress"`
	Error      *archiveError  `json:"error"`
	Revision   int64          `json:"revision"`
	Sequence   int64          `json:"sequence"`
	// Foreign: control did not know the job until a daemon reported it.
	Foreign     bool   `json:"foreign"`
	RetainUntil *stamp `json:"retain_until"` // EVICT: earliest time that the trash is emptied
	CreatedBy   string `json:"created_by"`
	CreatedAt   stamp  `json:"created_at"`
	StartedAt   *stamp `json:"started_at"`
	EndedAt     *stamp `json:"ended_at"`
}

func showJob(l *job.Listed) jobPublic {
	j := &l.Job
	out := jobPublic{ID: j.ID.String(), Operation: enumText(j.Operation), Title: j.Title, State: enumText(j.State), Source: showPeer(&l.Source),
		Target: showPeer(&l.Target), ParentID: orNoID(l.Parent), Step: orNull(enumText(l.Step)), StepNumber: min(j.Position+1, l.Steps),
		Steps: l.Steps, Attempt: j.Attempt, Failures: j.Failures, Allowance: j.Allowance, Committed: j.Committed, Progress: showProgress(j),
		Error: showStoredError(j.Error), Revision: j.Revision, Sequence: j.Sequence, Foreign: j.Placeholder,
		RetainUntil: instant(j.RetainUntil), CreatedBy: j.CreatedBy, CreatedAt: stamp(j.CreatedAt), StartedAt: instant(j.StartedAt),
		EndedAt: instant(j.EndedAt)}
	switch j.State {
	case pb.JobState_JOB_STATE_WAITING:
		out.Waiting = &waitPublic{enumText(j.Wait), j.WaitDetail, enumText(j.Kept), instant(j.RetryAt)}
	case pb.JobState_JOB_STATE_CANCELLING:
		out.Outcome = orNull(enumText(j.Outcome))
	}
	req := j.Asked()
	out.ResourceID, out.RouteID, out.EvictAfter = req.ResourceID, orNoID(req.Route), req.EvictAfter
	return out
}

type participantPublic struct {
	Role              string `json:"role"`
	DaemonID          string `json:"daemon_id"`
	Daemon            string `json:"daemon"`
	Online            bool   `json:"online"`
	State             string `json:"state"` // of the daemon, as control knows it
	Revision          int64  `json:"revision"`
	Sequence          int64  `json:"sequence"`
	ConfirmedRevision int64  `json:"confirmed_revision"`
	ConfirmedSequence int64  `json:"confirmed_sequence"`
	Committed         bool   `json:"committed"`
	CommitSHA256      string `json:"commit_evidence_sha256"`
	Assigned          bool   `json:"assigned"`
	WoundDown         bool   `json:"wound_down"`
	Closed            bool   `json:"closed"`
	Reported          any    `json:"reported"` // cursor that the daemon named last, or null
	ReportedAt        *stamp `json:"reported_at"`
}

func showParticipant(s *job.Side) participantPublic {
	out := participantPublic{Role: enumText(s.Role), DaemonID: s.Peer.ID.String(), Daemon: s.Peer.Name, Online: s.Peer.Online,
		State: enumText(s.State), Revision: s.Revision, Sequence: s.Sequence, ConfirmedRevision: s.ConfirmedRevision,
		ConfirmedSequence: s.ConfirmedSequence, Committed: s.Committed, CommitSHA256: s.CommitDigest, Assigned: s.Assigned,
		WoundDown: s.WoundDown, Closed: s.Closed, ReportedAt: instant(s.ReportedAt)}
	if s.Reported != nil {
		out.Reported = showMessage(s.Reported)
	}
	return out
}

type stepPublic struct {
	Step         string  `json:"step"`
	Weight       uint32  `json:"weight"` // ‰ of the job
	State        string  `json:"state"`  // done, active or pending
	Role         string  `json:"role"`
	Daemon       *string `json:"daemon"`
	Attempts     int     `json:"attempts"`
	Evidence     any     `json:"evidence"` // null until the step is done
	EvidenceSHA  *string `json:"evidence_sha256"`
	EvidenceFrom *stamp  `json:"evidence_at"`
}

func showStep(s *job.Step) stepPublic {
	out := stepPublic{Step: enumText(s.Step), Weight: s.Weight, State: string(s.State), Role: enumText(s.Role), Daemon: orNull(s.Daemon),
		Attempts: s.Attempts}
	if s.Evidence != nil {
		out.Evidence = showMessage(s.Evidence.Message)
		out.EvidenceSHA, out.EvidenceFrom = orNull(s.Evidence.SHA256), instant(s.Evidence.At)
	}
	return out
}

type archiveDeliveryPublic struct {
	Attempt    uint32  `json:"attempt"`
	Generation int64   `json:"generation"`
	ClaimedAt  stamp   `json:"claimed_at"`
	SentAt     *stamp  `json:"sent_at"`
	AckedAt    *stamp  `json:"acked_at"`
	Outcome    string  `json:"outcome"`
	Reason     *string `json:"reason"`
}

func showArchiveDelivery(d *command.Delivery) archiveDeliveryPublic {
	return archiveDeliveryPublic{d.Attempt, d.Generation, stamp(d.ClaimedAt), instant(d.SentAt), instant(d.AckedAt), string(d.Outcome),
		orNull(d.Reason)}
}

type archiveCommandPublic struct {
	ID          string                  `json:"id"`
	Kind        string                  `json:"kind"`
	Step        *string                 `json:"step"`
	StepAttempt uint32                  `json:"step_attempt"`
	DaemonID    string                  `json:"daemon_id"`
	Daemon      string                  `json:"daemon"` // its name
	State       string                  `json:"state"`
	Lease       string                  `json:"lease"`
	SHA256      string                  `json:"payload_sha256"`
	Attempts    uint32                  `json:"attempts"`
	Allowance   uint32                  `json:"allowance"`
	Held        *string                 `json:"held"` // why it is not sent now
	Error       *archiveError           `json:"error"`
	IssuedAt    stamp                   `json:"issued_at"`
	FirstSentAt *stamp                  `json:"first_sent_at"`
	LastSentAt  *stamp                  `json:"last_sent_at"`
	AckedAt     *stamp                  `json:"acked_at"`
	Deliveries  []archiveDeliveryPublic `json:"deliveries"`
}

// showCommands shows every command of a job with its attempts, oldest first.
func showCommands(d *job.Detail) []archiveCommandPublic {
	return each(d.Commands, func(s *job.Sent) archiveCommandPublic {
		name := ""
		for i := range d.Participants {
			if d.Participants[i].DaemonNo == s.Daemon.No {
				name = d.Participants[i].Peer.Name
			}
		}
		return showDaemonCommand(&s.Row, name, s.Deliveries, s.Held)
	})
}

func showDaemonCommand(r *command.Row, daemon string, deliveries []command.Delivery, held string) archiveCommandPublic {
	return archiveCommandPublic{ID: r.ID.String(), Kind: r.Kind.String(), Step: orNull(enumText(r.Step)), StepAttempt: r.StepAttempt,
		DaemonID: r.Daemon.ID.String(), Daemon: daemon, State: string(r.State), Lease: enumText(r.Lease), SHA256: r.SHA256, Attempts: r.Attempts,
		Allowance: r.Allowance, Held: orNull(held), Error: showArchiveError(r.Ack.GetError()), IssuedAt: stamp(r.IssuedAt),
		FirstSentAt: instant(r.FirstSentAt), LastSentAt: instant(r.LastSentAt), AckedAt: instant(r.AckedAt),
		Deliveries: each(deliveries, showArchiveDelivery)}
}

type reservationPublic struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

type archiveExplanation struct {
	Summary    string   `json:"summary"`
	Sentences  []string `json:"sentences"`
	WaitsFor   string   `json:"waits_for"`
	NextAction string   `json:"next_action"`
}

func showExplained(x *job.Explanation) archiveExplanation {
	return archiveExplanation{x.Summary, texts(x.Sentences), x.WaitsFor, x.NextAction}
}

// jobExplained is a job in plain words with the ledger of what its daemons were told.
type jobExplained struct {
	archiveExplanation
	Commands []archiveCommandPublic `json:"commands"`
}

type jobDetailPublic struct {
	jobPublic
	Definition   any                    `json:"definition"` // null until the job is assigned
	PreviewID    *string                `json:"preview_id"`
	Participants []participantPublic    `json:"participants"`
	StepList     []stepPublic           `json:"step_list"`
	Commands     []archiveCommandPublic `json:"commands"`
	Reservations []reservationPublic    `json:"reservations"`
	Alerts       []alertPublic          `json:"alerts"`
	Explanation  archiveExplanation     `json:"explanation"`
}

func showDetail(d *job.Detail) jobDetailPublic {
	out := jobDetailPublic{jobPublic: showJob(&d.Listed), PreviewID: orNoID(d.Preview), Participants: each(d.Participants, showParticipant),
		StepList: each(d.Steps, showStep), Commands: showCommands(d), Alerts: each(d.Alerts, showAlert),
		Explanation: showExplained(&d.Explanation)}
	if d.Definition != nil {
		out.Definition = showMessage(d.Definition)
	}
	out.Reservations = each(d.Reservations, func(r *job.Reservation) reservationPublic { return reservationPublic{r.Kind, r.Name} })
	return out
}

// entryPublic is one line of a job's story.
type entryPublic struct {
	Cursor    string          `json:"cursor"` // of the stream, behind this entry
	At        stamp           `json:"at"`
	Event     string          `json:"event"`
	State     string          `json:"state"` // of the job after it
	Daemon    *string         `json:"daemon"`
	CommandID *string         `json:"command_id"`
	Detail    json.RawMessage `json:"detail"`
}

func (a *API) showEntry(e *job.Entry) entryPublic {
	return entryPublic{a.streamCursor(e.No), stamp(e.At), e.Event, enumText(e.State), orNull(e.Daemon), orNoID(e.CommandID), raw(e.Detail)}
}

// ended tells whether nothing more happens to a job by itself or by a person.
func ended(s pb.JobState) bool {
	return s == pb.JobState_JOB_STATE_COMPLETED || s == pb.JobState_JOB_STATE_FAILED || s == pb.JobState_JOB_STATE_CANCELLED
}
