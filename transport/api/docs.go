package api

import (
	"fmt"
	"strings"

	"signalbox/appliance/agent"
)

// issueBody says what the route of an action takes beside the common fields.
func issueBody(spec agent.ActionSpec) string {
	var b strings.Builder
	b.WriteString("`agent_id`, `idempotency_key`?")
	for _, f := range spec.Fields {
		if f.Kind == agent.KindNull {
			continue
		}
		b.WriteString(", `" + f.Name + "`")
		if !f.Required {
			b.WriteString("?")
		}
		if spec.Route == poolResizeRoute && f.Name == "delta" {
			b.WriteString(" −100..100, not 0")
		} else {
			b.WriteString(bounds(f))
		}
	}
	return b.String()
}

// poolResizeRoute is the one route with two actions, by the sign of its delta.
const poolResizeRoute = "pool-resize"

func bounds(f agent.ActionField) string {
	switch {
	case f.Kind == agent.KindString && f.Max > 0, f.Kind == agent.KindInt && f.Max > 0 && f.Max < 1<<40:
		return fmt.Sprintf(" %d..%d", f.Min, f.Max)
	}
	return ""
}
