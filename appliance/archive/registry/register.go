package registry

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// Request is a registration whose fields were validated. The token is no longer part of the message.
type Request struct {
	Register *pb.RegisterRequest
	SentAt   time.Time // of the envelope; zero: unknown
	Remote   string    // address of the peer, for display
}

// Registration is an accepted one: committed.
type Registration struct {
	Link     archive.Link
	Response *pb.RegisterResponse
	Found    Rollback
	Takeover bool // another connection owned the daemon
}

// Refusal is a registration that changed nothing. It holds nothing of the token.
type Refusal struct {
	Detail     *pb.ErrorDetail
	RetryAfter time.Duration // lower bound of the next try; 0: none
	Err        error         // cause, for the log; nil when the peer is to blame
}

// Rejected is the message that tells the peer.
func (f *Refusal) Rejected(minor uint32) *pb.RegisterRejected {
	m := &pb.RegisterRejected{Error: f.Detail, SupportedMajor: Major, SupportedMinorMax: minor}
	if f.RetryAfter > 0 {
		m.RetryAfter = durationpb.New(f.RetryAfter)
	}
	return m
}

func (r *Registry) refuse(code pb.ErrorCode, format string, args ...any) *Refusal {
	r.opts.Observer.Refused(code)
	return &Refusal{Detail: &pb.ErrorDetail{Code: code, Message: fmt.Sprintf(format, args...)}}
}

// retryUnavailable is when a peer comes back that we could not serve for a reason of ours.
const retryUnavailable = 5 * time.Second

func (r *Registry) unavailable(err error) *Refusal {
	f := r.refuse(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "control cannot register daemons now")
	f.Detail.Retryable, f.RetryAfter, f.Err = true, min(retryUnavailable, r.opts.Liveness.ReconnectCap), err
	f.Detail.RetryAfter = durationpb.New(f.RetryAfter)
	return f
}

// Authentic tells whether the token is one that is accepted. The time it takes depends on neither (daemon protocol 2.5).
func (r *Registry) Authentic(token []byte) bool {
	given := DigestOf(token)
	ok := 0
	for i := range r.opts.Tokens {
		ok |= subtle.ConstantTimeCompare(given[:], r.opts.Tokens[i][:])
	}
	return ok == 1
}

// defaultCursors is max_active_cursors before the first negotiation.
const defaultCursors = 256

// Register makes the request the daemon's current connection: it issues the next generation in one transaction, together
// with whatever the hook of registrations writes, and only then closes the socket of the one before. It waits for the
// database under ctx. Exactly one result is not nil.
func (r *Registry) Register(ctx context.Context, q Request, token []byte) (*Registration, *Refusal) {
	req := q.Register
	if v := req.GetProtocolVersion(); v.GetMajor() != Major {
		return nil, r.refuse(pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH, "control speaks major version %d, the daemon %d", Major,
			v.GetMajor())
	}
	if !r.Authentic(token) {
		return nil, r.refuse(pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED, "the token is not the one this control accepts")
	}
	in, err := parse(req)
	if err != nil {
		return nil, r.refuse(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "%s", fault.Message(err))
	}
	var (
		reg     *Registration
		refusal *Refusal
	)
	err = r.store.Update(ctx, "archive.register", func(tx Tx) error {
		reg, refusal = nil, nil
		d, found, err := r.admit(tx, q, in)
		if err != nil {
			return err
		}
		link := r.link(&d)
		cursors, err := r.tellRegistered(tx, link, req.ActiveJobs, found)
		if err != nil {
			return err
		}
		reg = &Registration{Link: link, Found: found, Response: r.response(&d, link, tx.Now(), cursors)}
		// Also when nobody knows whether the generation was issued: whoever held the one before must not go on as if nothing
		// had happened, and if it was, nobody else would mark the daemon offline.
		made := reg
		tx.Hint(func() { made.Takeover = r.entered(&d, link) })
		return nil
	})
	switch {
	case err == nil:
		r.opts.Observer.Registered(reg.Takeover)
		return reg, nil
	case fault.Is(err, fault.TooLarge):
		return nil, r.refuse(pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "%s", fault.Message(err))
	}
	refusal = r.unavailable(err)
	return nil, refusal
}

// parsed is what of a request has to be read from text.
type parsed struct {
	id, instance, epoch uuid.UUID
}

func parse(req *pb.RegisterRequest) (in parsed, err error) {
	for _, f := range []struct {
		name string
		text string
		into *uuid.UUID
	}{{"client_id", req.ClientId, &in.id}, {"connection_instance_id", req.ConnectionInstanceId, &in.instance},
		{"state_epoch", req.StateEpoch, &in.epoch}} {
		if *f.into, err = uuid.Parse(f.text); err != nil || *f.into == uuid.Nil {
			return in, fault.Field(f.name, "must be a UUID")
		}
	}
	return in, nil
}

