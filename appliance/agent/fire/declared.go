package fire

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// MaxDeclared is how many engines may be declared of one agent.
const MaxDeclared = 16

// enginePattern is what an engine name must match (agent protocol E.5).
var enginePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// Declaration is what was declared of an agent. Declared engines count for fires while the agent reports no inventory, as
// long-poll agents do not; what an agent reports over WebSocket takes their place for good.
type Declaration struct {
	Engines []string // by name; empty: nothing is declared
	By      string
	At      *time.Time
	InUse   bool // the agent is not revoked and has reported no inventory
}

// Declaration returns what is declared of an agent of the project; NotFound when there is no such agent.
func (f *Fires) Declaration(ctx context.Context, projectNo int64, agentID uuid.UUID) (d Declaration, err error) {
	err = f.st.View(ctx, func(tx ReadTx) error {
		d, _, err = declaration(tx, projectNo, agentID)
		return err
	})
	return d, err
}

func declaration(tx ReadTx, projectNo int64, agentID uuid.UUID) (Declaration, agent.Agent, error) {
	a, err := tx.AgentByID(projectNo, agentID)
	if err != nil {
		return Declaration{}, a, named(err, "agent not found")
	}
	rows, err := tx.DeclaredEngines(projectNo, a.No)
	d := Declaration{Engines: []string{}, InUse: len(rows) > 0 && !a.ReportedInventory() && a.RevokedAt == nil}
	for _, r := range rows {
		at := r.At
		d.Engines, d.By, d.At = append(d.Engines, r.Engine), r.By, &at
	}
	return d, a, err
}

// Declare replaces what is declared of an agent's engines; none clears it (audited). Fires that wait for one of the engines
// are replayed at once. Errors: Invalid naming field and rule, NotFound for an agent that is unknown or revoked.
func (f *Fires) Declare(ctx context.Context, who agent.Principal, projectNo int64, agentID uuid.UUID, engines []string) (d Declaration, err error) {
	engines = slices.Clone(engines)
	slices.Sort(engines)
	engines = slices.Compact(engines)
	if len(engines) > MaxDeclared {
		return d, fault.Field("engines", "must have at most %d names", MaxDeclared)
	}
	for _, e := range engines {
		if !enginePattern.MatchString(e) {
			return d, fault.Field("engines", "each must be a name of 1..40 letters, digits, '.', '_' or '-' that starts with a letter or digit")
		}
	}
	err = f.st.Update(ctx, "declare engines", func(tx Tx) error {
		before, a, err := declaration(tx, projectNo, agentID)
		if err != nil {
			return err
		}
		if a.RevokedAt != nil {
			return fault.New(fault.NotFound, "agent not found")
		}
		if slices.Equal(before.Engines, engines) {
			d = before
			return nil
		}
		if err := tx.SetDeclaredEngines(a.No, by(who), engines); err != nil {
			return err
		}
		if err := f.auditDeclared(tx, who, a, before.Engines, engines); err != nil {
			return err
		}
		tx.Hint(func() { f.hub.Wake(agent.AgentsOnline(projectNo)) })
		d, _, err = declaration(tx, projectNo, agentID)
		return err
	})
	return d, err
}

func by(who agent.Principal) string {
	if who.Name != "" {
		return cut(who.Name, 200)
	}
	return who.ID
}

func (f *Fires) auditDeclared(tx Tx, who agent.Principal, a agent.Agent, before, after []string) error {
	action := "agent.engines.declared"
	if len(after) == 0 {
		action = "agent.engines.cleared"
	}
	id := a.ID.String()
	meta := append([]byte(`{"before":`), list(before)...)
	meta = append(append(meta, `,"engines":`...), list(after)...)
	meta = append(rawjson.AppendString(append(meta, `,"name":`...), a.Name), '}')
	return f.log.Append(tx, audit.Entry{ProjectNo: a.ProjectNo, UserID: textOrNil(who.ID), Action: action, TargetType: "agent",
		TargetID: &id, Result: audit.Success, Outcome: audit.Allow, Metadata: meta,
		SourceIP: textOrNil(who.SourceIP), UserAgent: textOrNil(who.UserAgent)})
}

// list is a JSON array of names that match enginePattern.
func list(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	return `["` + strings.Join(names, `","`) + `"]`
}
