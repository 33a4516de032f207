// Package room holds the types and the pure rules of the rooms plane: agents, people, rooms, what is said in them, and who
// is told. Section names in comments are those of the rooms protocol.
//
// The packages below it are its parts: identity (people, keys, agents), directory (rooms, members, roles, links,
// references, documents), timeline (the log of each room), feed (what waits for each agent, in its own numbering),
// connection (who is connected, claims, placements, leases; memory only), operation (the table of operations), media
// (files). Parts meet in interfaces that their users declare; the appliance joins them.
package room
