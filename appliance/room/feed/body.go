package feed

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Body is the `data` of an item's events, encoded once for all receivers: what comes before and after the part that is
// each receiver's own. It is never changed.
type Body struct {
	kind      room.EventKind
	itemNo    int64
	channel   room.ChannelType
	pre, post []byte
}

// size is what a body takes in memory, about.
func (b *Body) size() int64 { return int64(len(b.pre)+len(b.post)) + 128 }

// kindOf is the kind of an item's events.
func kindOf(k room.ItemKind) room.EventKind {
	switch k {
	case room.ItemCommand:
		return room.EventCommand
	case room.ItemJoin:
		return room.EventJoin
	default:
		return room.EventMessage
	}
}

// encode makes the body of an item (D.1, D.6, D.7).
func encode(roomID uuid.UUID, channel room.ChannelType, it *room.Item) (*Body, error) {
	b := &Body{kind: kindOf(it.Kind), itemNo: it.No, channel: channel}
	pre := make([]byte, 0, 192)
	pre = append(pre, `{"type":"`...)
	pre = append(pre, b.kind.String()...)
	pre = append(pre, `","room_id":"`...)
	pre = append(pre, roomID.String()...)
	pre = append(pre, `","bridge_id":null,"channel_type":`...)
	pre = appendOrNull(pre, string(channel))
	pre = append(pre, `,"payload":{`...)
	var err error
	switch b.kind {
	case room.EventCommand:
		b.pre, b.post = pre, encodeCommand(it)
	case room.EventJoin:
		b.pre, b.post = append(pre, `"listening":`...), encodeJoin(it)
	default:
		b.pre = append(pre, `"addressed":`...)
		b.post, err = encodeMessage(it)
	}
	if err != nil {
		return nil, err
	}
	b.post = append(b.post, `},"sequence":`...)
	return b, nil
}

func encodeMessage(it *room.Item) ([]byte, error) {
	p := make([]byte, 0, 320+len(it.Body)+len(it.Body)/8+len(it.Attachments))
	p = append(p, `,"sender":`...)
	p = appendString(p, it.SenderID)
	p = append(p, `,"sender_name":`...)
	p = appendString(p, shownName(it))
	p = append(p, `,"sender_kind":`...)
	if it.SenderKind == room.KindPlatform {
		p = append(p, `"platform"`...)
	} else {
		p = append(p, "null"...)
	}
	p = append(p, `,"on_behalf_of":`...)
	p = appendOrNull(p, it.OnBehalfOf)
	p = append(p, `,"message_id":"`...)
	p = append(p, it.ID.String()...)
	p = append(p, `","body":`...)
	p = appendString(p, it.Body)
	p = append(p, `,"timestamp":`...)
	p = strconv.AppendInt(p, it.At.UnixMilli(), 10)
	p = append(p, `,"thread_id":`...)
	p = appendID(p, it.ThreadID)
	p = append(p, `,"attachments":`...)
	return appendList(p, it.Attachments)
}

func encodeCommand(it *room.Item) []byte {
	thread := it.ThreadID
	if thread == uuid.Nil {
		thread = it.ID
	}
	p := append([]byte(nil), `,"user_id":`...)
	p = appendString(p, it.SenderID)
	p = append(p, `,"user_name":`...)
	p = appendString(p, shownName(it))
	p = append(p, `,"thread_id":`...)
	return appendID(p, thread)
}

func encodeJoin(it *room.Item) []byte {
	p := append([]byte(nil), `,"member":`...)
	p = appendString(p, it.SenderID)
	p = append(p, `,"member_name":`...)
	p = appendString(p, shownName(it))
	p = append(p, `,"timestamp":`...)
	return strconv.AppendInt(p, it.At.UnixMilli(), 10)
}

// shownName is never empty, and that of the person a message of the platform speaks for (D.6).
func shownName(it *room.Item) string {
	switch {
	case it.SenderKind == room.KindPlatform && it.OnBehalfOf != "":
		return it.OnBehalfOf
	case it.SenderName != "":
		return it.SenderName
	default:
		return it.SenderID
	}
}

// own is the part of the payload that is the receiver's own.
func (b *Body) own(dst []byte, flag bool, c *room.Command) []byte {
	if b.kind == room.EventCommand {
		if c == nil {
			c = &room.Command{}
		}
		dst = append(dst, `"command":`...)
		dst = appendString(dst, c.Name)
		dst = append(dst, `,"args":`...)
		return appendString(dst, c.Args)
	}
	return strconv.AppendBool(dst, flag)
}

func appendID(dst []byte, id uuid.UUID) []byte {
	if id == uuid.Nil {
		return append(dst, "null"...)
	}
	dst = append(append(dst, '"'), id.String()...)
	return append(dst, '"')
}

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

// appendList appends a stored JSON array on one line, an empty one for none.
func appendList(dst []byte, raw json.RawMessage) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return append(dst, "[]"...), nil
	}
	if raw[0] != '[' || !utf8.Valid(raw) {
		return nil, fault.New(fault.Internal, "attachments of a room item are not a JSON list")
	}
	buf := bytes.NewBuffer(dst)
	if err := json.Compact(buf, raw); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "attachments of a room item are not a JSON list")
	}
	return buf.Bytes(), nil
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. Bytes that are no UTF-8 become U+FFFD. The separators that some line readers take
// for the end of a line are escaped too: an event of a stream is one line (G.1).
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			dst = appendEscaped(dst, c)
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			from = i + n
		case r == 0x85 || r == 0x2028 || r == 0x2029:
			dst = append(append(dst, s[from:i]...), '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15],
				hexDigits[r&15])
			from = i + n
		}
		i += n
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
