package media_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/media"
	"signalbox/store"
	"signalbox/store/storetest"
)

// rig is a media store on a real database with one room, a member, a person in it and a stranger.
type rig struct {
	t                        *testing.T
	db                       *store.DB
	clock                    *clock.Fake
	m                        *media.Media
	o                        media.Options
	room                     uuid.UUID
	member, stranger, person room.Actor
}

func newRig(t *testing.T, change func(*media.Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(time.Now()), room: uuid.New(),
		member:   room.Actor{Kind: room.KindAgent, No: 1, ID: uuid.New(), Name: "bot"},
		stranger: room.Actor{Kind: room.KindAgent, No: 2, ID: uuid.New(), Name: "other"},
		person:   room.Actor{Kind: room.KindPerson, No: 1, ID: uuid.New(), Name: "alice"}}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clock })
	r.exec(`INSERT INTO people (person_no, id, kind, name, email, role, sessions_after, created_at, updated_at)
		VALUES (1, ?, 'person', 'alice', 'alice@example.org', 'user', 0, 0, 0)`, r.person.ID)
	for _, a := range []room.Actor{r.member, r.stranger} {
		r.exec(`INSERT INTO room_agents (room_agent_no, id, name, description, connector_type, connection_model, profile, tools,
			models, metadata, key_hash, key_set_at, created_at, updated_at)
			VALUES (?, ?, ?, '', '', 'always_on', '{}', '[]', '[]', '{}', ?, 0, 0, 0)`, a.No, a.ID, a.Name, fmt.Sprintf("%064d", a.No))
	}
	r.exec(`INSERT INTO rooms (room_no, id, name, description, instructions, channel_type, chat, read_visibility, write_visibility,
		internal_only, created_at, updated_at) VALUES (1, ?, 'ops', '', '', 'channel_public', 0, 'public', 'public', 0, 0, 0)`, r.room)
	r.exec(`INSERT INTO room_members VALUES (1, 1, NULL, 0, 0, 0)`)
	r.exec(`INSERT INTO room_people VALUES (1, 1, 0, 0, 0)`)
	r.o = media.Options{Dir: filepath.Join(t.TempDir(), "media"), MaxFile: 1 << 20, MaxFiles: 3, Clock: r.clock, Reserve: -1}
	if change != nil {
		change(&r.o)
	}
	r.reopen()
	return r
}

