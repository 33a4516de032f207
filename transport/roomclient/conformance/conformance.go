package conformance

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// Agent is an agent that exists already.
type Agent struct {
	ID  uuid.UUID
	Key secret.Text
}

// Options say which server is asked, and how.
type Options struct {
	Endpoint string // base URL; a path prefix is kept
	// Key registers the two agents, which are deleted at the end. When it is zero, Agents names two that exist.
	Key    secret.Text
	Agents []Agent
	TLS    *tls.Config  // of sockets; nil: the system's roots
	HTTP   *http.Client // of everything else; nil: http.DefaultClient
	Clock  clock.Clock  // nil: the system's
	// Only are the numbers of the vectors to replay; none: all.
	Only []int
	// Timeout bounds one vector, beside the time that it has to let pass; 0: DefaultTimeout. It is the system's time.
	Timeout time.Duration
	// Pass lets time pass on Clock while the streams stay alive; nil waits. It is for clocks that are moved by hand.
	Pass func(ctx context.Context, d time.Duration, streams []*roomclient.Stream) error
	// Report is told every result as it comes; nil is told nothing.
	Report func(Result)
}

// DefaultTimeout bounds one vector.
const DefaultTimeout = 60 * time.Second

// Outcome is how a vector ended.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "FAIL"
	Skipped Outcome = "skipped"
)

// Result is what came of one vector.
type Result struct {
	Number  int     `json:"number"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Rule is the section that was broken, "" when the vector could not be brought to its end.
	Rule string `json:"rule,omitempty"`
	// Detail is what was seen, why it was skipped, or what was left out.
	Detail  string        `json:"detail,omitempty"`
	Seconds float64       `json:"seconds"`
	Took    time.Duration `json:"-"`
}

// Report is what came of a run.
type Report struct {
	Results []Result
	// Left says what could not be taken away again.
	Left []string
}

// Failures is how many vectors failed.
func (r *Report) Failures() (n int) {
	for _, v := range r.Results {
		if v.Outcome == Failed {
			n++
		}
	}
	return n
}

// Vector is one row of section M.
type Vector struct {
	Number int
	Name   string
	// Skip says why no client can replay it; "" when one can.
	Skip string
	wait time.Duration // what it lets pass at most
	run  func(*trial)
}

// Vectors are all of section M, in its order.
func Vectors() []Vector { return slices.Clone(vectors) }

// Numbers that are no vectors, of those given.
func unknown(only []int) (bad []int) {
	for _, n := range only {
		if n < 1 || n > len(vectors) {
			bad = append(bad, n)
		}
	}
	return bad
}

// Run replays the vectors. An error means that nothing could be replayed: the server does not answer, or the keys do not
// do. What was made is taken away again, also when ctx ends.
func Run(ctx context.Context, o Options) (Report, error) {
	if bad := unknown(o.Only); len(bad) > 0 {
		return Report{}, fmt.Errorf("there is no vector %d: they are numbered 1 to %d", bad[0], len(vectors))
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	r := &runner{opts: o, tag: tag()}
	var report Report
	err := r.setUp(ctx)
	if err == nil {
		for i := range vectors {
			if len(o.Only) > 0 && !slices.Contains(o.Only, vectors[i].Number) {
				continue
			}
			result := r.replay(ctx, &vectors[i])
			report.Results = append(report.Results, result)
			if o.Report != nil {
				o.Report(result)
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
				break
			}
		}
	}
	report.Left = r.cleanUp(context.WithoutCancel(ctx))
	return report, err
}

// tag keeps the names of one run apart from those of others.
func tag() string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