// admit writes the daemon's row: new, or with the next generation.
func (r *Registry) admit(tx Tx, q Request, in parsed) (d Daemon, found Rollback, err error) {
	req, now := q.Register, tx.Now()
	d, err = tx.RegistryDaemonByID(in.id)
	isNew := fault.Is(err, fault.NotFound)
	if err != nil && !isNew {
		return d, found, err
	}
	most := uint32(defaultCursors)
	if !isNew {
		most = d.Limits.GetMaxActiveCursors()
	}
	if uint64(len(req.ActiveJobs)) > uint64(most) {
		return d, found, fault.New(fault.TooLarge, "active_jobs: at most %d were negotiated, got %d", most, len(req.ActiveJobs))
	}
	last := int64(min(req.LastGeneration, maxGeneration))
	copies := decide.Rollback(decide.Registration{LastGeneration: uint64(last), Issued: uint64(d.Generation), Used: uint64(d.GenerationUsed),
		Known: !isNew, SameEpoch: d.Epoch == in.epoch})
	found.Control, found.Daemon = copies.Control, copies.Daemon
	change := unchanged
	if isNew {
		d = Daemon{ID: in.id, Epoch: in.epoch, EpochSince: now, FirstEpoch: in.epoch, CreatedAt: now}
	} else if change = judgeEpoch(&d, in.epoch, now, r.opts.Liveness.StableReset); change != unchanged {
		found.NewEpoch = true
		d.PreviousEpoch, d.Epoch, d.EpochSince = d.Epoch, in.epoch, now
		d.GenerationUsed = 0
		d.Paused = d.Paused || change == alternating
	}
	d.Generation = int64(copies.Next)
	d.GenerationUsed = max(d.GenerationUsed, last)
	r.describe(&d, q, in, now)
	if isNew {
		err = tx.RegistryInsert(&d)
	} else {
		err = tx.RegistryUpdate(&d)
	}
	if err != nil {
		return d, found, err
	}
	return d, found, r.alert(tx, &d, change, found, last)
}

// maxGeneration keeps generations, which only ever grow, within an int64 whatever a daemon claims.
const maxGeneration = 1 << 62

// describe takes over what the request says of the daemon and of this connection.
func (r *Registry) describe(d *Daemon, q Request, in parsed, now time.Time) {
	req := q.Register
	d.Name, d.Role, d.Software, d.Remote = req.ClientName, req.Role, req.Software, q.Remote
	d.Major, d.Minor = req.ProtocolVersion.GetMajor(), req.ProtocolVersion.GetMinor()
	d.Negotiated = min(r.opts.Minor, d.Minor)
	d.Limits = lower(r.opts.Limits, limitsOf(req.OfferedLimits))
	d.Capabilities = slices.Compact(slices.Sorted(slices.Values(req.Capabilities)))
	d.Instance = in.instance
	d.Online, d.OfflineAt, d.ForgottenAt = true, time.Time{}, time.Time{}
	d.RegisteredAt, d.LastSeenAt = now, now
	if !q.SentAt.IsZero() {
		d.ClockSkew = skew(q.SentAt, now)
	}
}

// skew is how far the daemon's clock is ahead, in whole milliseconds. It is shown and decides nothing.
func skew(sent, now time.Time) time.Duration { return sent.Sub(now).Truncate(time.Millisecond) }

// epochChange is what the epoch of a registration says.
type epochChange int

const (
	unchanged   epochChange = iota
	replaced                // another database than last time
	alternating             // two databases answer to one id
)

// judgeEpoch tells a database that was replaced once from two that take turns: an epoch that was there before comes back,
// or the epoch changes again before it was stable (daemon protocol 2.5).
func judgeEpoch(d *Daemon, epoch uuid.UUID, now time.Time, stable time.Duration) epochChange {
	age := now.Sub(d.EpochSince) // negative: the clock was set back
	switch {
	case epoch == d.Epoch:
		return unchanged
	case epoch == d.PreviousEpoch, epoch == d.FirstEpoch, d.PreviousEpoch != uuid.Nil && age >= 0 && age < stable:
		return alternating
	default:
		return replaced
	}
}

