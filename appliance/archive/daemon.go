package archive

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// DaemonRef names a daemon: its number in the database and its id on the wire (client_id).
type DaemonRef struct {
	No int64
	ID uuid.UUID
}

// Link is one registered connection of a daemon. Every write that a message causes carries it and is fenced by it
// (daemon protocol 2.5).
type Link struct {
	Daemon       DaemonRef
	Generation   int64
	Minor        uint32     // negotiated
	Epoch        uuid.UUID  // of the daemon's state database
	Limits       *pb.Limits // negotiated
	Capabilities []string   // the intersection that control is willing to use
}

// Has reports whether the connection has the capability.
func (l Link) Has(capability string) bool {
	for _, c := range l.Capabilities {
		if c == capability {
			return true
		}
	}
	return false
}

// Keys of the wake hub. Each is woken after the COMMIT of a change that its watchers must look at.
type (
	// DaemonKey is the number of a daemon with something new to send.
	DaemonKey int64
	// JobKey is the number of a job whose state, progress or timeline changed.
	JobKey int64
	// QueryKey is the number of an inventory query that ended.
	QueryKey int64
	// RouteKey is the number of a route whose state changed.
	RouteKey int64
	// TimersKey is woken when a job got an earlier time to act at.
	TimersKey struct{}
	// DaemonsKey is woken when a daemon came, went or was forgotten.
	DaemonsKey struct{}
	// JobsKey is woken when any job changed.
	JobsKey struct{}
)

// CommandKind is the field number of an operation in Command (daemon protocol 2.6).
type CommandKind int32

// The operations.
const (
	AssignJob          CommandKind = 16
	ExecuteStep        CommandKind = 17
	CancelJob          CommandKind = 18
	ReconcileJob       CommandKind = 19
	InventoryQuery     CommandKind = 20
	RequestJobSnapshot CommandKind = 21
	CreateRoute        CommandKind = 22
	UpdateRoute        CommandKind = 23
	RemoveRoute        CommandKind = 24
	CloseJob           CommandKind = 25
)

var commandNames = map[CommandKind]string{AssignJob: "assign_job", ExecuteStep: "execute_step", CancelJob: "cancel_job",
	ReconcileJob: "reconcile_job", InventoryQuery: "inventory_query", RequestJobSnapshot: "request_job_snapshot",
	CreateRoute: "create_route", UpdateRoute: "update_route", RemoveRoute: "remove_route", CloseJob: "close_job"}

// String returns the name of the operation as in the schema.
func (k CommandKind) String() string {
	if s := commandNames[k]; s != "" {
		return s
	}
	return "unknown"
}

// KindOf returns the operation of a command, 0 when none is set.
func KindOf(c *pb.Command) CommandKind {
	switch c.GetOperation().(type) {
	case *pb.Command_AssignJob:
		return AssignJob
	case *pb.Command_ExecuteStep:
		return ExecuteStep
	case *pb.Command_CancelJob:
		return CancelJob
	case *pb.Command_ReconcileJob:
		return ReconcileJob
	case *pb.Command_InventoryQuery:
		return InventoryQuery
	case *pb.Command_RequestJobSnapshot:
		return RequestJobSnapshot
	case *pb.Command_CreateRoute:
		return CreateRoute
	case *pb.Command_UpdateRoute:
		return UpdateRoute
	case *pb.Command_RemoveRoute:
		return RemoveRoute
	case *pb.Command_CloseJob:
		return CloseJob
	}
	return 0
}
