// Package gateway serves people: signing in, keys, agents, rooms, and speaking in rooms from a browser (A.6, I). Section
// names in comments are those of the rooms protocol.
//
// A person is proved by the cookie switch_auth and nothing else. A request that changes something is refused when a
// browser says that another site made it. Bodies are JSON: snake_case, but camelCase for chats. Where the protocol names
// no answer it is the thing itself, or {"ok": true}.
package gateway
