package commands

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// maxChatLine bounds one line of piped input.
const maxChatLine = 1 << 20

func newRoomsChatCommand(opts *options) *cobra.Command {
	var (
		as   string
		last int
	)
	cmd := &cobra.Command{
		Use:   "chat ROOM",
		Short: "Talk in a room from the terminal",
		Long: `Talk in a room: what is said appears as it comes, and each line you type is said when you press Enter. On a terminal the line
that is being typed stays whole; Ctrl-D ends, and lines that begin with ! are commands (!help lists them).

With piped input each line is said in turn and what is said is written as plain lines; at the end of the input chat waits
until its own last line has come back, and ends.`,
		Example: `  signalbox rooms chat plaza
  signalbox rooms chat plaza --as ben@example.com
  printf '@build-bot status?\n' | signalbox rooms chat plaza`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return usagef("--last: must not be negative, got %d", last)
			}
			onTerminal := opts.stdio.IsTerminal && opts.stdio.InIsTerminal && !opts.json
			if !onTerminal && !cmd.Flags().Changed("last") {
				last = 0
			}
			s, err := opts.newSpeaker(cmd.Context(), args[0], as)
			if err != nil {
				return err
			}
			st, err := roomStream(s.client, s.room, &streamFlags{follow: true}, last)
			if err != nil {
				return err
			}
			screen, err := opts.openScreen(onTerminal)
			if err != nil {
				return err
			}
			defer screen.close()
			return opts.chat(cmd.Context(), st, s, screen)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "person who speaks: email, name or id (admins only; default: the operator person)")
	cmd.Flags().IntVar(&last, "last", 10, "begin with this many of the newest messages (piped: 0)")
	_ = cmd.RegisterFlagCompletionFunc("as", opts.completePeople())
	return cmd
}

// screen is where lines come from while others appear. readLine returns io.EOF when no more will come.
type screen struct {
	readLine func() (string, error)
	close    func()
}

// lockedWriter lets two goroutines write whole lines.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// openScreen turns the printer's output to a screen: a terminal in raw mode, or plain lines.
func (o *options) openScreen(onTerminal bool) (*screen, error) {
	if in, ok := o.stdio.In.(*os.File); ok && onTerminal {
		fd := int(in.Fd())
		before, err := term.MakeRaw(fd)
		if err != nil {
			return nil, exitf(ExitFailed, "set the terminal to raw mode: %v", err)
		}
		s := o.terminalScreen(func() (int, int, error) { return term.GetSize(fd) })
		closeScreen := s.close
		s.close = func() {
			closeScreen()
			_ = term.Restore(fd, before)
		}
		return s, nil
	}
	if onTerminal { // not a file: a terminal of a test
		return o.terminalScreen(func() (int, int, error) { return 80, 24, nil }), nil
	}
	var mu sync.Mutex
	o.out.stdio.Out, o.out.stdio.Err = lockedWriter{&mu, o.stdio.Out}, lockedWriter{&mu, o.stdio.Err}
	in := bufio.NewReaderSize(o.stdio.In, 64<<10)
	return &screen{readLine: func() (string, error) { return readInputLine(in) }, close: func() {
		o.out.stdio.Out, o.out.stdio.Err = o.stdio.Out, o.stdio.Err
	}}, nil
}

// readInputLine reads a line of piped input; the last one may lack its end.
func readInputLine(in *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxChatLine:
			return "", usagef("a line of the input is longer than %d bytes", maxChatLine)
		case err == nil, err == io.EOF && len(line) > 0:
			return strings.TrimRight(string(line), "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
}

// sizedTerminal asks for the size before each line: the window may have changed.
type sizedTerminal struct {
	*term.Terminal
	size func() (int, int, error)
}

func (t sizedTerminal) Write(p []byte) (int, error) {
	t.fit()
	return t.Terminal.Write(p)
}

func (t sizedTerminal) fit() {
	if width, height, err := t.size(); err == nil && width > 0 {
		_ = t.SetSize(width, height)
	}
}

// terminalScreen edits the line at the bottom and prints above it.
func (o *options) terminalScreen(size func() (int, int, error)) *screen {
	t := sizedTerminal{term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{o.stdio.In, o.stdio.Out}, "> "), size}
	t.fit()
	o.out.stdio.Out, o.out.stdio.Err = t, t
	return &screen{
		readLine: t.ReadLine,
		close: func() {
			o.out.stdio.Out, o.out.stdio.Err = o.stdio.Out, o.stdio.Err
			_, _ = io.WriteString(o.stdio.Out, "\r\n")
		},
	}
}

