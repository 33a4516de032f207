package commands

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"signalbox/appliance/fault"
)

const (
	// maxStreamLine bounds one record: a command whose result is at its cap, with room for JSON escapes.
	maxStreamLine = 16 << 20
	// streamSilence ends a connection on which not even a heartbeat came; the server sends one every 15 seconds.
	streamSilence = 45 * time.Second
	// slowestRetry is how many times the first pause the pause between reconnects grows to.
	slowestRetry = 20
)

// cursorHeader tells where a stream that was asked for from now on begins. Without it, what happens between a connection
// lost before its first record and the next one could not be asked for.
const cursorHeader = "X-Signalbox-Cursor"

// streamRecord is one line of a stream. raw is the whole line, for --json.
type streamRecord struct {
	Type    string             `json:"type"`
	Cursor  string             `json:"cursor"`
	Seq     int64              `json:"seq"`
	At      *time.Time         `json:"at"`
	Event   json.RawMessage    `json:"event"` // transition: a word; event: the event
	Status  string             `json:"status"`
	Detail  *string            `json:"detail"`
	Command record[commandRow] `json:"command"`
	Item    json.RawMessage    `json:"item"`
	Reason  string             `json:"reason"`
	More    bool               `json:"more"` // of a job: another record follows at once
	raw     []byte
}

// errStop is returned by a stream's handler to end it without an error.
var errStop = errors.New("stream: enough")

// stream follows one NDJSON route. It reconnects by itself and goes on after the last cursor it handed out, so its caller
// sees each record once, or a gap record where the server no longer has what came between.
type stream struct {
	client *client
	path   string
	query  url.Values
	cursor string
	follow bool
	delay  time.Duration // first pause before reconnecting
	// opened is called after each connect, when the server has settled where the stream starts; nil: nothing to do. What
	// it reads of the server's state covers all that comes before that place.
	opened func(ctx context.Context) error
	notice func(format string, args ...any)
	// reached is called once, when the server first accepted the stream; nil: nothing to do.
	reached func()
	// explain may put a refusal of the stream in clearer words; nil: it stands as it is.
	explain func(ctx context.Context, err error) error
}

// run calls handle for each record until the stream ends (follow off), handle returns an error, or ctx ends. A lost
// connection is an error only while nothing has been reached yet. It returns ctx.Err() when ctx ended it.
func (s *stream) run(ctx context.Context, handle func(*streamRecord) error) error {
	reached := false
	delay := s.delay
	for {
		before := s.cursor
		connected, err := s.once(ctx, handle)
		reached = reached || connected
		switch {
		case errors.Is(err, errStop):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && !s.follow:
			return nil
		case err != nil && (!reached || !worthReconnecting(err)):
			return err
		}
		if s.cursor != before || connected {
			delay = s.delay
		}
		if reached && s.cursor == "" && s.opened == nil {
			s.notice("gap: the server did not say where the stream began; what happens until it is back is not shown")
		}
		pause := delay/2 + rand.N(delay/2+1)
		var api *apiError
		if errors.As(err, &api) && api.fault.Retry > pause {
			pause = api.fault.Retry
		}
		if err == nil {
			err = errors.New("the server ended the stream")
		}
		s.notice("%v; reconnecting in %s", err, pause.Round(time.Millisecond))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		delay = min(delay*2, s.delay*slowestRetry)
	}
}

// worthReconnecting tells passing trouble from a refusal that will be the same next time.
func worthReconnecting(err error) bool {
	var unreachable *unreachableError
	if errors.As(err, &unreachable) {
		return true
	}
	var api *apiError
	return errors.As(err, &api) && (api.status >= 500 || api.fault.Code == fault.RateLimited)
}

var errSilent = errors.New("no heartbeat from the server")

