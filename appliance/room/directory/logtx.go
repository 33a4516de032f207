package directory

import "signalbox/appliance/room"

// LogTx is what a join is written through.
type LogTx interface{ room.Writer }

// QueueTx is what a leave is written through.
type QueueTx interface{ room.Writer }
