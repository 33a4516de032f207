package roomconn

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// parsePong reads the one frame a client sends (C.5). What is no pong is ignored, whatever it is; a cursor that is no
// number counts as 0.
func parsePong(data []byte) (cursor int64, ok bool) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return 0, false
	}
	var kind string
	if err := json.Unmarshal(fields["type"], &kind); err != nil || kind != "pong" {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(fields["cursor"])), 10, 64)
	if err != nil || n < 0 {
		return 0, true
	}
	return n, true
}
