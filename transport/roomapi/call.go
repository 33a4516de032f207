package roomapi

import (
	"encoding/json"

	"signalbox/appliance/room"
)

// Call is one call of an operation.
type Call struct {
	Agent                   room.Agent
	ConnectionID, SessionID string
	HasConnection           bool
	Name                    string
	Args                    json.RawMessage
}
