package directory

import (
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/timeline"
)

// LogTx is what a join is written through.
type LogTx = timeline.Tx

// QueueTx is what a leave is written through.
type QueueTx = feed.Tx
