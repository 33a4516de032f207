package failure

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Identity is what the failures of one group have in common.
type Identity struct {
	Fingerprint string // 64 hex digits, of all the others
	Engine      string
	TaskName    string
	Class       string   // of the exception, as the agent names it; "" when no text names one
	Frames      []string // at most 5, innermost first: "billing/tasks.py in charge"; empty without a traceback
}

// CatchAll is the fingerprint of the group that takes what lies beyond the cap of groups.
var CatchAll = strings.Repeat("0", 2*sha256.Size)

// unnamed is the name of a task that nobody has named.
const unnamed = "unknown"

// Identify says which group a failure belongs to. It looks at engine, name of the task, class of the exception and the
// frames at the top of the stack, never at the message: two failures that differ in values, in line numbers, or in where
// the code is installed, are the same.
//
// exception is a class, "class: message", what repr gives, or, as RQ's agent sends it, the whole traceback. Both texts may
// be cut, empty, or of another language; then fewer things tell groups apart.
func Identify(engine, taskName, exception, traceback string) Identity {
	id := Identity{Engine: engine, TaskName: taskName}
	if id.TaskName == "" {
		id.TaskName = unnamed
	}
	t, ok := parseTrace(traceback)
	if !ok {
		t, ok = parseTrace(exception)
	}
	if id.Class = classOf(strings.TrimSpace(exception)); id.Class == "" {
		id.Class = t.class
	}
	if ok {
		id.Frames = t.top()
	}
	id.Fingerprint = fingerprint(&id)
	return id
}

// fingerprint hashes what the failures have in common, each part with its length, so that no two lists of parts are alike.
func fingerprint(id *Identity) string {
	b := make([]byte, 0, 1024)
	part := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	part("1")
	part(id.Engine)
	part(id.TaskName)
	part(id.Class)
	for _, f := range id.Frames {
		part(f)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
