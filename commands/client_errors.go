package commands

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"signalbox/appliance/fault"
)

// apiError is a refusal of the server: its envelope turned back into a fault.
type apiError struct {
	fault     *fault.Error
	wireCode  string // as sent; may be one that fault does not know
	status    int
	requestID string
	bare      bool   // the answer held no error document
	hint      string // next step, "" when there is none
}

func (e *apiError) Error() string {
	msg := oneLine(e.fault.Msg)
	if e.requestID != "" && e.fault.Code == fault.Internal {
		msg += " (request " + oneLine(e.requestID) + ")"
	}
	return msg
}

func (e *apiError) Unwrap() error { return e.fault }

type envelope struct {
	Error     string          `json:"error"`
	Message   string          `json:"message"`
	RequestID string          `json:"request_id"`
	Details   map[string]any  `json:"details"`
	Detail    json.RawMessage `json:"detail"` // what rate buckets and framework validation answer instead
	Reason    string          `json:"reason"` // what the readiness route answers instead
}

// decodeError reads the error envelope; an answer without one, say of a proxy in between, is understood by its status.
func decodeError(resp *http.Response, body []byte) *apiError {
	var env envelope
	if json.Unmarshal(body, &env) != nil {
		env = envelope{}
	}
	code := fault.Code(env.Error)
	if !known(code) {
		code = codeOfStatus(resp.StatusCode)
	}
	wire := env.Error
	if wire == "" {
		wire = string(code)
	}
	bare := env.Error == "" && env.Message == "" && env.Detail == nil && env.Reason == ""
	msg := env.Message
	if msg == "" && len(env.Detail) > 0 {
		msg = detailText(env.Detail)
	}
	if msg == "" {
		msg = env.Reason
	}
	if msg == "" {
		msg = fmt.Sprintf("server answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	id := env.RequestID
	if id == "" {
		id = resp.Header.Get("X-Request-Id")
	}
	return &apiError{
		fault:     &fault.Error{Code: code, Msg: msg, Details: env.Details, Retry: retryAfter(resp)},
		wireCode:  wire,
		status:    resp.StatusCode,
		requestID: id,
		bare:      bare,
	}
}

func known(code fault.Code) bool {
	for _, c := range fault.All() {
		if c == code {
			return true
		}
	}
	return false
}

func codeOfStatus(status int) fault.Code {
	switch status {
	case http.StatusUnauthorized:
		return fault.Unauthenticated
	case http.StatusForbidden:
		return fault.Forbidden
	case http.StatusNotFound:
		return fault.NotFound
	case http.StatusConflict:
		return fault.Conflict
	case http.StatusGone:
		return fault.Gone
	case http.StatusRequestEntityTooLarge:
		return fault.TooLarge
	case http.StatusUpgradeRequired:
		return fault.Incompatible
	case http.StatusTooManyRequests:
		return fault.RateLimited
	case http.StatusBadGateway:
		return fault.AdapterError
	case http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusGatewayTimeout:
		return fault.Timeout
	}
	if status >= 400 && status < 500 {
		return fault.Invalid
	}
	return fault.Internal
}

// detailText words a "detail" member: a string, or a list of objects with loc and msg.
func detailText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var list []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(raw, &list) != nil {
		return string(raw)
	}
	parts := make([]string, 0, len(list))
	for _, item := range list {
		var loc []string
		for _, l := range item.Loc {
			loc = append(loc, fmt.Sprint(l))
		}
		parts = append(parts, strings.Join(loc, ".")+": "+item.Msg)
	}
	return strings.Join(parts, "; ")
}

func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
