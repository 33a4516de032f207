package feed

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

var (
	bodyRoom   = uuid.MustParse("0190a5b4-0000-7000-8000-000000000001")
	bodyID     = uuid.MustParse("0190a5b4-0000-7000-8000-000000000002")
	bodyThread = uuid.MustParse("0190a5b4-0000-7000-8000-000000000003")
	bodyTime   = time.UnixMilli(1785569372682).Add(999 * time.Microsecond)
)

func eventOf(t testing.TB, it room.Item, channel room.ChannelType, flag bool, c *room.Command) Event {
	t.Helper()
	b, err := encode(bodyRoom, channel, &it)
	if err != nil {
		t.Fatal(err)
	}
	return Event{Sequence: 4813, Kind: b.kind, Flag: flag, body: b, command: c}
}

func TestData(t *testing.T) {
	t.Parallel()
	message := room.Item{ID: bodyID, Kind: room.ItemMessage, SenderKind: room.KindPerson, SenderID: "p-1", SenderName: "alice",
		Body: "@bot status?", At: bodyTime}
	with := func(it room.Item, change func(*room.Item)) room.Item {
		change(&it)
		return it
	}
	command := with(message, func(it *room.Item) { it.Kind, it.Body = room.ItemCommand, "!reset @bot" })
	join := with(message, func(it *room.Item) { it.Kind, it.Body = room.ItemJoin, "" })
	const head = `{"type":"message","room_id":"0190a5b4-0000-7000-8000-000000000001","bridge_id":null,` +
		`"channel_type":"direct","payload":{`
	const plain = head + `"addressed":true,"sender":"p-1","sender_name":"alice","sender_kind":null,"on_behalf_of":null,` +
		`"message_id":"0190a5b4-0000-7000-8000-000000000002","body":"@bot status?","timestamp":1785569372682,"thread_id":null,` +
		`"attachments":[]},"sequence":4813`
	for _, c := range []struct {
		name    string
		it      room.Item
		flag    bool
		command *room.Command
		missed  *Missed
		want    string
	}{
		{"message", message, true, nil, nil, plain + `}`},
		{"unaddressed in a thread with a file", with(message, func(it *room.Item) {
			it.ThreadID, it.Attachments = bodyThread, json.RawMessage("[ {\"filename\": \"a b.png\",\n \"size\": 3} ]\n")
		}), false, nil, nil, strings.NewReplacer(`"addressed":true`, `"addressed":false`, `"thread_id":null`,
			`"thread_id":"0190a5b4-0000-7000-8000-000000000003"`, `[]`, `[{"filename":"a b.png","size":3}]`).Replace(plain) + `}`},
		{"platform", with(message, func(it *room.Item) {
			it.SenderKind, it.SenderID, it.SenderName = room.KindPlatform, "signalbox", ""
		}), true, nil, nil, strings.NewReplacer(`"sender_kind":null`, `"sender_kind":"platform"`, `"p-1"`, `"signalbox"`, `"alice"`,
			`"signalbox"`).Replace(plain) + `}`},
		{"platform for a person", with(message, func(it *room.Item) {
			it.SenderKind, it.SenderName, it.OnBehalfOf = room.KindPlatform, "signalbox", "bob"
		}), true, nil, nil, strings.NewReplacer(`"sender_kind":null`, `"sender_kind":"platform"`, `"alice"`, `"bob"`,
			`"on_behalf_of":null`, `"on_behalf_of":"bob"`).Replace(plain) + `}`},
		{"agent for a person", with(message, func(it *room.Item) { it.SenderKind, it.OnBehalfOf = room.KindAgent, "bob" }), true,
			nil, nil, strings.Replace(plain, `"on_behalf_of":null`, `"on_behalf_of":"bob"`, 1) + `}`},
		{"missed", message, true, nil, &Missed{Count: 3, Known: true}, plain + `,"missed":{"count":3,"reason":null}}`},
		{"at least missed", message, true, nil, &Missed{Count: 3, Known: true, Reason: "a floor"},
			plain + `,"missed":{"count":3,"reason":"a floor"}}`},
		{"missed unknown", message, true, nil, &Missed{Count: 3, Reason: `no "baseline"`},
			plain + `,"missed":{"count":null,"reason":"no \"baseline\""}}`},
		{"command", command, false, &room.Command{Name: "reset", Args: "dev"}, nil, strings.Replace(head, "message", "command", 1) +
			`"command":"reset","args":"dev","user_id":"p-1","user_name":"alice",` +
			`"thread_id":"0190a5b4-0000-7000-8000-000000000002"},"sequence":4813}`},
		{"command in a thread", with(command, func(it *room.Item) { it.ThreadID = bodyThread }), false,
			&room.Command{Name: "interrupt"}, nil, strings.Replace(head, "message", "command", 1) +
				`"command":"interrupt","args":"","user_id":"p-1",` +
				`"user_name":"alice","thread_id":"0190a5b4-0000-7000-8000-000000000003"},"sequence":4813}`},
		{"join", join, true, nil, nil, strings.Replace(head, "message", "room_join", 1) + `"listening":true,"member":"p-1",` +
			`"member_name":"alice","timestamp":1785569372682},"sequence":4813}`},
	} {
		e := eventOf(t, c.it, room.ChannelDirect, c.flag, c.command)
		if got := string(e.AppendData([]byte("x"), c.missed)); got != "x"+c.want {
			t.Errorf("%s:\n got %s\nwant x%s", c.name, got, c.want)
		}
		kind := string(c.it.Kind)
		if got, want := string(e.AppendFrame(nil, c.missed)), `{"event":"`+kind+`","data":`+c.want+`,"id":4813}`; got != want {
			t.Errorf("%s, frame:\n got %s\nwant %s", c.name, got, want)
		}
		if got, want := string(e.AppendSSE(nil, c.missed)), "id: 4813\nevent: "+kind+"\ndata: "+c.want+"\n\n"; got != want {
			t.Errorf("%s, stream:\n got %q\nwant %q", c.name, got, want)
		}
	}
	if e := eventOf(t, message, "", true, nil); !strings.Contains(string(e.AppendData(nil, nil)), `"channel_type":null,`) {
		t.Error("a room without a channel type")
	}
}

