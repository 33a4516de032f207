package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"modernc.org/sqlite"

	"signalbox/appliance/fault"
)

func TestFaultCodeCoversEverySQLiteCode(t *testing.T) {
	t.Parallel()
	want := map[int]fault.Code{
		1: fault.Internal, 2: fault.Internal, 3: fault.Unavailable, 4: fault.Unavailable, 5: fault.Unavailable,
		6: fault.Unavailable, 7: fault.Unavailable, 8: fault.Unavailable, 9: fault.Unavailable, 10: fault.Corrupt,
		11: fault.Corrupt, 12: fault.Internal, 13: fault.Unavailable, 14: fault.Unavailable, 15: fault.Unavailable,
		16: fault.Internal, 17: fault.Unavailable, 18: fault.Invalid, 19: fault.Invalid, 20: fault.Invalid,
		21: fault.Internal, 22: fault.Corrupt, 23: fault.Internal, 24: fault.Internal, 25: fault.Internal,
		26: fault.Corrupt, 27: fault.Internal, 28: fault.Internal, 100: fault.Internal, 101: fault.Internal,
	}
	for code := range sqlite.ErrorCodeString {
		w, ok := want[code]
		if !ok {
			w, ok = want[code&codePrimaryMask]
		}
		switch code {
		case codeIOErrNoMem:
			w = fault.Unavailable
		}
		if !ok {
			t.Errorf("code %d has no expectation: decide what it means", code)
			continue
		}
		if got := faultCode(code); got != w {
			t.Errorf("code %d maps to %s, want %s", code, got, w)
		}
	}
	extended := map[int]fault.Code{
		19 | 1<<8: fault.Invalid, 19 | 3<<8: fault.Invalid, 19 | 5<<8: fault.Invalid, 19 | 6<<8: fault.Conflict,
		19 | 7<<8: fault.Invalid, 19 | 8<<8: fault.Conflict, 19 | 10<<8: fault.Conflict, 19 | 12<<8: fault.Invalid,
		10 | 4<<8: fault.Corrupt, 10 | 12<<8: fault.Unavailable, 8 | 4<<8: fault.Corrupt, 8 | 1<<8: fault.Unavailable,
		5 | 2<<8: fault.Unavailable, 11 | 1<<8: fault.Corrupt, 14 | 2<<8: fault.Unavailable,
	}
	for code, w := range extended {
		if got := faultCode(code); got != w {
			t.Errorf("extended code %d maps to %s, want %s", code, got, w)
		}
	}
}

func TestMapErrorKeepsCauseAndIsIdempotent(t *testing.T) {
	t.Parallel()
	own := fault.New(fault.Stale, "old lease")
	tests := []struct {
		in   error
		code fault.Code
	}{
		{sql.ErrNoRows, fault.NotFound},
		{fmt.Errorf("read: %w", sql.ErrNoRows), fault.NotFound},
		{context.Canceled, fault.Canceled},
		{context.DeadlineExceeded, fault.Canceled},
		{errors.New("odd"), fault.Internal},
		{fmt.Errorf("claim: %w", own), fault.Stale},
	}
	for _, tt := range tests {
		once := mapError(tt.in)
		twice := mapError(fmt.Errorf("outer: %w", once))
		if fault.CodeOf(once) != tt.code || fault.CodeOf(twice) != tt.code || !errors.Is(twice, tt.in) {
			t.Errorf("mapError(%v) = %v, then %v; want code %s and the cause kept", tt.in, once, twice, tt.code)
		}
	}
	if mapError(nil) != nil {
		t.Error("mapError(nil) is an error")
	}
}

func TestConstraintsBecomeFaults(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	uid := make([]byte, 16)
	mustUpdate(t, db, func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO items(id, uid, name) VALUES(1, ?, 'a')", uid)
		return err
	})
	tests := []struct {
		query string
		args  []any
		code  fault.Code
	}{
		{"INSERT INTO items(uid, name) VALUES(?, 'b')", []any{uid}, fault.Conflict},
		{"INSERT INTO items(id, name) VALUES(1, 'b')", nil, fault.Conflict},
		{"INSERT INTO meta(key, value) VALUES('epoch', x'00')", nil, fault.Conflict},
		{"INSERT INTO items(name) VALUES(NULL)", nil, fault.Invalid},
		{"INSERT INTO items(uid, name) VALUES(x'00', 'b')", nil, fault.Invalid},
		{"INSERT INTO items(name, at) VALUES('b', 'noon')", nil, fault.Invalid},
		{"INSERT INTO parts(item, n) VALUES(99, 1)", nil, fault.Invalid},
		{"INSERT INTO parts(item, n) VALUES(1, 0)", nil, fault.Invalid},
		{"INSERT INTO items(name, data) VALUES('b', zeroblob(2000000000))", nil, fault.Invalid},
		{"INSERT INTO nowhere VALUES(1)", nil, fault.Internal},
		{`INSERT INTO items(name) VALUES("misspelled")`, nil, fault.Internal},
	}
	for _, tt := range tests {
		err := db.Update(context.Background(), "test", func(tx *Tx) error {
			_, err := tx.Exec(tt.query, tt.args...)
			return err
		})
		if !fault.Is(err, tt.code) {
			t.Errorf("%s: %v (%s), want %s", tt.query, err, fault.CodeOf(err), tt.code)
		}
	}
	err := db.View(context.Background(), func(tx *ReadTx) error {
		var n int
		return tx.QueryRow("SELECT id FROM items WHERE id = 77").Scan(&n)
	})
	if !fault.Is(err, fault.NotFound) || !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("missing row: %v", err)
	}
	if got := itemNames(t, db); len(got) != 1 {
		t.Errorf("refused writes left %v", got)
	}
}