// alert tells operators what the registration shows.
func (r *Registry) alert(tx Tx, d *Daemon, change epochChange, found Rollback, last int64) error {
	var errs []error
	if change == replaced {
		errs = append(errs, r.RaiseAlert(tx, archive.AlertEpochChanged, d.No, 0, fmt.Sprintf(
			"%s came with another state database (epoch %s, before %s)", d.Name, d.Epoch, d.PreviousEpoch)))
	}
	if change == alternating {
		errs = append(errs, r.RaiseAlert(tx, archive.AlertDuplicateDaemon, d.No, 0, fmt.Sprintf(
			"two state databases answer to the id of %s (epochs %s and %s); it gets no new assignments until one stays for %s",
			d.Name, d.Epoch, d.PreviousEpoch, r.opts.Liveness.StableReset)))
	}
	if found.Daemon {
		errs = append(errs, r.RaiseAlert(tx, archive.AlertDaemonRolledBack, d.No, 0, fmt.Sprintf(
			"%s runs an old copy of its state database: it remembers generation %d", d.Name, last)))
	}
	if found.Control {
		errs = append(errs, r.RaiseAlert(tx, archive.AlertControlRolledBack, d.No, 0, fmt.Sprintf(
			"%s remembers generation %d, which this database never issued: this database is an old copy", d.Name, last)))
	}
	errs = append(errs, r.alertSkew(tx, d))
	return errors.Join(errs...)
}

// SkewShown is the difference of clocks from which operators are told. Nothing else depends on it.
const SkewShown = 5 * time.Minute

// alertSkew tells operators of a clock that is far off (daemon protocol 9, row 8), and that it no longer is.
func (r *Registry) alertSkew(tx Tx, d *Daemon) error {
	if d.ClockSkew.Abs() < SkewShown {
		return r.ClearAlert(tx, archive.AlertClockSkew, d.No, 0)
	}
	ahead := "ahead of"
	if d.ClockSkew < 0 {
		ahead = "behind"
	}
	return r.RaiseAlert(tx, archive.AlertClockSkew, d.No, 0, fmt.Sprintf("the clock of %s is %s %s that of control; times it reports are off",
		d.Name, d.ClockSkew.Abs().Round(time.Second), ahead))
}

func (r *Registry) tellRegistered(tx Tx, link archive.Link, cursors []*pb.JobCursor, found Rollback) ([]*pb.JobCursor, error) {
	if r.hooks.OnRegister == nil {
		return nil, nil
	}
	own, err := r.hooks.OnRegister(tx, link, cursors, found)
	if most := int(link.Limits.MaxActiveCursors); len(own) > most {
		own = own[:most]
	}
	return own, err
}

func (r *Registry) response(d *Daemon, link archive.Link, now time.Time, cursors []*pb.JobCursor) *pb.RegisterResponse {
	l := r.opts.Liveness
	return &pb.RegisterResponse{
		NegotiatedVersion:    &pb.ProtocolVersion{Major: Major, Minor: d.Negotiated},
		ConnectionGeneration: uint64(d.Generation),
		ServerId:             r.opts.ServerID.String(),
		ServerEpoch:          r.opts.ServerEpoch.String(),
		ServerTime:           timestamppb.New(now),
		Liveness: &pb.LivenessSettings{
			HeartbeatInterval: durationpb.New(l.HeartbeatInterval), OfflineThreshold: durationpb.New(l.OfflineThreshold),
			StableReset: durationpb.New(l.StableReset), ReconnectInitial: durationpb.New(l.ReconnectInitial),
			ReconnectCap: durationpb.New(l.ReconnectCap), CommandRetry: durationpb.New(l.CommandRetry),
			CommandAttempts: l.CommandAttempts, RegistrationDeadline: durationpb.New(l.RegistrationDeadline)},
		Limits:         link.Limits,
		Capabilities:   link.Capabilities,
		ControlCursors: cursors,
	}
}

// entered makes a committed registration the live one and ends the socket of the one before. It runs in commit order, so
// the newest wins.
func (r *Registry) entered(d *Daemon, link archive.Link) (takeover bool) {
	now := r.clock.Now()
	r.mu.Lock()
	old := r.live[d.No]
	if old != nil && old.link.Generation >= link.Generation {
		r.mu.Unlock()
		return false
	}
	r.live[d.No] = &member{link: link, due: now.Add(r.opts.Liveness.OfflineThreshold)}
	delete(r.retry, d.No)
	if d.Paused {
		if p, ok := r.stable[d.No]; !ok || p.epoch != d.Epoch {
			r.stable[d.No] = pause{d.Epoch, now.Add(r.opts.Liveness.StableReset)}
		}
	}
	r.mu.Unlock()
	takeover = old != nil && old.sender != nil
	if takeover {
		old.sender.Close(Replaced)
	}
	r.rearm()
	r.changed(d.No)
	return takeover
}
