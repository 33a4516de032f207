package roomclient

import (
	"crypto/tls"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/secret"
)

// What a client of revision 8 declares (B.4).
const (
	Revision = 8
	Accepts  = 1
	Artifact = "agent-runtime"
)

// Config says who connects where. It may be shared by many streams.
type Config struct {
	Endpoint string // base URL of the server, http or https; a path prefix is kept
	Token    secret.Text
	AgentID  uuid.UUID
	TLS      *tls.Config  // of sockets; nil: the system's roots
	HTTP     *http.Client // of everything else; nil: http.DefaultClient. It must not limit the time of a whole answer
	Header   http.Header  // added to every request
	Clock    clock.Clock  // of beats and of the pauses of Run; nil: the system's
	// Jitter picks a pause between two; nil: at random.
	Jitter func(low, high time.Duration) time.Duration
}

func (c *Config) base() string { return strings.TrimRight(c.Endpoint, "/") }

func (c *Config) client() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return http.DefaultClient
}

func (c *Config) clock() clock.Clock {
	if c.Clock != nil {
		return c.Clock
	}
	return clock.System()
}

func (c *Config) header() http.Header {
	h := http.Header{}
	maps.Copy(h, c.Header)
	if !c.Token.IsZero() {
		h.Set("Authorization", "Bearer "+c.Token.Reveal())
	}
	return h
}

// Open is what one stream asks for (B.1). Zero values are left out of the request.
type Open struct {
	ConnectionID       string
	Scope, Filter      string
	StartFrom          *int64 // nil: head
	Rooms              []string
	ExpectedGeneration *int64
	SpawnCapable       bool
	// Protocol and ProtocolAccepts are declared when Protocol is not 0; Artifact and Version go with them.
	Protocol, ProtocolAccepts int
	Artifact, Version         string
	// LastEventID is sent on SSE when not "" (G.1).
	LastEventID string
	// Extra parameters replace those above.
	Extra url.Values
}

// Current is an Open of a client of revision 8.
func Current(connectionID string) Open {
	return Open{ConnectionID: connectionID, Protocol: Revision, ProtocolAccepts: Accepts, Artifact: Artifact, Version: "0.8.0"}
}

// Query is the query string of the request.
func (o *Open) Query() string {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("connection_id", o.ConnectionID)
	set("scope", o.Scope)
	set("filter", o.Filter)
	if o.StartFrom != nil {
		q.Set("start_from", strconv.FormatInt(*o.StartFrom, 10))
	}
	set("rooms", strings.Join(o.Rooms, ","))
	if o.ExpectedGeneration != nil {
		q.Set("expected_generation", strconv.FormatInt(*o.ExpectedGeneration, 10))
	}
	if o.SpawnCapable {
		q.Set("spawn_capable", "true")
	}
	if o.Protocol != 0 {
		q.Set("protocol", strconv.Itoa(o.Protocol))
		q.Set("protocol_accepts", strconv.Itoa(o.ProtocolAccepts))
	}
	set("client", o.Artifact)
	set("client_version", o.Version)
	maps.Copy(q, o.Extra)
	return q.Encode()
}
