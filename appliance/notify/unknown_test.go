package notify_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/notify"
	"signalbox/store"
)

// unknown has the next COMMIT end with nobody knowing whether it happened.
func (g *rig) unknown(applied bool) {
	if applied {
		g.after.Arm(errors.New("lost the reply"), 1)
	} else {
		g.lost.Store(true)
	}
}

// lostUpdate is an Update whose COMMIT did not happen, without anybody knowing: its hints run all the same.
func lostUpdate(st notify.Store, op string, fn func(notify.Tx) error) error {
	errLost := errors.New("lost")
	var hints []func()
	err := st.Update(ctx, op, func(tx notify.Tx) error {
		if err := fn(lostTx{tx, &hints}); err != nil {
			return err
		}
		return errLost
	})
	if !errors.Is(err, errLost) {
		return err
	}
	for _, hint := range hints {
		hint()
	}
	return fault.New(fault.OutcomeUnknown, "lost the disk")
}

type lostTx struct {
	notify.Tx
	hints *[]func()
}

func (tx lostTx) Hint(fn func())  { *tx.hints = append(*tx.hints, fn) }
func (lostTx) AfterCommit(func()) {}

// groups are the names of what was collected and is due.
func (g *rig) groups() (names []string) {
	g.t.Helper()
	g.must(store.Bind[notify.Tx, notify.ReadTx](g.db).Update(ctx, "test", func(tx notify.Tx) error {
		due, err := tx.NotifyDueGroups(tx.Now(), 100)
		for _, d := range due {
			_, name, _ := strings.Cut(d.Key, "\n")
			names = append(names, name)
		}
		return err
	}))
	slices.Sort(names)
	return names
}

// A change of a rule whose COMMIT nobody knows the outcome of counts when it is stored, and only then, from the next
// transaction on.
func TestRulesAfterUnknownOutcomes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		applied bool
		want    []string
	}{
		"applied":     {true, []string{"new-1", "other-1"}},
		"not applied": {false, []string{"old-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			ops := g.channel("ops")
			r := g.rule("r", notify.TaskFailed, "old-*", time.Hour, ops)
			g.unknown(tt.applied)
			_, err := g.s.UpdateRule(ctx, root, g.project.No, r.ID, notify.RulePatch{Pattern: agent.SetTo("new-*")})
			wantUnknown(t, err)
			g.unknown(tt.applied)
			_, err = g.s.CreateRule(ctx, root, g.project.No, notify.Rule{Name: "s", Trigger: notify.TaskFailed, Pattern: "other-*",
				Group: time.Hour, IsEnabled: true, Channels: r.Channels})
			wantUnknown(t, err)
			g.fails("old-1", "new-1", "other-1")
			if got := g.groups(); !slices.Equal(got, tt.want) {
				t.Errorf("collected %q, want %q", got, tt.want)
			}
			g.unknown(tt.applied)
			wantUnknown(t, g.s.DeleteRule(ctx, root, g.project.No, r.ID))
			want := []string{"old-1", "old-2"}
			if tt.applied { // with what it had collected
				want = []string{"other-1"}
			}
			g.fails("old-2", "new-2")
			if got := g.groups(); !slices.Equal(got, want) {
				t.Errorf("collected %q after the deletion, want %q", got, want)
			}
			g.rule("t", notify.TaskFailed, "later-*", time.Hour, ops) // ends the doubt
			g.fails("later-1")
			if got := g.groups(); !slices.Contains(got, "later-1") {
				t.Errorf("collected %q", got)
			}
		})
	}
}

// The dispatcher reads the rules again: what is sent without the database knows them, too.
func TestTroubleRulesAfterUnknownOutcomes(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"dispatcher", "trouble"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			ops := g.channel("ops")
			if by == "dispatcher" {
				g.run(g.s.Run)
			}
			g.unknown(true)
			_, err := g.s.CreateRule(ctx, root, g.project.No, notify.Rule{Name: "r", Trigger: notify.SystemTrouble, Group: time.Hour,
				IsEnabled: true, Channels: []uuid.UUID{ops.ID}})
			wantUnknown(t, err)
			if by == "trouble" {
				g.before.Arm(errors.New("no commit"), 1)
				g.s.Trouble(ctx, notify.TroubleDisk, "no space")
				g.out.await(1)
				g.s.WaitDirect(ctx)
				return
			}
			for late := time.After(2 * time.Minute); ; {
				g.s.Direct(notify.TroubleDisk, "no space")
				g.s.WaitDirect(ctx)
				if len(g.out.await(0)) > 0 {
					return
				}
				select {
				case <-g.views:
				case <-late:
					t.Fatal("the rules were not read again")
				}
			}
		})
	}
}

func wantUnknown(t *testing.T, err error) {
	t.Helper()
	if !fault.Is(err, fault.OutcomeUnknown) {
		t.Fatalf("error %v", err)
	}
}
