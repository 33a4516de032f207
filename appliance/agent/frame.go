package agent

import (
	"time"

	"signalbox/appliance/rawjson"
)

// Frame is one authenticated frame of an agent (agent protocol C.7): signature and replay guard have passed.
// Payload points into the frame's bytes and is valid until the Router returns.
type Frame struct {
	Type    string
	ID      string
	At      time.Time // the frame's ts
	Payload rawjson.Value
}

// Verdict is how a verified frame ended (agent protocol D.2).
type Verdict uint8

// The verdicts. Durable and Drop are final for the sender; Transient asks it to send again.
const (
	Durable         Verdict = iota + 1 // committed, or nothing to persist
	Drop                               // refused for good: an identical frame would be refused again
	Transient                          // storage trouble: send again later
	UpgradeRequired                    // schedule data of an adapter that must be upgraded
	Revoked                            // the agent is no longer valid
)

// Outcome is the Router's answer to one frame.
type Outcome struct {
	Verdict  Verdict
	Received int    // event_batch: events in the batch
	Accepted int    // event_batch: new rows stored
	Message  string // for errors[] of a long-poll upload; "" when there is nothing to say
	// Archived tells, beside Revoked, that the agent's project is archived rather than the agent revoked.
	Archived bool
}
