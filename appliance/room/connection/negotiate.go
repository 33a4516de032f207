package connection

import (
	"fmt"

	"signalbox/appliance/fault"
)

// The range of revisions the server serves (B.4).
const (
	Speaks  = 8
	Accepts = 1
)

// Revisions that change what a client is sent or has to send (B.4).
const (
	revisionFenced   = 2 // requests carry a generation
	revisionReleased = 6 // room_released
)

// Declaration is what a client says of itself (B.1). Only Speaks decides anything.
type Declaration struct {
	Speaks, Accepts   *int
	Artifact, Version *string
}

// Normal fills in what a declaration leaves out: Accepts is Speaks when absent, and declares nothing without it.
func (d Declaration) Normal() Declaration {
	switch {
	case d.Speaks == nil:
		d.Accepts = nil
	case d.Accepts == nil:
		accepts := *d.Speaks
		d.Accepts = &accepts
	}
	return d
}

func (d Declaration) atLeast(revision int) bool { return d.Speaks != nil && *d.Speaks >= revision }

// Incompatible is the refusal of a client whose range of revisions does not meet the server's (B.4).
type Incompatible struct {
	ServerVersion   string
	Speaks, Accepts int // the client's
}

// The two remedies that clients know (B.4).
const (
	remedyClient = "update the Switch agent runtime"
	remedyServer = "update switch-core"
)

func (e *Incompatible) remedy() string {
	if e.Speaks < Accepts {
		return remedyClient
	}
	return remedyServer
}

// Error names both ranges and the remedy.
func (e *Incompatible) Error() string {
	return fmt.Sprintf("agent-protocol: this server accepts revisions %d to %d, the client offers %d to %d: %s",
		Accepts, Speaks, e.Accepts, e.Speaks, e.remedy())
}

// Unwrap makes it a conflict.
func (e *Incompatible) Unwrap() error { return fault.New(fault.Conflict, "%s", e.Error()) }

// Detail is the object of the refusal (B.4).
func (e *Incompatible) Detail() any {
	type client struct {
		Speaks  int `json:"speaks"`
		Accepts int `json:"accepts"`
	}
	type server struct {
		Version *string `json:"version"`
		client
	}
	var version *string // null: unknown
	if e.ServerVersion != "" {
		version = &e.ServerVersion
	}
	return struct {
		Message  string `json:"message"`
		Contract string `json:"contract"`
		Server   server `json:"server"`
		Client   client `json:"client"`
		Remedy   string `json:"remedy"`
	}{e.Error(), "agent-protocol", server{version, client{Speaks, Accepts}}, client{e.Speaks, e.Accepts}, e.remedy()}
}

// Negotiate returns the revision in force (B.4), or an *Incompatible. A client that declares nothing is served as one of
// the server's own revision.
func Negotiate(d Declaration, serverVersion string) (int, error) {
	d = d.Normal()
	if d.Speaks == nil {
		return Speaks, nil
	}
	speaks, floor := *d.Speaks, *d.Accepts
	if floor > speaks || floor > Speaks || speaks < Accepts {
		return 0, &Incompatible{ServerVersion: serverVersion, Speaks: speaks, Accepts: floor}
	}
	return min(speaks, Speaks), nil
}
