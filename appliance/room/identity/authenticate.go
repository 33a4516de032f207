package identity

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// maxCredential bounds what is hashed for a stranger. Ours have 43 characters.
const maxCredential = 512

// bearer takes the key out of an Authorization header. The scheme word and its one space are compared exactly (A.1).
func bearer(authorization string) (key string, err error) {
	key, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok || key == "" || len(key) > maxCredential {
		return "", fault.New(fault.Unauthenticated, "missing or malformed Authorization header: send Bearer and the key")
	}
	return key, nil
}

// AuthenticateAgent finds the agent that an Authorization header proves (A.1). Unauthenticated for everything else, a
// registration key included. What was found is kept for a few seconds, and dropped at once when the key or what is
// known of the agent changes. The agent is shared: treat it as read-only.
func (d *Identity) AuthenticateAgent(ctx context.Context, authorization string) (room.Agent, error) {
	key, err := bearer(authorization)
	if err != nil {
		return room.Agent{}, err
	}
	hash := secret.RoomKeyHash(key)
	a, version, ok := d.cache.get(hash)
	if ok {
		return a, nil
	}
	var stored string
	err = d.st.View(ctx, func(tx ReadTx) (err error) {
		a, stored, err = tx.RoomAgentByHash(hash)
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && !secret.Equal(stored, hash):
		return room.Agent{}, fault.New(fault.Unauthenticated, "unknown or revoked agent key")
	case err != nil:
		return room.Agent{}, err
	}
	d.cache.put(hash, a, version)
	return a, nil
}

// Registrant is whoever may register agents: what it registers belongs to Owner.
type Registrant struct {
	Owner     room.Person
	KeyID     uuid.UUID // uuid.Nil: the person itself, signed in
	Bootstrap bool
}

// RegistrantOf is a signed-in person who registers agents for itself.
func RegistrantOf(p room.Person) Registrant { return Registrant{Owner: p} }

// AuthenticateRegistrant finds who a registration or bootstrap key in an Authorization header speaks for (A.1).
// Unauthenticated when there is none, Forbidden when that person is disabled, Unavailable when it is the bootstrap
// person (A.3).
func (d *Identity) AuthenticateRegistrant(ctx context.Context, authorization string) (Registrant, error) {
	key, err := bearer(authorization)
	if err != nil {
		return Registrant{}, err
	}
	hash := secret.RoomKeyHash(key)
	var k Key
	var stored string
	var owner room.Person
	err = d.st.View(ctx, func(tx ReadTx) (err error) {
		if k, stored, err = tx.RoomKeyByHash(hash); err != nil {
			return err
		}
		owner, err = tx.RoomPersonByNo(k.PersonNo)
		return named(err, "owner")
	})
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && !secret.Equal(stored, hash):
		return Registrant{}, fault.New(fault.Unauthenticated, "unknown or revoked registration key")
	case err != nil:
		return Registrant{}, err
	}
	r := Registrant{Owner: owner, KeyID: k.ID, Bootstrap: k.Kind == KeyBootstrap}
	return r, checkOwner(r)
}

// checkOwner refuses an owner that cannot own new agents.
func checkOwner(r Registrant) error {
	switch {
	case r.Bootstrap && (r.Owner.Kind != room.PersonBootstrap || r.Owner.Role == room.RoleAdmin || r.Owner.DisabledAt != nil):
		return fault.New(fault.Unavailable, "the owner of agents that bootstrap keys register cannot be resolved")
	case r.Owner.DisabledAt != nil:
		return fault.New(fault.Forbidden, "the owner of this key is disabled")
	}
	return nil
}

// Bounds of the cache of agent keys (A.1): less than the liveness window, and what many agents need.
const (
	cacheAge = 5 * time.Second
	maxCache = 4096
)

// keyCache keeps agents by the hash of their key. Failures are never kept. Safe for concurrent use.
type keyCache struct {
	clock   clock.Clock
	mu      sync.Mutex
	byHash  map[string]cached
	version uint64 // raised by whatever drops entries
}

type cached struct {
	agent room.Agent
	until time.Time
}

func newKeyCache(c clock.Clock) *keyCache { return &keyCache{clock: c, byHash: map[string]cached{}} }

// get returns the agent of the hash, or the version that a put after reading the database has to state.
func (c *keyCache) get(hash string) (a room.Agent, version uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byHash[hash]
	if ok && c.clock.Now().Before(e.until) {
		return e.agent, c.version, true
	}
	delete(c.byHash, hash)
	return room.Agent{}, c.version, false
}

// put keeps what was read from the database after get gave the version, unless entries were dropped since: the read may
// be older than the change.
func (c *keyCache) put(hash string, a room.Agent, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version != c.version {
		return
	}
	if len(c.byHash) >= maxCache {
		c.evict()
	}
	c.byHash[hash] = cached{a, c.clock.Now().Add(cacheAge)}
}

// evict makes room: first what is over, else any.
func (c *keyCache) evict() {
	now := c.clock.Now()
	for h, e := range c.byHash {
		if !now.Before(e.until) {
			delete(c.byHash, h)
		}
	}
	for h := range c.byHash {
		if len(c.byHash) < maxCache {
			return
		}
		delete(c.byHash, h)
	}
}

// drop forgets an agent.
func (c *keyCache) drop(agentNo int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	for h, e := range c.byHash {
		if e.agent.No == agentNo {
			delete(c.byHash, h)
		}
	}
}

// clear forgets every agent.
func (c *keyCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	clear(c.byHash)
}
