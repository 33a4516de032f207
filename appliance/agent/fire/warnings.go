package fire

import (
	"context"
	"slices"
	"strings"
	"time"

	"signalbox/appliance/agent"
)

// Warnings says of each of the engines, once, why its fires would wait even if every agent of the project were online: none
// of them, revoked ones left out, lists the engine or is declared to run it. The sentences name what to do about it. Empty
// when there is nothing to warn of.
func (f *Fires) Warnings(ctx context.Context, projectNo int64, engines ...string) ([]string, error) {
	out := []string{}
	if len(engines) == 0 {
		return out, nil
	}
	var agents []agentView
	err := f.st.View(ctx, func(tx ReadTx) (err error) {
		agents, err = views(tx, projectNo)
		return err
	})
	if err != nil {
		return nil, err
	}
	warned := map[string]bool{}
	for _, engine := range engines {
		if warned[engine] {
			continue
		}
		warned[engine] = true
		if w := unrouted(engine, agents, f.opts.Retention); w != "" {
			out = append(out, w)
		}
	}
	return out, nil
}

// unrouted says why no agent, online or not, takes fires of the engine; "" when one does. It is pure.
func unrouted(engine string, agents []agentView, retention time.Duration) string {
	var known, silent []string
	for i := range agents {
		v := &agents[i]
		names, declared := v.engines()
		switch {
		case slices.Contains(names, engine):
			return ""
		case declared:
			known = append(known, v.Name+" is declared to run "+strings.Join(names, ", "))
		case v.ReportedInventory():
			known = append(known, v.Name+" lists "+orNone(names))
		case v.State == agent.Unknown:
			known = append(known, v.Name+" has never connected")
		default:
			silent = append(silent, v.Name)
		}
	}
	text := "No agent of the project lists the engine " + engine + ", so fires wait until one does, " + agent.Span(retention) + " at most"
	switch {
	case len(agents) == 0:
		return text + ". The project has no agent: `signalbox agents mint NAME` makes one."
	case len(known) > 0:
		text += " (" + few(known) + ")"
	}
	if len(silent) > 0 {
		text += ". Without an inventory, as long-poll agents are: " + few(silent) + ". If such an agent runs " + engine +
			", declare it: `signalbox agents declare-engines " + silent[0] + " " + engine + "`"
	}
	return text + "."
}
