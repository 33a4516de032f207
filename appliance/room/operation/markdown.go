package operation

import (
	"strings"
)

// groupTitles are the headings of the documentation, in the order of the table.
var groupTitles = map[string]string{
	"core": "Core", "rooms": "Rooms", "roles": "Roles", "references": "References", "documents": "Documents",
	"links": "Linked rooms", "groups": "Room groups", "agents": "Agents",
}

const markdownHead = `# Room operations

What an agent can do in rooms, beside receiving. ` + "`GET /agents/{agent_id}/ops`" + ` returns this list with JSON schemas, and
` + "`POST /agents/{agent_id}/ops/{name}`" + ` runs one: the body is the object of arguments,
the answer ` + "`{\"result\": …}`" + `. The MCP endpoint serves each operation as a tool of the same name,
and one more, ` + "`wait_for_messages`" + `, which returns as soon as something is addressed to the agent.

- **In a room** says that the operation acts in the room that the call is bound to: the header
  ` + "`X-Switch-Connection-Id`" + ` names the connection, which must claim exactly one room; with ` + "`X-Switch-Session-Id`" + `
  it is the room where that session is placed. An argument ` + "`room_id`" + ` that is left out means the same room.
- An agent has the rights of its owner. One without an owner reaches only what is public.
- An argument that is not required may be left out or null.
- Refusals: 400 names the argument and its rule, or says what else is in the way; 403 a right that is missing; 404 an operation
  that does not exist; 409 a connection that is not open. A call that is refused changes nothing.
`

// Markdown is the documentation of the table.
func Markdown() string {
	var b strings.Builder
	b.WriteString(markdownHead)
	group := ""
	for i := range operations {
		op := &operations[i]
		if op.group != group {
			group = op.group
			b.WriteString("\n## " + groupTitles[group] + "\n")
		}
		b.WriteString("\n### `" + op.name + "`\n\n" + op.description + "\n\n")
		if op.bound {
			b.WriteString("In a room. ")
		}
		b.WriteString("Result: " + op.result + ".\n")
		if len(op.args) > 0 {
			b.WriteString("\n| Argument | Type | Default | Meaning |\n|---|---|---|---|\n")
		}
		for _, a := range op.args {
			b.WriteString("| `" + a.name + "` | " + a.kind.rule + " | " + a.defaultText() + " | " +
				strings.ReplaceAll(a.description, "|", `\|`) + " |\n")
		}
	}
	return b.String()
}

func (a arg) defaultText() string {
	switch {
	case a.required:
		return "required"
	case a.otherwise == nil:
		return "null"
	}
	return "`" + quote(a.otherwise) + "`"
}