func TestAttachmentsMustBeAList(t *testing.T) {
	t.Parallel()
	for raw, ok := range map[string]bool{"": true, " ": true, "[]": true, "[1, 2]": true, "null": false, "{}": false, "[": false,
		"[]]": false, "[\"\xff\"]": false} {
		out, err := appendList(nil, json.RawMessage(raw))
		if (err == nil) != ok || ok && !json.Valid(out) {
			t.Errorf("%q: %s, %v", raw, out, err)
		}
	}
}

// FuzzData holds every text that strangers choose against encoding/json.
func FuzzData(f *testing.F) {
	f.Add("alice", "hello", "reset", "args", int64(1))
	f.Add("", "line\nline\r\u2028\u2029\u0085\x00\x1f\x7f\\\"/<>&", "\xff\xfe\xc3(", "\xed\xa0\x80", int64(-1))
	f.Add("\U0001F600", "\xf0\x9f\x98", "é", "\ufffd", int64(1)<<60)
	f.Fuzz(func(t *testing.T, name, body, command, args string, at int64) {
		it := room.Item{ID: bodyID, Kind: room.ItemMessage, SenderKind: room.KindAgent, SenderID: "a-1", SenderName: name, Body: body,
			OnBehalfOf: args, At: time.UnixMilli(at)}
		message := eventOf(t, it, room.ChannelPublic, true, nil)
		shown := name
		if shown == "" {
			shown = "a-1"
		}
		var behalf any
		if args != "" {
			behalf = args
		}
		sameJSON(t, message.AppendData(nil, nil), map[string]any{"type": "message", "room_id": bodyRoom.String(), "bridge_id": nil,
			"channel_type": "channel_public", "sequence": 4813, "payload": map[string]any{"addressed": true, "sender": "a-1",
				"sender_name": shown, "sender_kind": nil, "on_behalf_of": behalf, "message_id": bodyID.String(), "body": body,
				"timestamp": at, "thread_id": nil, "attachments": []any{}}})
		it.Kind = room.ItemCommand
		e := eventOf(t, it, room.ChannelPublic, false, &room.Command{Name: command, Args: args})
		sameJSON(t, e.AppendData(nil, &Missed{Reason: body}), map[string]any{"type": "command", "room_id": bodyRoom.String(),
			"bridge_id": nil, "channel_type": "channel_public", "sequence": 4813, "missed": map[string]any{"count": nil,
				"reason": orNil(body)}, "payload": map[string]any{"command": command, "args": args, "user_id": "a-1", "user_name": shown,
				"thread_id": bodyID.String()}})
		stream := e.AppendSSE(nil, nil)
		if bytes.Count(stream, []byte("\n")) != 4 || bytes.ContainsAny(stream, "\r\u2028\u2029\u0085") || !utf8.Valid(stream) {
			t.Errorf("more than one line of data: %q", stream)
		}
	})
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func sameJSON(t *testing.T, got []byte, value any) {
	t.Helper()
	want, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var g, w any
	for raw, into := range map[*[]byte]*any{&got: &g, &want: &w} {
		d := json.NewDecoder(bytes.NewReader(*raw))
		d.UseNumber()
		if err := d.Decode(into); err != nil {
			t.Fatalf("%v in %s", err, *raw)
		}
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestCacheStaysWithinItsBytes(t *testing.T) {
	t.Parallel()
	c := newCache(8000)
	body := func(no int64, n int) *Body {
		return &Body{itemNo: no, channel: room.ChannelPublic, post: make([]byte, n)}
	}
	for no := int64(1); no <= 20; no++ {
		c.put(body(no, 800))
		c.get(1, room.ChannelPublic) // keeps it the most recent
	}
	if c.used > 8000 || len(c.items) != c.order.Len() || c.get(1, room.ChannelPublic) == nil ||
		c.get(20, room.ChannelPublic) == nil || c.get(2, room.ChannelPublic) != nil {
		t.Errorf("%d bytes, %d items", c.used, len(c.items))
	}
	c.put(body(99, 5000))
	if c.get(99, room.ChannelPublic) != nil {
		t.Error("a giant was kept")
	}
	if c.get(20, room.ChannelPrivate) != nil {
		t.Error("a body of another channel type")
	}
	used := c.used
	c.put(body(20, 700))
	if c.used != used-100 {
		t.Errorf("replacing: %d bytes after %d", c.used, used)
	}
}
