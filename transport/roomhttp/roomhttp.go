// Package roomhttp is what the HTTP surfaces of the rooms plane share: errors as {"detail": …}, the plain text 401, and
// strict reading of bodies. Section names in comments are those of the rooms protocol.
package roomhttp

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/transport"
)

// ShapeError is a body that does not have the shape the route asks for: status 422.
type ShapeError struct{ Msg string }

// Error names the field and the rule.
func (e *ShapeError) Error() string { return e.Msg }

// Unwrap makes it bad input.
func (e *ShapeError) Unwrap() error { return fault.New(fault.Invalid, "%s", e.Msg) }

// statuses are the statuses of the rooms plane; what is not listed is as everywhere else.
var statuses = map[fault.Code]int{fault.Invalid: http.StatusBadRequest}

// Status is the HTTP status of an error, and of a refused frame (B.3).
func Status(err error) int {
	var shape *ShapeError
	if errors.As(err, &shape) {
		return http.StatusUnprocessableEntity
	}
	var e *fault.Error
	if errors.As(err, &e) {
		if s, ok := statuses[e.Code]; ok {
			return s
		}
	}
	return transport.ClassOf(err).Status
}

// refusedDetail is the object form of a detail.
type refusedDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Detailer is an error with a detail of its own (B.4).
type Detailer interface{ Detail() any }

// Detail is what stands under "detail": a string, or an object for refusals that clients tell apart.
func Detail(err error) any {
	var own Detailer
	if errors.As(err, &own) {
		return own.Detail()
	}
	var refused *room.Refused
	if errors.As(err, &refused) {
		return refusedDetail{refused.Code, refused.Message}
	}
	var shape *ShapeError
	if errors.As(err, &shape) {
		return []map[string]string{{"msg": shape.Msg}}
	}
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Msg
	}
	return "internal error"
}

// WriteError answers with the error's status: a text for 401 (section 0), else {"detail": …}.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(err)
	var e *fault.Error
	if errors.As(err, &e) && e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.Retry.Seconds()))))
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, Detail(err).(string))
		return
	}
	transport.WriteJSON(w, r, status, map[string]any{"detail": Detail(err)})
}

// WriteErrorJSON is WriteError with a JSON body for every status: people's browsers get no text (I).
func WriteErrorJSON(w http.ResponseWriter, r *http.Request, err error) {
	transport.WriteJSON(w, r, Status(err), map[string]any{"detail": Detail(err)})
}

// Decode reads a JSON body into v: one object, unknown fields ignored (section 0). An absent body is an empty object.
func Decode(r *http.Request, v any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		var known *fault.Error
		if errors.As(err, &known) {
			return err
		}
		return fault.Wrap(fault.Canceled, err, "the body broke off")
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	if err := json.Unmarshal(body, v); err != nil {
		var typed *json.UnmarshalTypeError
		if errors.As(err, &typed) && typed.Field != "" {
			return &ShapeError{"body." + typed.Field + ": must be " + typed.Type.String() + ", got a JSON " + typed.Value}
		}
		return &ShapeError{"body: must be a JSON object of the fields of this route: " + err.Error()}
	}
	return nil
}
