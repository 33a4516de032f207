package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func master(s string) secret.Bytes { return secret.NewBytes([]byte(strings.Repeat(s, 32))) }

// book is a log on a database of its own.
type book struct {
	t   *testing.T
	db  *store.DB
	st  store.Bound[audit.PruneTx, audit.ReadTx]
	log *audit.Log
	clk *clock.Fake
}

func newBook(t *testing.T) *book {
	t.Helper()
	clk := clock.NewFake(start)
	db := storetest.Open(t, func(o *store.Options) { o.Clock = clk })
	return &book{t: t, db: db, st: store.Bind[audit.PruneTx, audit.ReadTx](db), clk: clk,
		log: audit.New(audit.NewKeys(master("a")))}
}

func entry(i int) audit.Entry {
	user, target, ip, agent := "user-1", fmt.Sprintf("target-%d", i), "192.0.2.1", "curl/8"
	return audit.Entry{UserID: &user, Action: "thing.done", TargetType: "thing", TargetID: &target,
		Result: audit.Success, Outcome: audit.Allow, Metadata: []byte(`{"a":1}`), SourceIP: &ip, UserAgent: &agent}
}

func (b *book) append(e audit.Entry) {
	b.t.Helper()
	err := b.db.Update(context.Background(), "test", func(tx *store.Tx) error { return b.log.Append(tx, e) })
	if err != nil {
		b.t.Fatal(err)
	}
}

// fill appends n rows, one a second.
func (b *book) fill(n int) {
	b.t.Helper()
	for i := range n {
		b.append(entry(i))
		b.clk.Advance(time.Second)
	}
}

