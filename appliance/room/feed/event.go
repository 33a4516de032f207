package feed

import (
	"strconv"
	"time"

	"signalbox/appliance/room"
)

// Event is one event of an agent. Events are shared by readers and never changed.
type Event struct {
	Sequence int64
	Kind     room.EventKind
	Flag     bool // addressed of a message, listening of a join: as decided when it was queued
	Room     room.Ref
	ItemNo   int64
	QueuedAt time.Time

	body    *Body
	command *room.Command
}

// Missed is what a notifiable event tells about those before it (D.10).
type Missed struct {
	Count  int64
	Known  bool   // false: the count is null
	Reason string // "" for none
}

// Notifiable tells whether filter=addressed lets the event through (D.9).
func (e *Event) Notifiable() bool { return e.Kind != room.EventCommand && e.Flag }

// AppendData appends the `data` object of the event: one line of JSON (D.1, D.6, D.7). m may be nil.
func (e *Event) AppendData(dst []byte, m *Missed) []byte {
	dst = append(dst, e.body.pre...)
	dst = e.body.own(dst, e.Flag, e.command)
	dst = append(dst, e.body.post...)
	dst = strconv.AppendInt(dst, e.Sequence, 10)
	if m != nil {
		dst = append(dst, `,"missed":{"count":`...)
		if m.Known {
			dst = strconv.AppendInt(dst, m.Count, 10)
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"reason":`...)
		dst = append(appendOrNull(dst, m.Reason), '}')
	}
	return append(dst, '}')
}

// AppendFrame appends the event as a WebSocket frame (D.1).
func (e *Event) AppendFrame(dst []byte, m *Missed) []byte {
	dst = append(dst, `{"event":"`...)
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, `","data":`...)
	dst = e.AppendData(dst, m)
	dst = append(dst, `,"id":`...)
	dst = strconv.AppendInt(dst, e.Sequence, 10)
	return append(dst, '}')
}

// AppendSSE appends the event as the lines of a stream (G.1).
func (e *Event) AppendSSE(dst []byte, m *Missed) []byte {
	dst = append(dst, "id: "...)
	dst = strconv.AppendInt(dst, e.Sequence, 10)
	dst = append(dst, "\nevent: "...)
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, "\ndata: "...)
	dst = e.AppendData(dst, m)
	return append(dst, "\n\n"...)
}

// Size is the length of the event's data, about.
func (e *Event) Size() int { return len(e.body.pre) + len(e.body.post) + 48 }
