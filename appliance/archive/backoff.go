package archive

import "time"

// Liveness and delivery defaults (daemon protocol 2.5). A daemon uses the values it receives.
const (
	HeartbeatInterval    = 15 * time.Second
	OfflineThreshold     = 45 * time.Second
	StableReset          = 60 * time.Second
	ReconnectInitial     = 1 * time.Second
	ReconnectCap         = 60 * time.Second
	CommandRetry         = 15 * time.Second
	CommandAttempts      = 3
	RegistrationDeadline = 10 * time.Second
)

// Backoff computes the delays between attempts (daemon protocol 2.5).
type Backoff struct {
	Initial time.Duration
	Cap     time.Duration
}

// Delay returns min(Cap, Initial·2ⁿ) times a factor in [0.5, 1.0] that random, in [0,1), chooses. n counts from 0.
func (b Backoff) Delay(n int, random float64) time.Duration {
	d := b.Initial
	for i := 0; i < n && d < b.Cap; i++ {
		if d > b.Cap/2 {
			d = b.Cap
			break
		}
		d *= 2
	}
	d = max(min(d, b.Cap), 0)
	return time.Duration(float64(d) * (0.5 + 0.5*Clamp(random)))
}
