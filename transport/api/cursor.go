package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/rawjson"
)

// maxCursor bounds what is decoded for a client; ours have some 110 characters.
const maxCursor = 512

// encodeCursor writes the place of a row (agent protocol H.3): base64url of [["dt","<time>"],"<id>"].
func encodeCursor(c agent.Cursor) string {
	b := append([]byte(nil), `[["dt","`...)
	b = rawjson.AppendTime(b, c.At)
	b = append(b, `"],"`...)
	b = append(b, c.ID.String()...)
	b = append(b, `"]`...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor reads a cursor; one that is malformed is the first page (agent protocol H.3).
func decodeCursor(s string) agent.Cursor {
	if s == "" || len(s) > maxCursor {
		return agent.Cursor{}
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return agent.Cursor{}
	}
	doc, err := rawjson.Parse(text)
	if err != nil {
		return agent.Cursor{}
	}
	defer doc.Release()
	root := doc.Root()
	if root.Kind() != rawjson.Array || root.Len() != 2 {
		return agent.Cursor{}
	}
	key := root.Index(0)
	if key.Kind() != rawjson.Array || key.Len() != 2 || !key.Index(0).StrEqual("dt") {
		return agent.Cursor{}
	}
	at, ok := key.Index(1).Time()
	idText, isText := root.Index(1).Str()
	id, err := uuid.Parse(idText)
	if !ok || !isText || err != nil || id == uuid.Nil {
		return agent.Cursor{}
	}
	return agent.Cursor{At: at, ID: id}
}

// epochLen is how much of the database's epoch a stream cursor carries.
const epochLen = 8

// position is a parsed stream cursor.
type position struct {
	head  bool // begin where the log ends now
	other bool // of another database
	seq   int64
}

// streamCursor writes "<epoch>.<position>".
func (a *API) streamCursor(seq int64) string { return a.epoch + "." + strconv.FormatInt(seq, 10) }

// parseStreamCursor reads one: absent is the head, "0" the oldest row kept.
func (a *API) parseStreamCursor(s string) (position, error) {
	switch s {
	case "":
		return position{head: true}, nil
	case "0":
		return position{}, nil
	}
	epoch, digits, ok := strings.Cut(s, ".")
	seq, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || seq < 0 || len(epoch) > epochLen || digits[0] == '+' || digits[0] == '-' {
		return position{}, fmt.Errorf("malformed stream cursor")
	}
	return position{seq: seq, other: epoch != a.epoch}, nil
}

// raw is stored JSON on its way out; nil is null.
func raw(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return b
}
