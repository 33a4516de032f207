package frame

import "signalbox/appliance/archive/valid"

// role is what an object or array of an envelope is, as far as the scan has to know.
type role uint8

const (
	roleNone role = iota
	roleEnvelope
	roleVersion
	roleChunk        // inventoryChunk
	roleList         // one of its lists
	roleTree         // its contentTree
	roleHeader       // the header of that
	roleEntries      // the entries of a chunk: counted
	roleRegister     // registerRequest or registerResponse
	roleCursors      // their cursors: counted
	roleNames        // their capabilities: counted
	roleSnapshot     // jobSnapshot
	roleRecords      // its events and commands: counted
	roles        int = iota
)

// recordBytes is less than any valid event or command of a snapshot takes: either holds two UUIDs or a digest.
const recordBytes = 64

// elementBytes is less than any valid object in a list takes on average, and elementSlack allows for a few that hold
// defaults only. A frame with more objects in lists than its length can fill would be refused by check 8 anyway, after
// the messages were built.
const (
	elementBytes = 8
	elementSlack = 64
)

// payloadField returns the field number of a payload's key in either spelling, 0 for any other key.
func payloadField(name []byte) int32 {
	switch string(name) {
	case "registerRequest", "register_request":
		return 16
	case "registerResponse", "register_response":
		return 17
	case "registerRejected", "register_rejected":
		return 18
	case "heartbeat":
		return 20
	case "heartbeatAck", "heartbeat_ack":
		return 21
	case "command":
		return 24
	case "commandAck", "command_ack":
		return 25
	case "jobEvent", "job_event":
		return 28
	case "jobEventAck", "job_event_ack":
		return 29
	case "jobSnapshot", "job_snapshot":
		return 30
	case "inventoryChunk", "inventory_chunk":
		return 32
	case "routeUpdate", "route_update":
		return 36
	case "routeUpdateAck", "route_update_ack":
		return 37
	case "protocolError", "protocol_error":
		return 40
	}
	return 0
}

// enter returns the role of the value at data[value] under the key name of an object of the role parent, and takes
// note of payload keys, the major version and where the IDs are. at is the offset of the key.
func (s *scanner) enter(parent role, name []byte, at, value int) role {
	switch parent {
	case roleEnvelope:
		switch string(name) {
		case "version":
			return roleVersion
		case "envelopeId", "envelope_id":
			s.found.envelopeID = value
			return roleNone
		case "clientId", "client_id":
			s.found.clientID = value
			return roleNone
		}
		n := payloadField(name)
		switch {
		case n == 0:
			return roleNone
		case s.found.payload == 0:
			s.found.payload, s.found.payloadAt = n, at
		case s.found.second == 0:
			s.found.second, s.found.secondAt = n, at
		}
		switch n {
		case 16, 17:
			return roleRegister
		case 30:
			return roleSnapshot
		case 32:
			return roleChunk
		}
	case roleVersion:
		if string(name) == "major" {
			s.found.major = plainNumber(s.data[value:])
		}
	case roleRegister:
		switch string(name) {
		case "activeJobs", "active_jobs", "controlCursors", "control_cursors":
			return roleCursors
		case "capabilities":
			return roleNames
		}
	case roleSnapshot:
		switch string(name) {
		case "events", "commands":
			return roleRecords
		}
	case roleChunk:
		switch string(name) {
		case "resources", "jobs", "routes", "storage":
			return roleList
		case "contentTree", "content_tree":
			return roleTree
		}
	case roleList:
		if string(name) == "entries" {
			return roleEntries
		}
	case roleTree:
		switch string(name) {
		case "files":
			return roleEntries
		case "header":
			return roleHeader
		}
	case roleHeader:
		if string(name) == "files" {
			return roleEntries
		}
	}
	return roleNone
}

// plainNumber returns the digits at the start of b, which may stand in quotes.
func plainNumber(b []byte) string {
	if len(b) > 0 && b[0] == '"' {
		b = b[1:]
	}
	n := 0
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	if n == 0 || n > 10 || n == len(b) {
		return ""
	}
	switch b[n] {
	case ',', '}', '"', ' ', '\n', '\r', '\t':
		return string(b[:n])
	}
	return ""
}

// countObject counts an object that is an element of any array.
func (s *scanner) countObject(at int) {
	f := &s.found
	f.listed++
	if f.listed*elementBytes > len(s.data)+elementSlack*elementBytes && f.listedOverAt == 0 {
		f.listedOverAt = at
	}
}

// uuidAt returns the UUID in quotes at data[at], empty if there is none.
func uuidAt(data []byte, at int) string {
	if at == 0 || len(data) < at+38 || data[at] != '"' || data[at+37] != '"' {
		return ""
	}
	if s := string(data[at+1 : at+37]); valid.IsUUID(s) {
		return s
	}
	return ""
}

// count counts an element of an array of the role.
func (s *scanner) count(r role, at int, limit bounds) {
	f := &s.found
	f.counts[r]++
	var most int
	switch r {
	case roleEntries:
		most = limit.entries
	case roleCursors:
		most = limit.cursors
	case roleNames:
		most = valid.MaxCapabilities
	case roleRecords:
		most = len(s.data) / recordBytes
	}
	if most > 0 && f.counts[r] > most && f.firstOver[r] == 0 {
		f.firstOver[r] = at
	}
}

// verdict is the result of a scan without a failure of check 3.
func (s *scanner) verdict(limit bounds) *Violation {
	f := &s.found
	if at := f.firstOver[roleEntries]; at > 0 {
		s.refuse(at, "more entries in a chunk than the limit")
	}
	if at := f.firstOver[roleCursors]; at > 0 {
		s.refuse(at, "more cursors in a registration than the limit")
	}
	if at := f.firstOver[roleNames]; at > 0 {
		s.refuse(at, "more capabilities than the limit")
	}
	if at := f.firstOver[roleRecords]; at > 0 {
		s.refuse(at, "more events and commands than their length allows")
	}
	if at := f.listedOverAt; at > 0 {
		s.refuse(at, "more list elements than their length allows")
	}
	return s.refused
}
