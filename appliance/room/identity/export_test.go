package identity

// CheapHashes makes passwords cost next to nothing, so that tests are about something else.
func CheapHashes(d *Identity) {
	d.hasher.params = params{memory: 64, time: 1, threads: 1, salt: 16, key: 32}
}

// CurrentHashes is the cost of a real Identity.
func CurrentHashes(d *Identity) { d.hasher.params = today }

// Cached tells how many agents the cache of keys holds.
func Cached(d *Identity) int {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	return len(d.cache.byHash)
}
