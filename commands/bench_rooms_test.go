package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// nothingLeft checks that a run took away its agents and rooms.
func nothingLeft(t *testing.T, r *run) {
	t.Helper()
	for _, kind := range []string{"roomagents", "rooms", "connections"} {
		var left struct {
			Items []json.RawMessage `json:"items"`
		}
		runJSON(t, r, ExitOK, &left, kind, "list")
		if len(left.Items) != 0 {
			t.Errorf("%s left: %s", kind, left.Items)
		}
	}
}

func TestBenchRoomsMeasuresAndCleansUp(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	for _, transport := range []string{"ws", "sse"} {
		var doc struct {
			Transport string `json:"transport"`
			Posts     struct {
				Stored int64     `json:"stored"`
				ToAck  quantiles `json:"post_to_ack"`
			} `json:"posts"`
			Deliveries struct {
				Received  int64     `json:"received"`
				ToReceipt quantiles `json:"post_to_receipt"`
			} `json:"deliveries"`
			Storms                   []stormResult `json:"resume_storms"`
			Gaps, Missing, Broken    int64
			OutOfOrder               int64 `json:"out_of_order"`
			Senders, Receivers, Room int
		}
		args := []string{"bench", "rooms", "--rooms", "2", "--senders", "3", "--receivers", "6", "--duration", "1s", "--rate", "100",
			"--resume-storms", "2", "--behind", "7"}
		if transport == "sse" {
			args = append(args, "--sse")
		}
		runJSON(t, r, ExitOK, &doc, args...)
		// Of 6 receivers 3 are in each room, so each post makes 3 deliveries.
		if doc.Transport != transport || doc.Posts.Stored == 0 || doc.Deliveries.Received != 3*doc.Posts.Stored || doc.Receivers != 6 {
			t.Errorf("%s: %+v", transport, doc)
		}
		if doc.Posts.ToAck.P50 <= 0 || doc.Deliveries.ToReceipt.P50 <= 0 || doc.Gaps+doc.Missing+doc.OutOfOrder != 0 {
			t.Errorf("%s: %+v", transport, doc)
		}
		if len(doc.Storms) != 2 {
			t.Fatalf("%s: storms %+v", transport, doc.Storms)
		}
		for _, s := range doc.Storms {
			if s.Receivers != 6 || s.Received != 6*7 || s.Each.Max <= 0 {
				t.Errorf("%s: storm %+v", transport, s)
			}
		}
		nothingLeft(t, r)
	}
}

func TestBenchRoomsForPeople(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	opts, out, talk := r.options("", false)
	if got := opts.execute(t.Context(), []string{"bench", "rooms", "--receivers", "2", "--senders", "1", "--duration", "100ms",
		"--resume-storms", "1", "--behind", "1"}); got != ExitOK {
		t.Fatalf("exit code %d: %s%s", got, out, talk)
	}
	for _, want := range []string{"posts stored ", "post to ack ", "deliveries ", "post to receipt ", "resume storm 1   2 receivers, 2 deliveries",
		"gaps             0; 0 missing, 0 out of order"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in: %s", want, out)
		}
	}
	nothingLeft(t, r)
}

// interruptAt cancels when a line is written.
type interruptAt struct {
	bytes.Buffer
	word   string
	cancel context.CancelFunc
}

func (i *interruptAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.word) {
		i.cancel()
	}
	return i.Buffer.Write(p)
}

// An interrupt leaves nothing behind, whether it comes while agents are registered or while they post.
func TestBenchRoomsCleansUpAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	for _, word := range []string{"registering", "receivers over"} {
		ctx, cancel := context.WithCancel(t.Context())
		opts, _, _ := r.options("", false)
		talk := &interruptAt{word: word, cancel: cancel}
		opts.stdio.Err, opts.out.stdio.Err = talk, talk
		begun := time.Now()
		got := opts.execute(ctx, []string{"bench", "rooms", "--receivers", "20", "--senders", "2", "--duration", "1h"})
		cancel()
		if got == ExitOK || time.Since(begun) > 2*time.Minute {
			t.Errorf("%s: exit code %d after %s: %s", word, got, time.Since(begun), &talk.Buffer)
		}
		nothingLeft(t, r)
	}
}

func TestBenchRoomsRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	for flags, want := range map[string]string{
		"--rooms 0":                               "--rooms",
		"--rooms 3 --senders 2":                   "--senders",
		"--receivers 10001":                       "--receivers",
		"--receivers 5200 --senders 1":            "--rooms",
		"--duration -1s":                          "--duration",
		"--rate -1":                               "--rate",
		"--size 0":                                "--size",
		"--resume-storms 101":                     "--resume-storms",
		"--resume-storms 1 --receivers 0":         "--resume-storms",
		"--behind 1901":                           "--behind",
		"--receivers 1 --agent-url ftp://a.local": "--agent-url",
	} {
		opts, _, talk := r.options("", false)
		if got := opts.execute(t.Context(), append([]string{"bench", "rooms"}, strings.Fields(flags)...)); got != ExitUsage ||
			!strings.Contains(talk.String(), want) {
			t.Errorf("%s: exit code %d: %s", flags, got, talk)
		}
	}
}
