package roomclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// beatInterval is that of beats (C.3).
	beatInterval = 2 * time.Second
	// maxPause is the longest pause between two attempts (J.4, J.6).
	maxPause = 30 * time.Second
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 32 << 20
	// maxLine bounds one line of a stream.
	maxLine = 16 << 20
)

// EventsURL is where the SSE stream is opened (G.1).
func (c *Config) EventsURL(o *Open) string { return c.agentURL("/events?" + o.Query()) }

// DialSSE opens the stream of Server-Sent Events. It beats from the connection_state on, every 2 s (J.6). An error is a
// *Closed, with the refusal when there was an answer.
func DialSSE(ctx context.Context, cfg *Config, o Open) (*Stream, error) {
	s := newStream(cfg, o, SSE)
	opening, stop := context.WithCancelCause(s.ctx)
	release := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) }) // bounds the opening, not the stream
	req, err := http.NewRequestWithContext(opening, http.MethodGet, cfg.EventsURL(&o), nil)
	if err != nil {
		stop(err)
		return nil, &Closed{Err: err}
	}
	req.Header = cfg.header()
	req.Header.Set("Accept", "text/event-stream")
	if o.LastEventID != "" {
		req.Header.Set("Last-Event-ID", o.LastEventID)
	}
	resp, err := cfg.client().Do(req)
	if err != nil {
		stop(err)
		return nil, &Closed{Err: fmt.Errorf("connect: %w", err)}
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		_ = resp.Body.Close()
		stop(nil)
		refused := statusError(resp.StatusCode, body)
		return nil, &Closed{Refused: &Refused{Status: refused.Status, Detail: refused.Detail}, Err: refused}
	}
	if !release() { // ctx has ended meanwhile
		_ = resp.Body.Close()
		return nil, &Closed{Err: context.Cause(ctx)}
	}
	s.cut = func() { stop(ErrDropped); _ = resp.Body.Close() }
	s.onState = func(st State) { go s.sendBeats(st.Generation) }
	go s.readEvents(resp.Body)
	return s, nil
}

func (s *Stream) readEvents(body io.ReadCloser) {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	lines.Split(scanLF)
	var f Frame
	for lines.Scan() {
		line := lines.Bytes()
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch {
		case len(line) == 0:
			if f.Event != "" {
				s.took(f)
			}
			f = Frame{}
		case line[0] == ':':
		case string(name) == "id":
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				s.end(Closed{Err: fmt.Errorf("an id that is no number: %w", err)})
				return
			}
			f.ID = n
		case string(name) == "event":
			f.Event = string(value)
		case string(name) == "data":
			f.Data = bytes.Clone(value)
		}
	}
	s.end(Closed{Err: lines.Err()})
}

// scanLF splits at line feeds and keeps carriage returns, as the parsers of clients do (G.1).
func scanLF(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// sendBeats keeps the connection alive until the stream ends (J.6). A refusal ends it.
func (s *Stream) sendBeats(generation int64) {
	c := s.cfg.clock()
	timer := c.NewTimer(0)
	defer timer.Stop()
	pause := beatInterval
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C():
		}
		if s.silent.Load() {
			timer.Reset(beatInterval)
			continue
		}
		b := BeatRequest{ConnectionID: s.Open.ConnectionID, Cursor: s.processed.Load()}
		if s.Open.Protocol == 0 || s.Open.Protocol >= 2 { // revision 1 knew none (J.1)
			b.Generation = &generation
		}
		_, err := s.cfg.Beat(s.ctx, b)
		var refused *StatusError
		switch {
		case err == nil:
			s.alive.Add(1)
			pause = beatInterval
			timer.Reset(beatInterval)
			continue
		case errors.As(err, &refused) && refused.Status < 500:
			s.end(Closed{Beat: refused})
			return
		}
		timer.Reset(pause)
		pause = min(2*pause, maxPause)
	}
}