// sql changes the database behind the log's back.
func (b *book) sql(statements ...string) {
	b.t.Helper()
	err := b.db.Update(context.Background(), "tamper", func(tx *store.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *book) verify() audit.Report {
	b.t.Helper()
	r, err := b.log.Verify(context.Background(), b.st)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *book) wantBroken(no int64, why audit.Reason) {
	b.t.Helper()
	r := b.verify()
	if r.Broken == nil {
		b.t.Fatalf("chain holds, want %s at %d", why, no)
	}
	if *r.Broken != (audit.Broken{No: no, Reason: why}) {
		b.t.Fatalf("broken %+v, want %s at %d", *r.Broken, why, no)
	}
}

func TestVerifyHoldsFromTheFirstRowToTheLast(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	if r := b.verify(); !r.OK() || r.Checked != 0 {
		t.Fatalf("empty log: %+v", r)
	}
	const n = 1203 // more than two pages
	err := b.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		for i := range n {
			if err := b.log.Append(tx, entry(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.verify(); !r.OK() || r.Checked != n || r.FirstNo != 1 || r.LastNo != n {
		t.Fatalf("%+v", r)
	}
}

func TestAppendRollsBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.fill(2)
	boom := errors.New("boom")
	err := b.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		if err := b.log.Append(tx, entry(9)); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	b.fill(2)
	if r := b.verify(); !r.OK() || r.LastNo != 4 {
		t.Fatalf("%+v", r)
	}
}

func TestAnyChangedColumnIsFound(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		`event_id = randomblob(16)`, `project_no = 1`, `user_id = 'user-2'`, `user_id = NULL`, `user_id = ''`,
		`action = 'thing.undone'`, `target_type = 'thin'`, `target_id = NULL`, `target_id = 'target-2x'`, `result = 'failed'`,
		`outcome = 'deny'`, `metadata = '{"a":2}'`, `metadata = '{"a": 1}'`, `source_ip = '192.0.2.2'`, `source_ip = NULL`,
		`user_agent = 'curl/9'`, `user_agent = NULL`, `occurred_at = occurred_at + 1`, `mac = randomblob(32)`,
		`action = 'thing.donething', target_type = ''`, // the same bytes, cut elsewhere
		`user_agent = source_ip, source_ip = user_agent`,
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			b.sql(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active,
				default_scheduler_owner, created_at, updated_at) VALUES (randomblob(16), 'abc', 'A', 'p', 'UTC', 30, 1, 's', 1, 1)`)
			b.fill(5)
			b.sql(`UPDATE audit_log SET ` + set + ` WHERE audit_no = 3`)
			b.wantBroken(3, audit.RowChanged)
		})
	}
}

func TestBrokenChainIsPlaced(t *testing.T) {
	t.Parallel()
	// swap exchanges the contents of two rows, macs included.
	const swap = `UPDATE audit_log SET audit_no = CASE audit_no WHEN 2 THEN -4 ELSE -2 END WHERE audit_no IN (2, 4)`
	const unswap = `UPDATE audit_log SET audit_no = -audit_no WHERE audit_no < 0`
	for _, tc := range []struct {
		name   string
		tamper []string
		no     int64
		why    audit.Reason
	}{
		{"deleted in the middle", []string{`DELETE FROM audit_log WHERE audit_no = 3`}, 3, audit.RowMissing},
		{"deleted at the start", []string{`DELETE FROM audit_log WHERE audit_no <= 2`}, 1, audit.RowMissing},
		{"deleted and renumbered", []string{`DELETE FROM audit_log WHERE audit_no = 3`,
			`UPDATE audit_log SET audit_no = audit_no - 1 WHERE audit_no > 3`}, 3, audit.RowChanged},
		{"tail cut", []string{`DELETE FROM audit_log WHERE audit_no = 5`}, 5, audit.TailCut},
		{"tail cut and counter put back", []string{`DELETE FROM audit_log WHERE audit_no >= 4`,
			`UPDATE sqlite_sequence SET seq = 3 WHERE name = 'audit_log'`}, 4, audit.TailCut},
		{"tail cut and head removed", []string{`DELETE FROM audit_log WHERE audit_no = 5`,
			`DELETE FROM meta WHERE key = 'audit_head'`}, 1, audit.MarkChanged},
		{"everything deleted", []string{`DELETE FROM audit_log`}, 1, audit.TailCut},
		{"reordered", []string{swap, unswap}, 2, audit.RowChanged},
		{"older row put later", []string{`DELETE FROM audit_log WHERE audit_no = 4`,
			`INSERT INTO audit_log SELECT 4, event_id, project_no, user_id, action, target_type, target_id, result, outcome,
			metadata, source_ip, user_agent, occurred_at, key_id, mac FROM audit_log WHERE audit_no = 2`}, 4, audit.OutOfOrder},
		{"row added", []string{`INSERT INTO audit_log SELECT 6, event_id, project_no, user_id, action, target_type, target_id,
			result, outcome, metadata, source_ip, user_agent, occurred_at, key_id, mac FROM audit_log WHERE audit_no = 5`},
			6, audit.RowChanged},
		{"unknown key", []string{`UPDATE audit_log SET key_id = '00000000' WHERE audit_no = 3`}, 3, audit.UnknownKey},
		{"head changed", []string{`UPDATE meta SET value = zeroblob(length(value)) WHERE key = 'audit_head'`}, 5,
			audit.MarkChanged},
		{"anchor forged", []string{`DELETE FROM audit_log WHERE audit_no <= 2`,
			`INSERT INTO meta (key, value) SELECT 'audit_anchor', value FROM meta WHERE key = 'audit_head'`}, 5,
			audit.MarkChanged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			b.fill(5)
			b.sql(tc.tamper...)
			b.wantBroken(tc.no, tc.why)
		})
	}
}

func TestSecretsMayBeRotated(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.fill(3)
	b.log = audit.New(audit.NewKeys(master("b"), master("a")))
	b.fill(3)
	if r := b.verify(); !r.OK() || r.Checked != 6 {
		t.Fatalf("%+v", r)
	}
	b.log = audit.New(audit.NewKeys(master("b")))
	b.wantBroken(1, audit.UnknownKey)
}

func TestPruneKeepsTheChain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBook(t)
	b.fill(10)
	before := start.Add(6 * time.Second)            // rows 1..6
	total, err := b.log.Prune(ctx, b.st, before, 4) // two slices
	if err != nil {
		t.Fatal(err)
	}
	if r := b.verify(); total != 6 || !r.OK() || r.FirstNo != 7 || r.Checked != 4 {
		t.Fatalf("removed %d: %+v", total, r)
	}
	// Nothing left at all: numbers and chain go on.
	if n, err := b.log.Prune(ctx, b.st, start.Add(time.Hour), 2); err != nil || n != 4 {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := b.log.Prune(ctx, b.st, start.Add(time.Hour), 2); err != nil || n != 0 {
		t.Fatalf("%d, %v", n, err)
	}
	if r := b.verify(); !r.OK() || r.Checked != 0 {
		t.Fatalf("%+v", r)
	}
	b.fill(2)
	if r := b.verify(); !r.OK() || r.FirstNo != 11 || r.LastNo != 12 {
		t.Fatalf("%+v", r)
	}
	// The anchor proves what retention took, and nothing more.
	b.sql(`DELETE FROM audit_log WHERE audit_no = 11`)
	b.wantBroken(11, audit.RowMissing)
	b.sql(`DELETE FROM meta WHERE key = 'audit_anchor'`)
	b.wantBroken(1, audit.RowMissing)
}

func TestPruneStopsAtTheFirstYoungRow(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.fill(4)
	// Somebody ages a row to have retention remove it.
	b.sql(`UPDATE audit_log SET occurred_at = 1 WHERE audit_no = 3`)
	n, err := b.log.Prune(context.Background(), b.st, start.Add(time.Second), 100)
	if err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	b.wantBroken(3, audit.OutOfOrder)
}

func TestListFiltersAndPages(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBook(t)
	b.sql(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active, default_scheduler_owner,
		created_at, updated_at) VALUES (randomblob(16), 'abc', 'A', 'p', 'UTC', 30, 1, 's', 1, 1)`)
	add := func(project int64, action, outcome, user string) {
		e := entry(0)
		e.ProjectNo, e.Action, e.Outcome = project, action, outcome
		if e.UserID = &user; user == "" {
			e.UserID = nil
		}
		b.append(e)
		b.clk.Advance(time.Second)
	}
	add(1, "project.created", audit.Allow, "u1")
	add(0, "auth.ip_denied", audit.Deny, "")
	add(1, "agent.token.minted", audit.Allow, "u2")
	add(1, "agent.token.revoked", audit.Allow, "u1")
	add(1, "agent%", audit.Error, "u1")
	for _, tc := range []struct {
		name string
		f    audit.Filter
		want []int64
	}{
		{"all", audit.Filter{}, []int64{5, 4, 3, 2, 1}},
		{"project hides rows without one", audit.Filter{ProjectNo: 1}, []int64{5, 4, 3, 1}},
		{"prefix", audit.Filter{ActionPrefix: "agent.token."}, []int64{4, 3}},
		{"prefix has no wildcards", audit.Filter{ActionPrefix: "agent%"}, []int64{5}},
		{"outcome", audit.Filter{Outcome: audit.Deny}, []int64{2}},
		{"user", audit.Filter{UserID: "u1"}, []int64{5, 4, 1}},
		{"since", audit.Filter{Since: start.Add(3 * time.Second)}, []int64{5, 4}},
		{"all together", audit.Filter{ProjectNo: 1, ActionPrefix: "agent", UserID: "u1", Outcome: audit.Allow, Since: start}, []int64{4}},
		{"none", audit.Filter{ProjectNo: 2}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []int64
			for before := int64(0); ; { // pages of two
				rows, err := b.log.List(ctx, b.st, tc.f, before, 2)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range rows {
					got = append(got, r.No)
					if (r.ProjectNo != 0) != (r.ProjectID != nil) {
						t.Errorf("row %d: project %d has id %v", r.No, r.ProjectNo, r.ProjectID)
					}
				}
				if len(rows) < 2 {
					break
				}
				before = rows[1].No
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			var exported []int64
			err := b.log.Export(ctx, b.st, tc.f, func(r *audit.Record) error {
				exported = append(exported, r.No)
				return nil
			})
			if err != nil || !slices.Equal(exported, tc.want) {
				t.Errorf("export %v, %v, want %v", exported, err, tc.want)
			}
		})
	}
}

func TestListLooksBeyondOneWindow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBook(t)
	b.append(entry(1))
	rare := entry(2)
	rare.Action = "rare"
	b.append(rare)
	// The list does not judge the chain, so the filling needs none.
	b.sql(`INSERT INTO audit_log (event_id, action, target_type, result, outcome, metadata, occurred_at, key_id, mac)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20500)
		SELECT zeroblob(16), 'often', 't', 'success', 'allow', '{}', 1767323045000006, 'k', zeroblob(32) FROM n`)
	rows, err := b.log.List(ctx, b.st, audit.Filter{ActionPrefix: "rare"}, 0, 10)
	if err != nil || len(rows) != 1 || rows[0].No != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.log.List(canceled, b.st, audit.Filter{ActionPrefix: "rare"}, 0, 10); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestIDLeadsBackToTheRow(t *testing.T) {
	t.Parallel()
	for _, no := range []int64{1, 2, 1 << 20, 1<<62 - 1} {
		r := audit.Row{No: no, At: start}
		if got, ok := audit.NoOf(r.ID()); !ok || got != no {
			t.Errorf("row %d: got %d, %v", no, got, ok)
		}
		if v := r.ID().Version(); v != 8 {
			t.Errorf("version %d", v)
		}
	}
	a, b := audit.Row{No: 9, At: start}, audit.Row{No: 10, At: start}
	if idA, idB := a.ID(), b.ID(); idA.String() >= idB.String() {
		t.Error("ids do not sort as rows do")
	}
	e := audit.Row{}
	if _, ok := audit.NoOf(e.EventID); ok {
		t.Error("the nil UUID names a row")
	}
}

func TestAppendBoundsStrangersText(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	e := entry(1)
	long, ip := strings.Repeat("é", 300)+"\x00", "\xff\x00"
	e.UserAgent, e.SourceIP, e.Metadata = &long, &ip, nil
	b.append(e)
	rows, err := b.log.List(context.Background(), b.st, audit.Filter{}, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := *rows[0].UserAgent; got != strings.Repeat("é", 256) {
		t.Errorf("user agent of %d bytes", len(got))
	}
	if got := *rows[0].SourceIP; got != "��" {
		t.Errorf("source %q", got)
	}
	if string(rows[0].Metadata) != "{}" {
		t.Errorf("metadata %s", rows[0].Metadata)
	}
	if r := b.verify(); !r.OK() {
		t.Errorf("%+v", r.Broken)
	}
}

func TestAppendRefusesIncompleteEntries(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	for name, change := range map[string]func(*audit.Entry){
		"no action":       func(e *audit.Entry) { e.Action = "" },
		"long action":     func(e *audit.Entry) { e.Action = strings.Repeat("a", 81) },
		"no target type":  func(e *audit.Entry) { e.TargetType = "" },
		"no result":       func(e *audit.Entry) { e.Result = "" },
		"unknown outcome": func(e *audit.Entry) { e.Outcome = "maybe" },
		"large metadata":  func(e *audit.Entry) { e.Metadata = make([]byte, audit.MaxMetadata+1) },
	} {
		e := entry(1)
		change(&e)
		err := b.db.Update(context.Background(), "test", func(tx *store.Tx) error { return b.log.Append(tx, e) })
		if !fault.Is(err, fault.Internal) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if r := b.verify(); r.Checked != 0 {
		t.Errorf("%d rows stored", r.Checked)
	}
}

// hookedStore runs a function after each View, while no snapshot is open.
type hookedStore struct {
	audit.Store
	after func()
}

func (h hookedStore) View(ctx context.Context, fn func(audit.ReadTx) error) error {
	defer h.after()
	return h.Store.View(ctx, fn)
}

func TestVerifyWhileTheLogMoves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBook(t)
	const n = 1700
	for range n {
		b.clk.Advance(time.Second)
		b.append(entry(1))
	}
	views := 0
	report, err := b.log.Verify(ctx, hookedStore{b.st, func() {
		views++
		b.append(entry(2)) // beyond where the walk ends
		if views == 2 {    // rows 1..500 were walked: retention takes 700
			if got, err := b.log.Prune(ctx, b.st, start.Add(701*time.Second), 1000); got != 700 || err != nil {
				t.Errorf("pruned %d, %v", got, err)
			}
		}
	}})
	if err != nil || !report.OK() || report.FirstNo != 1 || report.LastNo != n || report.Checked != n-200 {
		t.Errorf("%+v, %v after %d views", report, err, views)
	}
	canceled, cancel := context.WithCancel(ctx)
	_, err = b.log.Verify(canceled, hookedStore{b.st, cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkAppend(b *testing.B) {
	db := storetest.Open(b)
	log := audit.New(audit.NewKeys(master("a")))
	e := entry(1)
	for b.Loop() {
		err := db.Update(context.Background(), "bench", func(tx *store.Tx) error {
			for range 100 {
				if err := log.Append(tx, e); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/row")
}
