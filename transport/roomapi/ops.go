package roomapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/operation"
	"signalbox/transport/roomhttp"
)

// The headers that bind a call to a connection and a session on it (H.1).
const (
	HeaderConnection  = "X-Switch-Connection-Id"
	HeaderSession     = "X-Switch-Session-Id"
	HeaderSessionHost = "X-Switch-Session-Host-Id"
	HeaderEpoch       = "X-Switch-Session-Epoch"
)

func (s *Server) operations(w http.ResponseWriter, r *http.Request, _ room.Agent) error {
	return answer(w, r, map[string]any{"operations": s.svc.Operations.Schemas()})
}

// call runs an operation with the body as its arguments (H.1).
func (s *Server) call(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	c := operation.Call{Agent: a, Name: r.PathValue("name")}
	if err := place(r.Header, &c); err != nil {
		return err
	}
	var err error
	if c.Args, err = arguments(r.Body); err != nil {
		return err
	}
	result, err := s.svc.Operations.Call(r.Context(), c)
	if err != nil {
		return err
	}
	return answer(w, r, map[string]any{"result": result})
}

// place reads where the call comes from. Host and epoch of a session are opaque and change nothing.
func place(h http.Header, c *operation.Call) error {
	c.ConnectionID, c.SessionID = h.Get(HeaderConnection), h.Get(HeaderSession)
	c.HasConnection = c.ConnectionID != ""
	if c.HasConnection {
		return nil
	}
	for _, name := range []string{HeaderSession, HeaderSessionHost, HeaderEpoch} {
		if h.Get(name) != "" {
			return fault.New(fault.Invalid, "%s needs the header %s beside it", name, HeaderConnection)
		}
	}
	return nil
}

// arguments reads the object of arguments as it is; an absent body is an empty one.
func arguments(body io.Reader) (json.RawMessage, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		var known *fault.Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, fault.Wrap(fault.Canceled, err, "the body broke off")
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return json.RawMessage("{}"), nil
	}
	if b[0] != '{' || !json.Valid(b) {
		return nil, &roomhttp.ShapeError{Msg: "body: must be a JSON object of the arguments of this operation"}
	}
	return b, nil
}
