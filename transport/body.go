package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"signalbox/appliance/fault"
)

// The reasons of a 413 (agent protocol I.2).
const (
	reasonContentLength = "content_length_exceeded"
	reasonStreamed      = "streamed_body_exceeded"
	reasonBadLength     = "invalid_content_length"
)

// bodyTimeout bounds the arrival of a request's body; an agent gives up its upload after 15 s.
const bodyTimeout = 60 * time.Second

// maxBuffered is what all bodies of unstated length may hold together while their handlers run. They are read before the
// handler, because one that passes its cap must not have had an effect; this keeps many of them from filling the memory.
const maxBuffered = 64 << 20

// Bodies caps request bodies before any handler sees the request (agent protocol I.2).
type Bodies struct {
	limit    func(*http.Request) int64
	streamed func(*http.Request) bool
	buffered atomic.Int64
}

// NewBodies returns the cap; limit gives the bytes a request's body may have, by its route. Bodies for which streamed is
// true go to their handler as they arrive, which bounds their time itself and has no effect before it has read all; nil
// is none.
func NewBodies(limit func(*http.Request) int64, streamed func(*http.Request) bool) *Bodies {
	if streamed == nil {
		streamed = func(*http.Request) bool { return false }
	}
	return &Bodies{limit: limit, streamed: streamed}
}

// Middleware refuses larger bodies with 413, and bounds how long a body may take to arrive.
func (b *Bodies) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		limit := b.limit(r)
		if r.ContentLength > limit {
			refuseBody(w, r, reasonContentLength)
			return
		}
		if b.streamed(r) {
			r.Body = http.MaxBytesReader(w, r.Body, limit)
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // the server sets its own for the next request
		if r.ContentLength > 0 {
			r.Body = &timedBody{ReadCloser: r.Body, control: control}
			next.ServeHTTP(w, r)
			return
		}
		body, err := b.buffer(r.Body, limit)
		defer b.buffered.Add(-body.held)
		_ = control.SetReadDeadline(time.Time{})
		switch {
		case errors.Is(err, errStreamed):
			refuseBody(w, r, reasonStreamed)
		case errors.Is(err, errBuffers):
			w.Header().Set("Connection", "close")
			WriteError(w, r, &fault.Error{Code: fault.Unavailable, Msg: "too many request bodies at once",
				Retry: time.Second})
		case err != nil:
			w.Header().Set("Connection", "close")
			WriteError(w, r, fault.Wrap(fault.Invalid, err, "the request body broke off"))
		default:
			r.Body = io.NopCloser(bytes.NewReader(body.data))
			r.ContentLength = int64(len(body.data))
			r.TransferEncoding = nil
			next.ServeHTTP(w, r)
		}
	})
}

var (
	errStreamed = errors.New("body above its cap")
	errBuffers  = errors.New("no room to buffer the body")
)

// bufferedBody is a body of unstated length and the room it holds.
type bufferedBody struct {
	data []byte
	held int64
}

// buffer reads the body up to limit. The caller gives held back, whatever the error.
func (b *Bodies) buffer(r io.Reader, limit int64) (body bufferedBody, err error) {
	for {
		if len(body.data) == cap(body.data) {
			size := min(max(2*int64(cap(body.data)), 4<<10), limit+1)
			more := size - body.held
			if b.buffered.Add(more) > maxBuffered {
				b.buffered.Add(-more)
				return body, errBuffers
			}
			body.held = size
			grown := make([]byte, len(body.data), size)
			copy(grown, body.data)
			body.data = grown
		}
		n, err := r.Read(body.data[len(body.data):cap(body.data)])
		body.data = body.data[:len(body.data)+n]
		switch {
		case int64(len(body.data)) > limit:
			return body, errStreamed
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return body, err
		}
	}
}

func refuseBody(w http.ResponseWriter, r *http.Request, reason string) {
	w.Header().Set("Connection", "close") // what is left of the body is not worth reading
	WriteError(w, r, bodyError(reason))
}

func bodyError(reason string) *fault.Error {
	return fault.New(fault.TooLarge, "the request body is too large or its length is not valid").With("reason", reason)
}

// timedBody lifts the read deadline once the body is in, or a parked poll would end by it.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read passes bytes through.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