func (r *rig) reopen() {
	r.t.Helper()
	m, err := media.New(r.t.Context(), store.Bind[media.Tx, media.ReadTx](r.db), r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	err := r.db.Update(r.t.Context(), "test", func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err })
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) save(files ...string) []room.Attachment {
	r.t.Helper()
	u, err := r.m.Begin(r.t.Context(), r.member, r.room)
	if err != nil {
		r.t.Fatal(err)
	}
	defer u.Close()
	for i, content := range files {
		if err := u.Add(r.t.Context(), fmt.Sprintf("f%d.txt", i), "text/plain", strings.NewReader(content)); err != nil {
			r.t.Fatal(err)
		}
	}
	out, err := u.Save(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// onDisk lists the named and the temporary files.
func (r *rig) onDisk() (named, temporary int) {
	r.t.Helper()
	err := filepath.WalkDir(r.o.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
		case filepath.Base(filepath.Dir(path)) == "tmp":
			temporary++
		default:
			named++
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return named, temporary
}

func (r *rig) sweepAll() (all media.Swept) {
	r.t.Helper()
	for {
		done, more, err := r.m.Sweep(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		all.Rows += done.Rows
		all.Files += done.Files
		all.Bytes += done.Bytes
		if !more {
			return all
		}
	}
}

// say stores a message that names the media key.
func (r *rig) say(position int, at time.Time, key string) {
	id := uuid.Must(uuid.NewV7())
	for i := range 6 {
		id[i] = byte(at.UnixMilli() >> (40 - 8*i))
	}
	r.exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id, sender_name, body, attachments,
		automatic, created_at) VALUES (1, ?, ?, 'message', 'agent', 1, 'x', 'bot', '', ?, 0, 0)`, position, id,
		fmt.Sprintf(`[{"mxc":%q}]`, key))
}

func TestUploadIsKeptAndReadBackByMembersOnly(t *testing.T) {
	r := newRig(t, nil)
	got := r.save("hello", "hello", "world")
	if len(got) != 3 || got[0].Filename != "f0.txt" || got[0].Size != 5 || got[0].Type != "m.file" ||
		got[0].Mimetype != "text/plain" {
		t.Fatalf("attachments %+v", got)
	}
	if named, temporary := r.onDisk(); named != 2 || temporary != 0 {
		t.Fatalf("%d files and %d temporary ones, want 2 and 0", named, temporary)
	}
	if r.m.Used() != 10 {
		t.Fatalf("used %d, want 10", r.m.Used())
	}
	for _, who := range []room.Actor{r.member, r.person} {
		f, err := r.m.Open(t.Context(), who, r.room, got[2].Media)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(f)
		_ = f.Close()
		if string(b) != "world" || f.Record.Filename != "f2.txt" {
			t.Fatalf("read %q of %+v", b, f.Record)
		}
	}
	for name, c := range map[string]struct {
		who  room.Actor
		room uuid.UUID
		key  string
		want fault.Code
	}{
		"stranger":     {r.stranger, r.room, got[0].Media, fault.Forbidden},
		"platform":     {room.Platform(), r.room, got[0].Media, fault.Forbidden},
		"unknown room": {r.member, uuid.New(), got[0].Media, fault.NotFound},
		"unknown key":  {r.member, r.room, uuid.NewString(), fault.NotFound},
		"no key":       {r.member, r.room, "../../etc/passwd", fault.NotFound},
	} {
		if _, err := r.m.Open(t.Context(), c.who, c.room, c.key); !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestUploadIsAllOrNothing(t *testing.T) {
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		files []io.Reader
		want  string
	}{
		"empty":    {[]io.Reader{strings.NewReader("ok"), strings.NewReader("")}, "is empty"},
		"oversize": {[]io.Reader{strings.NewReader("ok"), bytes.NewReader(make([]byte, 1<<20+1))}, "larger than 1048576 bytes"},
		"many": {[]io.Reader{strings.NewReader("1"), strings.NewReader("2"), strings.NewReader("3"), strings.NewReader("4")},
			"at most 3"},
		"broken":    {[]io.Reader{io.MultiReader(strings.NewReader("half"), broken{})}, "broke off"},
		"none":      {nil, "at least one"},
		"exact cap": {[]io.Reader{bytes.NewReader(make([]byte, 1<<20))}, ""},
	} {
		u, err := r.m.Begin(t.Context(), r.member, r.room)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.files {
			if err = u.Add(t.Context(), "f", "", f); err != nil {
				break
			}
		}
		if err == nil && c.want != "" {
			_, err = u.Save(t.Context())
		}
		u.Close()
		if c.want == "" && err != nil || c.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if named, temporary := r.onDisk(); named != 0 || temporary != 0 {
			t.Errorf("%s: %d files and %d temporary ones stay", name, named, temporary)
		}
	}
	if r.m.Used() != 0 {
		t.Errorf("used %d", r.m.Used())
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("reset by peer") }

func TestStrangersDoNotUpload(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.m.Begin(t.Context(), r.stranger, r.room); !fault.Is(err, fault.Forbidden) {
		t.Errorf("stranger: %v", err)
	}
	if _, err := r.m.Begin(t.Context(), r.member, uuid.New()); !fault.Is(err, fault.NotFound) {
		t.Errorf("unknown room: %v", err)
	}
	u, err := r.m.Begin(t.Context(), r.member, r.room)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := u.Add(t.Context(), "f", "", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	r.exec(`DELETE FROM room_members`)
	if _, err := u.Save(t.Context()); !fault.Is(err, fault.Forbidden) {
		t.Errorf("removed meanwhile: %v", err)
	}
}

func TestCapsProtectTheDisk(t *testing.T) {
	free := int64(1 << 30)
	r := newRig(t, func(o *media.Options) {
		o.MaxTotal, o.Reserve = 10, 1<<20
		o.Free = func(string) (int64, error) { return free, nil }
	})
	r.save("12345678")
	u, err := r.m.Begin(t.Context(), r.member, r.room)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Add(t.Context(), "f", "", strings.NewReader("abc")); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Save(t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "cap of 10 bytes") {
		t.Errorf("over the total: %v", err)
	}
	u.Close()
	if r.m.Used() != 8 {
		t.Errorf("used %d, want 8", r.m.Used())
	}
	r.save("12345678") // the same bytes cost nothing
	free = 1<<20 - 1
	if _, err := r.m.Begin(t.Context(), r.member, r.room); !fault.Is(err, fault.Unavailable) {
		t.Errorf("full disk: %v", err)
	}
}

func TestDiskFillingUpEndsAnUpload(t *testing.T) {
	asked := 0
	r := newRig(t, func(o *media.Options) {
		o.MaxFile, o.Reserve = 64<<20, 1
		o.Free = func(string) (int64, error) {
			asked++
			if asked > 1 {
				return 0, nil
			}
			return 2, nil
		}
	})
	u, err := r.m.Begin(t.Context(), r.member, r.room)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := u.Add(t.Context(), "f", "", io.LimitReader(zeros{}, 8<<20)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestRestartKeepsFilesAndDropsLeftovers(t *testing.T) {
	r := newRig(t, nil)
	got := r.save("hello")
	if err := os.WriteFile(filepath.Join(r.o.Dir, "tmp", "upload-1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	if named, temporary := r.onDisk(); named != 1 || temporary != 0 {
		t.Fatalf("%d files and %d temporary ones, want 1 and 0", named, temporary)
	}
	if r.m.Used() != 5 {
		t.Errorf("used %d", r.m.Used())
	}
	f, err := r.m.Open(t.Context(), r.member, r.room, got[0].Media)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

func TestSweepRemovesWhatNothingNames(t *testing.T) {
	r := newRig(t, nil)
	start := r.clock.Now()
	soon, late, unused := r.save("soon")[0], r.save("late")[0], r.save("unused")[0]
	r.say(1, start.Add(time.Second), soon.Media)
	r.say(2, start.Add(20*time.Hour), late.Media)
	orphan := r.save("orphan")
	r.exec(`DELETE FROM room_media WHERE room_media_no = 4`)
	if done := r.sweepAll(); done != (media.Swept{}) {
		t.Fatalf("swept %+v at once", done)
	}
	r.clock.Advance(2 * time.Hour)
	if done := r.sweepAll(); done != (media.Swept{Files: 1, Bytes: 6}) {
		t.Fatalf("after two hours: swept %+v", done)
	}
	if _, err := r.m.Open(t.Context(), r.member, r.room, orphan[0].Media); !fault.Is(err, fault.NotFound) {
		t.Errorf("orphan: %v", err)
	}
	r.clock.Advance(23 * time.Hour)
	if done := r.sweepAll(); done.Rows != 1 {
		t.Fatalf("after a day: swept %+v", done)
	}
	if done := r.sweepAll(); done.Rows != 0 {
		t.Fatalf("again: swept %+v", done)
	}
	for _, a := range []room.Attachment{soon, late} {
		f, err := r.m.Open(t.Context(), r.member, r.room, a.Media)
		if err != nil {
			t.Fatalf("%s was swept: %v", a.Media, err)
		}
		_ = f.Close()
	}
	if _, err := r.m.Open(t.Context(), r.member, r.room, unused.Media); !fault.Is(err, fault.NotFound) {
		t.Errorf("unused: %v", err)
	}
	if named, _ := r.onDisk(); named != 2 || r.m.Used() != 8 {
		t.Errorf("%d files, used %d, want 2 and 8", named, r.m.Used())
	}
}

func TestUploadsAndSweepTogetherLoseNothing(t *testing.T) {
	r := newRig(t, nil)
	first := r.save("same")
	r.exec(`DELETE FROM room_media`)
	_ = first
	r.clock.Advance(2 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, _, err := r.m.Sweep(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		a := r.save("same")
		f, err := r.m.Open(t.Context(), r.member, r.room, a[0].Media)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		r.exec(`DELETE FROM room_media`)
		r.clock.Advance(2 * time.Hour)
	}
	cancel()
	wg.Wait()
}

func TestDiscardTakesBackOnlyItsOwn(t *testing.T) {
	r := newRig(t, nil)
	kept := r.save("kept")
	u, err := r.m.Begin(t.Context(), r.member, r.room)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := u.Add(t.Context(), "f", "", strings.NewReader("gone")); err != nil {
		t.Fatal(err)
	}
	gone, err := u.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := u.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.m.Open(t.Context(), r.member, r.room, gone[0].Media); !fault.Is(err, fault.NotFound) {
		t.Errorf("discarded: %v", err)
	}
	f, err := r.m.Open(t.Context(), r.member, r.room, kept[0].Media)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

func TestEarlierUploadsBecomeAttachments(t *testing.T) {
	r := newRig(t, nil)
	a := r.save("one", "two")
	got, stale, err := r.m.Attachments(t.Context(), r.member, r.room, []string{a[1].Media, a[0].Media})
	if err != nil || stale != nil || len(got) != 2 || got[0] != a[1] || got[1] != a[0] {
		t.Fatalf("%+v, %v, %v", got, stale, err)
	}
	for name, c := range map[string]struct {
		who  room.Actor
		keys []string
	}{
		"another's":   {r.person, []string{a[0].Media}},
		"unknown":     {r.member, []string{uuid.NewString()}},
		"not a key":   {r.member, []string{"x"}},
		"one of many": {r.member, []string{a[0].Media, uuid.NewString()}},
		"too many":    {r.member, make([]string, 4)},
	} {
		if _, _, err := r.m.Attachments(t.Context(), c.who, r.room, c.keys); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.clock.Advance(media.UnusedAge - time.Minute)
	if got, stale, err := r.m.Attachments(t.Context(), r.member, r.room, []string{a[0].Media}); err != nil || len(got) != 1 ||
		!fault.Is(stale, fault.Invalid) {
		t.Errorf("too old: %v", err)
	}
}
