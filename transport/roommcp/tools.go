package roommcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/operation"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// The waiting tool. Its longest wait ends before hosts and proxies lose patience, which most do after a minute.
const (
	waitTool    = "wait_for_messages"
	defaultWait = 25
	longestWait = 50
)

var waitSchema = json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{
"timeout_seconds":{"type":"integer","minimum":0,"maximum":%d,"default":%d,"description":"How long to wait; 0 returns at once."},
"include_unaddressed":{"type":"boolean","default":false,
"description":"Also return messages that are not addressed to you, instead of only counting them."},
"after":{"anyOf":[{"type":"integer","minimum":0},{"type":"null"}],"default":null,
"description":"The cursor of the last answer that arrived. Only needed to get answers again that were lost on the way."}},
"additionalProperties":false}`, longestWait, defaultWait))

const waitDescription = "Wait until something in the room you are connected to concerns you: a message addressed to you, a " +
	"command such as reset, or a join you listen to. Returns at once when something is waiting already, else when it comes, or " +
	"with no events when the time is over: then call it again. Call connect_to_room first. Each event is returned once."

func (s *Server) addTools() {
	for _, op := range s.svc.Operations.Operations() {
		s.mcp.AddTool(&mcp.Tool{Name: op.Name, Description: op.Description, InputSchema: op.InputSchema}, s.tool(s.operation))
	}
	s.mcp.AddTool(&mcp.Tool{Name: waitTool, Description: waitDescription, InputSchema: waitSchema,
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, s.tool(s.waitForMessages))
}

// tool is a handler whose session has its connection. What goes wrong is a tool error, so that the model reads it.
func (s *Server) tool(do func(ctx context.Context, c *session, who caller, p *mcp.CallToolParamsRaw) (any,
	error)) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		who, err := callerOf(req)
		if err != nil {
			return nil, err
		}
		c := s.session(req.Session)
		if c == nil || c.agentNo != who.agent.No {
			return nil, errors.New("no such session: initialize first")
		}
		ctx = room.WithOrigin(ctx, who.origin)
		var v any
		err = c.attach(ctx, who.agent)
		if err == nil {
			v, err = do(ctx, c, who, req.Params)
		}
		if err == nil {
			return result(v)
		}
		s.log(err).Str("agent", who.agent.Name).Str("tool", req.Params.Name).Msg("tool call failed")
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: errorText(err)}}}, nil
	}
}

// errorText is what the model reads of an error.
func errorText(err error) string {
	if detail, ok := roomhttp.Detail(err).(string); ok {
		return detail
	}
	var refused *room.Refused
	if errors.As(err, &refused) {
		return refused.Message
	}
	return fault.Message(err)
}

// result is an answer as text, and as structured content when it is an object.
func result(v any) (*mcp.CallToolResult, error) {
	b, err := transport.EncodeJSON(v)
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	r := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(b)}}}
	if len(b) > 0 && b[0] == '{' {
		r.StructuredContent = json.RawMessage(b)
	}
	return r, nil
}

// operation runs one operation on the session's connection.
func (s *Server) operation(ctx context.Context, c *session, who caller, p *mcp.CallToolParamsRaw) (any, error) {
	args := bytes.TrimSpace(p.Arguments)
	if len(args) == 0 || bytes.Equal(args, []byte("null")) {
		args = []byte("{}")
	}
	return s.svc.Operations.Call(ctx, operation.Call{Agent: who.agent, ConnectionID: c.id, HasConnection: true, Name: p.Name,
		Args: args})
}

func (s *Server) waitForMessages(ctx context.Context, c *session, _ caller, p *mcp.CallToolParamsRaw) (any, error) {
	in := struct {
		Timeout     *int   `json:"timeout_seconds"`
		Unaddressed bool   `json:"include_unaddressed"`
		After       *int64 `json:"after"`
	}{}
	if len(p.Arguments) > 0 {
		dec := json.NewDecoder(bytes.NewReader(p.Arguments))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "the arguments do not fit the schema: timeout_seconds, include_unaddressed, after")
		}
	}
	limit, after := defaultWait, int64(-1)
	if in.Timeout != nil {
		limit = *in.Timeout
	}
	if limit < 0 || limit > longestWait {
		return nil, fault.Field("timeout_seconds", "must be from 0 to %d", longestWait)
	}
	if in.After != nil {
		if after = *in.After; after < 0 {
			return nil, fault.Field("after", "must not be negative")
		}
	}
	return c.wait(ctx, after, in.Unaddressed, time.Duration(limit)*time.Second)
}
