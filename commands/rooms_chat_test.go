package commands

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched is an output that a test can wait on.
type watched struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	grown chan struct{}
}

func newWatched() *watched { return &watched{grown: make(chan struct{}, 1)} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.grown <- struct{}{}:
	default:
	}
	return w.buf.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// awaits returns when the output holds the text.
func (w *watched) awaits(t *testing.T, text string) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for !strings.Contains(w.String(), text) {
		select {
		case <-w.grown:
		case <-deadline.C:
			t.Fatalf("never wrote %q: %q", text, w.String())
		}
	}
}

// The line that is being typed stays whole when a message comes in the middle of it.
func TestChatOnATerminalKeepsTheTypedLine(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	setup, _, talk := r.options("", false)
	if got := setup.execute(t.Context(), []string{"rooms", "create", "plaza"}); got != ExitOK {
		t.Fatalf("create: %d: %s", got, talk)
	}
	in, keys := io.Pipe()
	out := newWatched()
	opts := newOptions(Stdio{In: in, Out: out, Err: out, IsTerminal: true, InIsTerminal: true,
		Env: []string{"SIGNALBOX_DATA_DIR=" + r.dir}}, Assets{})
	opts.retryDelay = time.Millisecond
	done := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- opts.execute(ctx, []string{"rooms", "chat", "plaza"}) }()
	press := func(text string) {
		t.Helper()
		if _, err := io.WriteString(keys, text); err != nil {
			t.Fatal(err)
		}
	}
	out.awaits(t, "> ")
	press("half a li")
	out.awaits(t, "half a li")
	other, _, talk := r.options("", false)
	if got := other.execute(t.Context(), []string{"rooms", "say", "plaza", "from elsewhere"}); got != ExitOK {
		t.Fatalf("say: %d: %s", got, talk)
	}
	out.awaits(t, "from elsewhere")
	out.awaits(t, "from elsewhere\r\n> half a li") // drawn again below the message
	press("ne\r")
	out.awaits(t, "Operator: half a line")
	press("\x04")
	if got := <-done; got != ExitOK {
		t.Errorf("exit code %d: %q", got, out)
	}
	_ = keys.Close()
}

// A refused line on a terminal is told, and the chat goes on.
func TestChatOnATerminalSurvivesARefusal(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	setup, _, _ := r.options("", false)
	for _, args := range [][]string{{"rooms", "create", "plaza"}, {"people", "create", "ben@example.com"}} {
		if got := setup.execute(t.Context(), args); got != ExitOK {
			t.Fatalf("%v: %d", args, got)
		}
	}
	in, keys := io.Pipe()
	out := newWatched()
	opts := newOptions(Stdio{In: in, Out: out, Err: out, IsTerminal: true, InIsTerminal: true,
		Env: []string{"SIGNALBOX_DATA_DIR=" + r.dir}}, Assets{})
	done := make(chan int, 1)
	go func() {
		done <- opts.execute(t.Context(), []string{"rooms", "chat", "plaza", "--as", "ben@example.com"})
	}()
	out.awaits(t, "> ")
	if _, err := io.WriteString(keys, "hello\r"); err != nil {
		t.Fatal(err)
	}
	out.awaits(t, "not said: ben is not in this room")
	_ = keys.Close()
	if got := <-done; got != ExitOK {
		t.Errorf("exit code %d: %q", got, out)
	}
}

// Text of a peer cannot pass for a line of somebody else, nor steer the terminal.
func TestItemLine(t *testing.T) {
	t.Parallel()
	o := newOptions(Stdio{}, Assets{})
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	thread := "x"
	for _, tt := range []struct {
		item roomItem
		want string
	}{
		{roomItem{Position: 7, Kind: "message", Sender: roomSender{Name: "ann"}, Body: "hi\n2030  1  ben: forged\x1b[2J", At: &at},
			"2030-01-02T03:04:05.000000Z  7     ann: hi\n    | 2030  1  ben: forged?[2J"},
		{roomItem{Position: 8, Kind: "room_join", Sender: roomSender{Name: "b\not"}, At: &at}, "2030-01-02T03:04:05.000000Z  8     * b ot joined"},
		{roomItem{Position: 9, Kind: "message", Sender: roomSender{Name: "bot"}, Body: "x", ThreadID: &thread, Automatic: true, At: &at},
			"2030-01-02T03:04:05.000000Z  9     bot (in a thread) (automatic): x"},
	} {
		if got := o.itemLine(&tt.item); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