// shownUpTo is how far the room has been shown.
type shownUpTo struct {
	mu       sync.Mutex
	position int64
	moved    chan struct{} // closed and replaced at each move
}

func (s *shownUpTo) set(position int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.position = position
	close(s.moved)
	s.moved = make(chan struct{})
}

// behind returns what to wait for while the position has not been shown, nil when it has.
func (s *shownUpTo) behind(position int64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.position >= position {
		return nil
	}
	return s.moved
}

// chat shows the room and says each line, until the input or ctx ends.
func (o *options) chat(ctx context.Context, st *stream, sp speaker, sc *screen) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	shown := &shownUpTo{moved: make(chan struct{})}
	opened := make(chan struct{})
	st.delay, st.notice, st.reached = o.retryDelay, o.out.say, func() { close(opened) }
	ended := make(chan error, 1)
	go func() {
		ended <- st.run(ctx, func(rec *streamRecord) error {
			if err := o.showItem(rec); err != nil {
				return err
			}
			if i, err := rec.item(); rec.Type == "item" && err == nil {
				shown.set(i.Position)
			}
			return nil
		})
	}()
	err, over := o.chatLines(ctx, opened, ended, sp, sc, shown)
	cancel()
	if !over {
		<-ended // it prints no more
	}
	if errors.Is(err, context.Canceled) {
		return nil // interrupted: the normal end
	}
	return err
}

// chatLines says the lines. over tells that the stream has ended.
func (o *options) chatLines(ctx context.Context, opened <-chan struct{}, ended <-chan error, sp speaker, sc *screen,
	shown *shownUpTo) (err error, over bool) {
	select {
	case <-opened: // nothing that is said from here on can be missed
	case err := <-ended:
		return err, true
	}
	lines, failed := make(chan string), make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			line, err := sc.readLine()
			if err != nil {
				failed <- err
				return
			}
			select {
			case lines <- line:
			case <-done:
				return
			}
		}
	}()
	var said int64
	for {
		select {
		case err := <-ended:
			return err, true
		case line := <-lines:
			if strings.TrimSpace(line) == "" {
				continue
			}
			p, err := o.sayUntilSure(ctx, sp, line)
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err(), false
				}
				if !o.stdio.InIsTerminal {
					return err, false
				}
				o.out.say("not said: %v", err)
				continue
			}
			said = p
		case err := <-failed:
			if err != io.EOF {
				return err, false
			}
			if o.stdio.InIsTerminal {
				return nil, false
			}
			return o.awaitShown(shown, said, ended)
		}
	}
}

// awaitShown waits until what was said last has been shown.
func (o *options) awaitShown(shown *shownUpTo, position int64, ended <-chan error) (err error, over bool) {
	timeout := time.NewTimer(o.requestTimeout)
	defer timeout.Stop()
	for {
		moved := shown.behind(position)
		if moved == nil {
			return nil, false
		}
		select {
		case <-moved:
		case err := <-ended:
			return err, true
		case <-timeout.C:
			return exitf(ExitTimeout, "position %d was not shown within %s", position, o.requestTimeout), false
		}
	}
}

// saysPerLine is how often a line is tried while nobody knows whether it was stored.
const saysPerLine = 8

// sayUntilSure says a line once, however often it has to ask: each try carries the same request id.
func (o *options) sayUntilSure(ctx context.Context, sp speaker, line string) (position int64, err error) {
	id, delay := uuid.NewString(), o.retryDelay
	for try := 1; ; try++ {
		p, err := sp.say(ctx, line, "", id)
		if err == nil {
			return p.V.Item.Position, nil
		}
		if !unsure(err) || try == saysPerLine {
			return 0, err
		}
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		case <-timer.C:
		}
		delay *= 2
	}
}
