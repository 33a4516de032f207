package registry

import (
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
	"signalbox/appliance/wake"
)

// Major is the protocol major that this control speaks, Minor the highest minor.
const (
	Major = 2
	Minor = 0
)

// Liveness are the settings that daemons are told at registration. Zero fields take the defaults of the protocol.
type Liveness struct {
	HeartbeatInterval    time.Duration // 15 s
	OfflineThreshold     time.Duration // 45 s
	StableReset          time.Duration // 60 s
	ReconnectInitial     time.Duration // 1 s
	ReconnectCap         time.Duration // 60 s
	CommandRetry         time.Duration // 15 s
	CommandAttempts      uint32        // 3
	RegistrationDeadline time.Duration // 10 s
}

func (l *Liveness) setDefaults() {
	orDefault(&l.HeartbeatInterval, 15*time.Second)
	orDefault(&l.OfflineThreshold, 45*time.Second)
	orDefault(&l.StableReset, 60*time.Second)
	orDefault(&l.ReconnectInitial, time.Second)
	orDefault(&l.ReconnectCap, 60*time.Second)
	orDefault(&l.CommandRetry, 15*time.Second)
	orDefault(&l.CommandAttempts, 3)
	orDefault(&l.RegistrationDeadline, 10*time.Second)
}

func orDefault[T comparable](p *T, d T) {
	var zero T
	if *p == zero {
		*p = d
	}
}

// Digest is the SHA-256 of a token: the only form in which tokens are kept.
type Digest [sha256.Size]byte

// DigestOf makes the digest of a token.
func DigestOf(token []byte) Digest { return sha256.Sum256(token) }

// Options of a Registry.
type Options struct {
	// Tokens are the digests of the tokens that are accepted: the current one and, during a rotation, former ones.
	Tokens []Digest
	// ServerID names this run of control, ServerEpoch its database.
	ServerID, ServerEpoch uuid.UUID
	Liveness              Liveness
	// Limits is what control offers; unset fields take the defaults of the protocol.
	Limits *pb.Limits
	// Capabilities are those that control is willing to use; nil: all it knows.
	Capabilities []string
	Minor        uint32 // highest minor spoken; the constant Minor unless a test says otherwise
	Clock        clock.Clock
	Hub          *wake.Hub // woken with archive.DaemonKey after changes of a daemon, archive.DaemonsKey after those of any daemon or alert
	Observer     Observer  // may be nil
}

// Hooks are called by the registry in its own transactions. An error rolls the transaction back.
type Hooks struct {
	// OnRegister is told of every registration, in its transaction, with the cursors that the daemon listed. It returns
	// control's own, at most the negotiated max_active_cursors.
	OnRegister func(tx Tx, link archive.Link, cursors []*pb.JobCursor, found Rollback) ([]*pb.JobCursor, error)
	// OnOffline is told, in order, in the transaction that marks a daemon offline.
	OnOffline []func(tx Tx, daemonNo int64) error
	// OnForget is told, in order, in the transaction that forgets a daemon.
	OnForget []func(tx Tx, daemonNo int64) error
}

// Observer counts. Its methods must not block.
type Observer interface {
	Registered(takeover bool)
	Refused(code pb.ErrorCode)
	MarkedOffline()
	// Failed is a background write of the registry that did not succeed and will be tried again.
	Failed(what string, err error)
}

type nobody struct{}

func (nobody) Registered(bool)      {}
func (nobody) Refused(pb.ErrorCode) {}
func (nobody) MarkedOffline()       {}
func (nobody) Failed(string, error) {}

// Why is the reason for which the registry ends a socket.
type Why int

// The reasons.
const (
	// Replaced: a newer registration of the daemon was committed.
	Replaced Why = iota + 1
	// Lapsed: no heartbeat for the offline threshold.
	Lapsed
)

// Sender is the registry's hold on a socket. Close must not block.
type Sender interface {
	Close(why Why)
}

// Store is where daemons are kept.
type Store = archive.Store[Tx, ReadTx]
