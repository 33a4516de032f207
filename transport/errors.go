package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"signalbox/appliance/fault"
)

// Class is what one fault code means on each way out of the process.
type Class struct {
	Status int // HTTP status
	Close  int // WebSocket close code where a plane has none of its own
	Exit   int // exit code of a command line client
}

// classes is the one table of them; its test walks fault.All.
var classes = map[fault.Code]Class{
	fault.Internal:        {http.StatusInternalServerError, 1011, 1},
	fault.Invalid:         {http.StatusUnprocessableEntity, 1008, 2},
	fault.Unauthenticated: {http.StatusUnauthorized, 1008, 4},
	fault.Forbidden:       {http.StatusForbidden, 1008, 4},
	fault.IPDenied:        {http.StatusForbidden, 1008, 4},
	fault.ProjectInactive: {http.StatusForbidden, 1008, 4},
	fault.NotFound:        {http.StatusNotFound, 1008, 3},
	fault.Conflict:        {http.StatusConflict, 1008, 5},
	fault.Stale:           {http.StatusConflict, 1008, 5},
	fault.TooLarge:        {http.StatusRequestEntityTooLarge, 1009, 2},
	fault.RateLimited:     {http.StatusTooManyRequests, 1013, 8},
	fault.Incompatible:    {http.StatusUpgradeRequired, 1008, 1},
	fault.AdapterError:    {http.StatusBadGateway, 1011, 1},
	fault.AgentOffline:    {http.StatusServiceUnavailable, 1013, 8},
	fault.Timeout:         {http.StatusGatewayTimeout, 1013, 7},
	fault.Unavailable:     {http.StatusServiceUnavailable, 1013, 8},
	fault.Canceled:        {statusClientClosed, 1001, 1},
	fault.OutcomeUnknown:  {http.StatusInternalServerError, 1011, 1},
	fault.Corrupt:         {http.StatusInternalServerError, 1011, 1},
	fault.Gone:            {http.StatusGone, 1008, 3},
}

// statusClientClosed is what nobody reads: the caller has gone. It keeps such requests apart in logs and counts.
const statusClientClosed = 499

// ClassOf returns what the code of err means; an error without a code is Internal.
func ClassOf(err error) Class {
	if c, ok := classes[fault.CodeOf(err)]; ok {
		return c
	}
	return classes[fault.Internal]
}

// Envelope is the body of every error (agent protocol H.2), with the framework's detail beside it, as F.4 allows: older
// clients read only that one.
type Envelope struct {
	Error     string         `json:"error"`
	Message   string         `json:"message"`
	RequestID *string        `json:"request_id"` // null on 413, where the protocol fixes it
	Details   map[string]any `json:"details"`
	Detail    any            `json:"detail"` // the message, or []ValidationItem
}

// ValidationItem is one entry of a 422 body's detail array (agent protocol F.4).
type ValidationItem struct {
	Type  string `json:"type"`
	Loc   []any  `json:"loc"` // "body", "query" or "header", then the names and indexes that lead to the value
	Msg   string `json:"msg"`
	Input any    `json:"input"`
}

// detailKey carries ValidationItems inside an error's details without becoming one of them on the wire.
const detailKey = "\x00detail"

// Validation is an Invalid error that renders the items as its detail array.
func Validation(items ...ValidationItem) *fault.Error {
	msg := "the request is not valid"
	if len(items) > 0 {
		msg = items[0].Msg
	}
	return fault.New(fault.Invalid, "%s", msg).With(detailKey, items)
}

// WriteError answers the request with err: status by the table, body an Envelope, Retry-After in whole seconds when the
// error says when to come back. Causes never leave the process; log them where the error is known.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	WriteErrorAs(w, r, ClassOf(err).Status, err)
}

// WriteErrorAs is WriteError for the places where the protocol wants another status than the table's.
func WriteErrorAs(w http.ResponseWriter, r *http.Request, status int, err error) {
	code := fault.CodeOf(err)
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(ceilSeconds(fe.Retry), 10))
	}
	env := Envelope{Error: string(code), Message: fault.Message(err), Details: fault.Details(err)}
	env.Detail = env.Message
	if code == fault.Invalid {
		env.Detail, env.Details = validationDetail(env.Message, env.Details)
	}
	if id := RequestID(r.Context()); id != "" && code != fault.TooLarge {
		env.RequestID = &id
	}
	writeEnvelope(w, status, env)
}

// validationDetail returns the detail array of an Invalid error, and its details without the carrier key.
func validationDetail(msg string, details map[string]any) (any, map[string]any) {
	if items, ok := details[detailKey]; ok {
		rest := make(map[string]any, len(details))
		for k, v := range details {
			if k != detailKey {
				rest[k] = v
			}
		}
		return items, rest
	}
	if _, ok := details["error"]; ok { // an admission refusal: the object is the detail (agent protocol E.5)
		return details, details
	}
	item := ValidationItem{Type: "value_error", Loc: []any{"body"}, Msg: msg}
	if field, ok := details["field"].(string); ok {
		item.Loc = append(item.Loc, field)
	}
	return []ValidationItem{item}, details
}

// writeStatus answers with an error that is a matter of HTTP and has no fault code.
func writeStatus(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	env := Envelope{Error: code, Message: message, Details: map[string]any{}, Detail: message}
	if id := RequestID(r.Context()); id != "" {
		env.RequestID = &id
	}
	writeEnvelope(w, status, env)
}

func writeEnvelope(w http.ResponseWriter, status int, env Envelope) {
	body, err := EncodeJSON(env)
	if err != nil { // a detail that is no JSON must not cost the answer
		env.Details, env.Detail = map[string]any{}, env.Message
		body, _ = EncodeJSON(env)
	}
	writeBody(w, status, append(body, '\n'))
}

// EncodeJSON is json.Marshal without the escapes for HTML: what agents sent stays as they sent it, as far as JSON allows.
func EncodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// WriteJSON answers with v as JSON. A v that cannot be encoded becomes an internal error.
func WriteJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	body, err := EncodeJSON(v)
	if err != nil {
		WriteError(w, r, fmt.Errorf("encode response: %w", err))
		return
	}
	writeBody(w, status, append(body, '\n'))
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a peer that has gone is noticed by its next request, not by us
}

func ceilSeconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