// once runs one connection. connected says that the server accepted the stream.
func (s *stream) once(ctx context.Context, handle func(*streamRecord) error) (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(max(s.client.timeout, streamSilence), func() { cancel(errAnswerTimeout) })
	defer watchdog.Stop()

	query := url.Values{}
	for k, v := range s.query {
		query[k] = v
	}
	query.Set("follow", fmt.Sprint(s.follow))
	if s.cursor != "" {
		query.Set("cursor", s.cursor)
	}
	resp, err := s.client.send(ctx, http.MethodGet, s.path, query, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, readErr := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if readErr != nil {
			return false, s.client.transportError(ctx, readErr)
		}
		err = s.client.refusal(resp, body)
		if s.explain != nil {
			err = s.explain(ctx, err)
		}
		return false, err
	}
	if s.cursor == "" {
		s.cursor = resp.Header.Get(cursorHeader)
	}
	if s.reached != nil {
		s.reached()
		s.reached = nil
	}
	if s.opened != nil {
		if err := s.opened(ctx); err != nil {
			return true, err
		}
	}
	reader := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		watchdog.Reset(streamSilence)
		line, err := readLine(reader)
		watchdog.Stop()
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errAnswerTimeout) {
				return true, &unreachableError{target: s.client.target, hint: s.client.hint, err: errSilent}
			}
			return true, s.client.transportError(ctx, err)
		}
		if len(line) == 0 {
			continue // heartbeat
		}
		if err := s.take(line, handle); err != nil {
			return true, err
		}
	}
}

func (s *stream) take(line []byte, handle func(*streamRecord) error) error {
	rec := &streamRecord{raw: line}
	if line[0] != '{' {
		return errors.New("read stream record: it is no object")
	}
	if err := json.Unmarshal(line, rec); err != nil {
		return fmt.Errorf("read stream record: %w", err)
	}
	err := handle(rec)
	if err == nil || errors.Is(err, errStop) {
		// Only now: a record whose handling failed is to come again on resume.
		if rec.Cursor != "" {
			s.cursor = rec.Cursor
		}
	}
	return err
}

// readLine returns a complete line without its end. What stands before EOF without a line end was cut off by a lost
// connection: it is dropped, the resume brings it whole.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxStreamLine {
			return nil, fmt.Errorf("stream record is larger than %d bytes", maxStreamLine)
		}
		switch {
		case err == nil:
			return bytes.TrimSpace(line), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// ndjson writes the record as it came, with the schema version in front.
func (p *printer) ndjson(rec *streamRecord) error {
	p.wrote = true
	rest := bytes.TrimSpace(rec.raw[1:])
	line := fmt.Appendf(nil, `{"schema_version":%d`, schemaVersion)
	if rest[0] != '}' {
		line = append(line, ',')
	}
	return p.writeLine(append(line, rest...))
}

// follow runs a stream for a command that prints it: it counts to limit (0: no limit), and tells where to resume. The
// user's interrupt is the normal end of a followed stream and no error.
func (o *options) follow(ctx context.Context, s *stream, limit int, show func(*streamRecord) error) error {
	s.delay, s.notice = o.retryDelay, o.out.say
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	seen := 0
	accepted := false
	s.reached = func() {
		accepted = true
		if o.stdio.IsTerminal && s.follow {
			o.out.say("waiting; Ctrl-C ends")
		}
	}
	err := s.run(ctx, func(rec *streamRecord) error {
		if err := show(rec); err != nil {
			return err
		}
		if rec.Type == "gap" {
			return nil
		}
		seen++
		if limit > 0 && seen >= limit {
			return errStop
		}
		return nil
	})
	if s.cursor != "" && accepted { // a cursor that was refused is no place to resume from
		o.out.say("cursor: %s", s.cursor)
	}
	if errors.Is(err, context.Canceled) && s.follow {
		return nil
	}
	return err
}

// gapText says in a sentence why records may be missing. A newer server may know more reasons.
func gapText(reason string) string {
	switch reason {
	case "epoch":
		return "the cursor is of another database, or of this one before it was restored; going on from the oldest kept record"
	case "ahead":
		return "the cursor lies beyond the newest record; going on from there"
	case "retention":
		return "records after the cursor are no longer kept; going on with the oldest kept one"
	}
	return oneLine(reason)
}

// word is the event of a transition, a JSON string.
func (r *streamRecord) word() string {
	var s string
	if json.Unmarshal(r.Event, &s) != nil {
		return ""
	}
	return s
}

// event decodes the event that an event record carries.
func (r *streamRecord) event() (eventRow, error) {
	var e eventRow
	if err := json.Unmarshal(r.Event, &e); err != nil {
		return e, fmt.Errorf("read event of stream record: %w", err)
	}
	return e, nil
}
