package appliance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/config"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
	"signalbox/store/storetest"
)

const jump = int64(1) << 32

// numbered is a data directory whose database has room agents; run is one start of it.
type numbered struct {
	t   *testing.T
	dir string
	db  *store.DB
	fd  *feed.Feed
	log strings.Builder
}

func newNumbered(t *testing.T) *numbered {
	t.Helper()
	return &numbered{t: t, dir: t.TempDir()}
}

func (n *numbered) path() string { return filepath.Join(n.dir, DatabaseFile) }

// open opens the database without starting.
func (n *numbered) open(hooks store.Hooks) {
	n.t.Helper()
	db, err := store.Open(context.Background(), store.Options{Path: n.path(), Schema: storetest.Schema(n.t), Hooks: hooks})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = db.Close() })
	n.db, n.fd = db, feed.New(store.Bind[feed.Tx, feed.ReadTx](db), feed.Options{})
}

func (n *numbered) recover() error {
	a := &Appliance{db: n.db, cfg: &config.Config{DataDir: n.dir}, log: zerolog.New(&n.log)}
	return a.recoverRooms(context.Background(), n.fd)
}

func (n *numbered) start() {
	n.t.Helper()
	n.open(store.Hooks{})
	if err := n.recover(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *numbered) stop() {
	n.t.Helper()
	if err := n.db.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// noticed tells whether a start since the last call has said that the database was restored.
func (n *numbered) noticed() bool {
	defer n.log.Reset()
	return strings.Contains(n.log.String(), "was restored")
}

// populate makes agents in one room and queues events for each.
func (n *numbered) populate(agents, events int) {
	n.t.Helper()
	err := n.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		cast := &room.Cast{Room: room.Room{No: 1, ID: uuid.New(), Name: "plaza", Channel: room.ChannelPublic}}
		if _, err := tx.Exec(`INSERT INTO rooms (room_no, id, name, description, instructions, channel_type, chat, read_visibility,
			write_visibility, internal_only, created_at, updated_at)
			VALUES (1,?,'plaza','','','channel_public',0,'public','public',0,0,0)`, cast.Room.ID); err != nil {
			return err
		}
		for i := range agents {
			name := fmt.Sprint("agent-", i)
			res, err := tx.Exec(`INSERT INTO room_agents (id, name, description, connector_type, connection_model, profile, tools,
				models, metadata, key_hash, key_set_at, created_at, updated_at)
				VALUES (?,?,'','generic','always_on','{}','[]','[]','{}',?,0,0,0)`, uuid.New(), name, fmt.Sprintf("%064s", name))
			if err != nil {
				return err
			}
			if _, err := tx.Exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at)
				VALUES (1,?,0,0,0)`, res.LastInsertID()); err != nil {
				return err
			}
		}
		for i := range events {
			if err := n.queue(tx, cast, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *numbered) queue(tx *store.Tx, cast *room.Cast, position int) error {
	it := room.Item{RoomNo: 1, Position: int64(position), ID: uuid.New(), Kind: room.ItemMessage, SenderKind: room.KindPerson,
		SenderID: "p", SenderName: "alice", Body: "hello", At: time.Now()}
	res, err := tx.Exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id, sender_name, body,
		automatic, created_at) VALUES (1,?,?,'message','person',1,'p','alice','hello',0,0)`, it.Position, it.ID)
	if err != nil {
		return err
	}
	it.No = res.LastInsertID()
	return n.fd.Queue(tx, cast, it, feed.Audience{})
}

// post queues one more event for everybody.
func (n *numbered) post(position int) {
	n.t.Helper()
	cast := &room.Cast{Room: room.Room{No: 1, Name: "plaza", Channel: room.ChannelPublic}}
	err := n.db.Update(context.Background(), "test", func(tx *store.Tx) error { return n.queue(tx, cast, position) })
	if err != nil {
		n.t.Fatal(err)
	}
}

// openAt opens a stream of the agent.
func (n *numbered) openAt(agentNo, after int64) feed.Opening {
	n.t.Helper()
	rd := n.fd.NewReader(agentNo, func() {})
	defer rd.Close()
	o, err := rd.Open(context.Background(), feed.Start{After: after})
	if err != nil {
		n.t.Fatal(err)
	}
	return o
}

func (n *numbered) copyTo(name string) string {
	n.t.Helper()
	content, err := os.ReadFile(n.path())
	if err != nil {
		n.t.Fatal(err)
	}
	to := filepath.Join(n.t.TempDir(), name)
	if err := os.WriteFile(to, content, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return to
}

// checkJumped looks at a numbering that stood at head when the copy was made.
func (n *numbered) checkJumped(agentNo, head int64) {
	n.t.Helper()
	o := n.openAt(agentNo, head-1)
	if o.Head < head+jump || (o.Head-head)%jump != 0 {
		n.t.Errorf("agent %d: head %d after %d", agentNo, o.Head, head)
	}
	// E.5 case 1b: all that was issued before is behind the gap, and nothing of it is kept.
	want := []feed.Gap{{From: head - 1, ResumedAt: o.Head, AllRooms: true, Reset: true}}
	if !reflect.DeepEqual(o.Gaps, want) || o.Cursor != o.Head {
		n.t.Errorf("agent %d: opening %+v, want %+v", agentNo, o, want)
	}
	if o := n.openAt(agentNo, head+1000); len(o.Gaps) != 1 || !o.Gaps[0].Reset {
		n.t.Errorf("agent %d: a cursor from after the copy: %+v", agentNo, o)
	}
	if o := n.openAt(agentNo, 0); len(o.Gaps) != 1 || o.Gaps[0].AllRooms || len(o.Gaps[0].Rooms) != 1 || o.Cursor != head {
		n.t.Errorf("agent %d: from 0: %+v", agentNo, o)
	}
	if o := n.openAt(agentNo, o.Head); len(o.Gaps) != 0 {
		n.t.Errorf("agent %d: from the new head: %+v", agentNo, o)
	}
}

func TestAPlainRestartJumpsNothing(t *testing.T) {
	t.Parallel()
	n := newNumbered(t)
	n.start()
	n.populate(3, 5)
	stamps := map[string]bool{}
	for range 3 {
		n.stop()
		content, err := os.ReadFile(filepath.Join(n.dir, RoomsStampFile))
		if err != nil || stamps[string(content)] {
			t.Errorf("stamp %s, %v", content, err)
		}
		stamps[string(content)] = true
		n.start()
		if o := n.openAt(2, 3); o.Head != 5 || o.Cursor != 3 || len(o.Gaps) != 0 {
			t.Errorf("opening %+v", o)
		}
	}
	n.post(5)
	if o := n.openAt(2, 0); o.Head != 6 || n.noticed() {
		t.Errorf("opening %+v", o)
	}
}

func TestAKillBetweenTheCountAndTheFileJumpsNothing(t *testing.T) {
	t.Parallel()
	n := newNumbered(t)
	n.start()
	n.populate(1, 5)
	n.stop()
	stamp := filepath.Join(n.dir, RoomsStampFile)
	before, err := os.ReadFile(stamp)
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	n.stop()
	if err := os.WriteFile(stamp, before, 0o600); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(n.dir, "."+RoomsStampFile+".123.tmp")
	if err := os.WriteFile(left, before, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if o := n.openAt(1, 0); o.Head != 5 || len(o.Gaps) != 0 || n.noticed() {
		t.Errorf("opening %+v", o)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the file of the killed start is still there")
	}
}

func TestRestoresAreNoticed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	stamp := func(n *numbered) string { return filepath.Join(n.dir, RoomsStampFile) }
	for name, put := range map[string]func(t *testing.T, n *numbered){
		"a raw copy from before": func(t *testing.T, n *numbered) {
			copied := n.copyTo("raw.db")
			n.start()
			n.post(90)
			n.stop()
			if err := os.Rename(copied, n.path()); err != nil {
				t.Fatal(err)
			}
		},
		"signalbox restore": func(t *testing.T, n *numbered) {
			n.start()
			backup := filepath.Join(t.TempDir(), "backup.db")
			if err := n.db.Backup(ctx, backup); err != nil {
				t.Fatal(err)
			}
			n.post(90)
			n.stop()
			if _, err := store.Restore(ctx, backup, n.path(), time.Now()); err != nil {
				t.Fatal(err)
			}
		},
		"signalbox restore of a raw copy": func(t *testing.T, n *numbered) {
			copied := n.copyTo("raw.db")
			if _, err := store.Restore(ctx, copied, n.path(), time.Now()); err != nil {
				t.Fatal(err)
			}
		},
		"a backup put there by hand": func(t *testing.T, n *numbered) {
			n.start()
			backup := filepath.Join(t.TempDir(), "backup.db")
			if err := n.db.Backup(ctx, backup); err != nil {
				t.Fatal(err)
			}
			n.stop()
			if err := os.Rename(backup, n.path()); err != nil {
				t.Fatal(err)
			}
		},
		"a new directory": func(_ *testing.T, n *numbered) {
			copied := n.copyTo(DatabaseFile)
			n.dir = filepath.Dir(copied)
		},
		"no file": func(t *testing.T, n *numbered) {
			if err := os.Remove(stamp(n)); err != nil {
				t.Fatal(err)
			}
		},
		"a file that says nothing": func(t *testing.T, n *numbered) {
			if err := os.WriteFile(stamp(n), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNumbered(t)
			n.start()
			n.populate(2, 5)
			n.stop()
			put(t, n)
			if n.noticed() {
				t.Fatal("noticed too early")
			}
			n.start()
			if !n.noticed() {
				t.Error("not noticed")
			}
			n.checkJumped(1, 5)
			n.checkJumped(2, 5)
			head := n.openAt(1, 0).Head
			n.post(91)
			n.stop()
			n.start()
			if o := n.openAt(1, head); o.Head != head+1 || len(o.Gaps) != 0 || n.noticed() {
				t.Errorf("the restart after it: %+v", o)
			}
		})
	}
}

// TestACrashInTheRecovery fails every commit of it in turn, as often as it takes, before or after it is durable.
func TestACrashInTheRecovery(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("after=", after), func(t *testing.T) {
			t.Parallel()
			n := newNumbered(t)
			n.start()
			n.populate(450, 3)
			n.stop()
			if err := os.Remove(filepath.Join(n.dir, RoomsStampFile)); err != nil {
				t.Fatal(err)
			}
			boom := errors.New("boom")
			starts := 0
			for failing := true; failing; starts++ {
				commits := 0
				crash := func([]string) error {
					if commits++; commits > starts {
						return boom
					}
					return nil
				}
				hooks := store.Hooks{BeforeCommit: crash}
				if after {
					hooks = store.Hooks{AfterCommitBeforeReply: crash}
				}
				n.open(hooks)
				failing = n.recover() != nil
				_ = n.db.Close()
				if starts > 20 {
					t.Fatal("it does not end")
				}
			}
			if starts < 4 {
				t.Errorf("only %d starts", starts)
			}
			n.log.Reset()
			n.start()
			if n.noticed() {
				t.Error("the start after it has noticed something")
			}
			for _, agentNo := range []int64{1, 200, 201, 450} {
				n.checkJumped(agentNo, 3)
			}
			heads := map[int64]int{}
			for agentNo := int64(1); agentNo <= 450; agentNo++ {
				heads[n.openAt(agentNo, 0).Head]++
			}
			t.Logf("%d starts, heads %v", starts, heads)
		})
	}
}

// TestAnInterruptedRecoveryIsFinished has the next start find nothing strange but the decision itself.
func TestAnInterruptedRecoveryIsFinished(t *testing.T) {
	t.Parallel()
	n := newNumbered(t)
	n.start()
	n.populate(3, 5)
	if err := n.db.Update(context.Background(), "test", func(tx *store.Tx) error { return tx.FeedSetRecovery(1) }); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start()
	n.checkJumped(2, 5)
	n.checkJumped(3, 5)
	if o := n.openAt(1, 5); o.Head != 5 {
		t.Errorf("the agent that was done has jumped again: %+v", o)
	}
}

func TestAStampThatCannotBeReadStopsTheStart(t *testing.T) {
	t.Parallel()
	n := newNumbered(t)
	n.open(store.Hooks{})
	if err := os.Mkdir(filepath.Join(n.dir, RoomsStampFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := n.recover(); err == nil {
		t.Error("started")
	}
}
