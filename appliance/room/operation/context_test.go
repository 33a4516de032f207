package operation_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
)

func TestReadContext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, body := range []string{"one", "two", "three"} {
		r.clk.Advance(time.Minute)
		r.names[fmt.Sprint("m", i)] = r.post(r.ann.Actor(), body).ID.String()
	}
	r.clk.Advance(time.Minute)
	p, err := r.log.Post(r.ctx(), timeline.Draft{Actor: r.owl.Actor(), RoomID: r.den.ID, Body: "reply", ThreadID: r.names["m0"],
		Attachments: []room.Attachment{{Filename: "a.png", Mimetype: "image/png", Size: 3, Media: "k", Type: "m.image"}}})
	r.ok("reply", err)
	r.names["reply"] = p.Item.ID.String()
	at := func(minutes int) string {
		return fmt.Sprint(start.Add(time.Duration(minutes) * time.Minute).UnixMilli())
	}
	entry := func(id, sender, body string, minutes int) string {
		name := map[string]string{"$ann": "ann", "$owl": "owl"}[sender]
		return `{"id":"` + id + `","kind":"message","sender":"` + sender + `","sender_name":"` + name + `","body":"` + body + `","timestamp":` +
			at(minutes) + `,"attachments":[]}`
	}
	reply := `{"id":"$reply","kind":"message","sender":"$owl","sender_name":"owl","body":"reply","timestamp":` + at(4) +
		`,"attachments":[{"filename":"a.png","mimetype":"image/png","size":3,"mxc":"k","msgtype":"m.image"}]}`
	one, two, three := entry("$m0", "$ann", "one", 1), entry("$m1", "$ann", "two", 2), entry("$m2", "$ann", "three", 3)
	thread := func(root string, replies ...string) string {
		list := ""
		for i, e := range replies {
			if i > 0 {
				list += ","
			}
			list += e
		}
		return `{"root":` + root + `,"replies":[` + list + `]}`
	}
	r.gives(r.asFox("read_context", `{}`), `{"threads":[`+thread(two)+`,`+thread(three)+`,`+thread(one, reply)+`],
		"truncated":false,"oldest_timestamp":`+at(1)+`}`)
	r.gives(r.asFox("read_context", `{"limit":2}`), `{"threads":[`+thread(three)+`,`+thread(one, reply)+`],"truncated":true,"oldest_timestamp":`+at(3)+`}`)
	// since is inclusive, before is not; a time without an offset is UTC.
	r.gives(r.asFox("read_context", `{"since":"2026-01-02T03:06:05.000006","before":"2026-01-02T04:07:05.000006+01:00"}`),
		`{"threads":[`+thread(two)+`],"truncated":false,"oldest_timestamp":`+at(2)+`}`)
	r.gives(r.asFox("read_context", `{"before":"2026-01-02"}`), `{"threads":[],"truncated":false,"oldest_timestamp":null}`)

	join, err := r.dir.Invite(r.ctx(), r.ann.Actor(), r.den.ID, []directory.Invitation{{Name: "cub"}})
	if err != nil || len(join) != 1 {
		t.Fatal(err)
	}
	r.gives(r.asFox("read_context", `{"limit":1}`), `{"threads":[{"root":{"id":"*","kind":"room_join","sender":"$cub","sender_name":"cub","body":"",
		"timestamp":"*","attachments":[]},"replies":[]}],"truncated":true,"oldest_timestamp":"*"}`)
}

func TestReadContextOfPlatformMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.log.Post(r.ctx(), timeline.Draft{Actor: room.Platform(), RoomID: r.den.ID, Body: "hear", OnBehalfOf: "ann"})
	r.ok("post", err)
	r.gives(r.asFox("read_context", ``), `{"threads":[{"root":{"id":"*","kind":"message","sender":"signalbox","sender_name":"ann","body":"hear",
		"timestamp":"*","attachments":[],"sender_kind":"platform","on_behalf_of":"ann"},"replies":[]}],"truncated":false,"oldest_timestamp":"*"}`)
}

// Only a read of the connected room catches up with it, to where the agent's events were before the read (D.10).
func TestReadContextCatchesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lair := r.room(directory.NewRoom{Name: "lair", Agents: []directory.Invitation{{Name: "fox"}}})
	r.names["lair"] = lair.ID.String()
	r.do(r.asFox("connect_to_room", `{"room_id":"$lair"}`))
	r.do(r.asFox("connect_to_room", `{"room_id":"$den"}`))
	for range 3 {
		r.post(r.ann.Actor(), "x")
	}
	base := func(roomNo int64) int64 {
		at, _ := r.conns.Baseline(r.fox.No, roomNo)
		return at
	}
	r.do(r.asFox("read_context", `{"room_id":"$lair"}`))
	r.do(operation.Call{Agent: r.fox, Name: "read_context", Args: []byte(r.fill(`{"room_id":"$den"}`))})
	if base(r.den.No) != 0 || base(lair.No) != 0 {
		t.Errorf("a read of a room that is not connected catches up: %d, %d", base(r.den.No), base(lair.No))
	}
	r.do(r.asFox("read_context", `{}`))
	if base(r.den.No) != 3 || base(lair.No) != 0 {
		t.Errorf("after a read of the connected room: %d, %d", base(r.den.No), base(lair.No))
	}
	r.post(r.ann.Actor(), "y")
	r.do(r.asFox("read_context", `{"room_id":"$den"}`)) // named, and the connected one
	if base(r.den.No) != 4 {
		t.Errorf("after naming the connected room: %d", base(r.den.No))
	}
	r.refuses(operation.Call{Agent: r.fox, Name: "read_context"}, fault.Invalid, "connect_to_room")
	r.refuses(r.asOwl("read_context", `{"room_id":"$lair"}`), fault.Forbidden, "$lair")
}

func TestParseInstant(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-01-31":                  day,
		"2026-01-31T09:30":            day.Add(9*time.Hour + 30*time.Minute),
		"2026-01-31T09:30Z":           day.Add(9*time.Hour + 30*time.Minute),
		"2026-01-31T09:30+02:00":      day.Add(7*time.Hour + 30*time.Minute),
		"2026-01-31T09:30:01":         day.Add(9*time.Hour + 30*time.Minute + time.Second),
		"2026-01-31T09:30:01.5-01:00": day.Add(10*time.Hour + 30*time.Minute + 1500*time.Millisecond),
	} {
		if got, ok := operation.ParseInstant(text); !ok || !got.Equal(want) {
			t.Errorf("%q is %v %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "now", "2026-1-31", "2026-02-30", "2026-01-31T", "2026-01-31T9:30", "2026-01-31T25:00", "1769851801", "2026-01-31T09:30+2"} {
		if got, ok := operation.ParseInstant(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func FuzzParseInstant(f *testing.F) {
	for _, s := range []string{"2026-01-31", "2026-01-31T09:30", "2026-01-31T09:30:01.5-01:00", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, ok := operation.ParseInstant(s); ok && (got.Year() < -1 || got.Year() > 10000) {
			t.Errorf("%q is %v", s, got)
		}
	})
}
