package timeline

import (
	"context"
	"strings"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Targets are whom a targeted message is for: at least one.
type Targets struct {
	Names []string // participants by name or alias, or room.EveryoneName
	Roles []string
}

// maxTargets bounds the names and roles of one message together.
const maxTargets = 50

// statusNoBridge is what is told of a mention of everyone (H.3): rooms here are on no bridge, so that nobody outside is
// told.
const statusNoBridge = "no_bridge"

// PostTargeted posts a message that starts by mentioning its targets (H.3), and tells how the agents among them are:
// those named, under the name they were given, and each live holder of a role, under the agent's name. An agent whose
// policy refuses the sender is told as not_permitted; the message is posted anyway. People are mentioned without a
// status. everyone mentions the room, at the top level only, and addresses no agent.
func (t *Timeline) PostTargeted(ctx context.Context, d Draft, targets Targets) (Posted, map[string]string, error) {
	if err := t.check(d); err != nil {
		return Posted{}, nil, err
	}
	names, err := cleanTargets("target_names", targets.Names)
	if err != nil {
		return Posted{}, nil, err
	}
	roles, err := cleanTargets("target_roles", targets.Roles)
	if err != nil {
		return Posted{}, nil, err
	}
	switch n := len(names) + len(roles); {
	case n == 0:
		return Posted{}, nil, fault.Field("target_names", "name at least one target here or in target_roles")
	case n > maxTargets:
		return Posted{}, nil, fault.Field("target_names", "must be at most %d together with target_roles", maxTargets)
	}
	err = t.store.View(ctx, func(tx ReadTx) error {
		spot, err := tx.TimelineSpot(d.RoomID)
		if err != nil {
			return noRoom(err, d.RoomID)
		}
		cast, err := t.castAt(tx, spot.RoomNo, spot.CastRevision)
		if err != nil {
			return err
		}
		if _, err := t.member(tx, cast, d.Actor); err != nil {
			return err
		}
		return checkTargets(tx, cast, names, roles, d.ThreadID)
	})
	if err != nil {
		return Posted{}, nil, err
	}
	d.Body = mention(names, roles) + d.Body
	posted, err := t.postMessage(ctx, d)
	if err != nil {
		return Posted{}, nil, err
	}
	return posted, t.targetStatuses(posted, names, roles), nil
}

// cleanTargets drops the @ that a name may be given with, and repetitions.
func cleanTargets(field string, names []string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, n := range names {
		n = strings.TrimPrefix(strings.TrimSpace(n), "@")
		if n == "" {
			return nil, fault.Field(field, "must not hold an empty name")
		}
		if key := strings.ToLower(n); !seen[key] {
			seen[key] = true
			out = append(out, n)
		}
	}
	return out, nil
}

func checkTargets(tx ReadTx, cast *room.Cast, names, roles []string, threadID string) error {
	people, err := tx.TimelinePeople(cast.Room.No)
	if err != nil {
		return err
	}
	for _, n := range names {
		switch {
		case strings.EqualFold(n, room.EveryoneName):
			if threadID != "" {
				return fault.Field("target_names", "%s is for the top level of the room: leave out thread_id", room.EveryoneName)
			}
		case named(cast, n) == nil && !containsFold(people, n):
			return fault.Field("target_names", "%s is nobody in this room; participants: %s", shorten(n), participants(cast, people))
		}
	}
	for _, r := range roles {
		if !containsFold(cast.Roles, r) {
			return fault.Field("target_roles", "%s is no role of this room; roles: %s", shorten(r), listed(cast.Roles))
		}
	}
	return nil
}

// named finds a member by its name, else by its alias.
func named(cast *room.Cast, name string) *room.Member {
	var alias *room.Member
	for i := range cast.Members {
		m := &cast.Members[i]
		if strings.EqualFold(m.Agent.Name, name) {
			return m
		}
		if m.Alias != "" && strings.EqualFold(m.Alias, name) {
			alias = m
		}
	}
	return alias
}

func containsFold(list []string, s string) bool {
	for _, e := range list {
		if strings.EqualFold(e, s) {
			return true
		}
	}
	return false
}

func participants(cast *room.Cast, people []string) string {
	var all []string
	for i := range cast.Members {
		name := cast.Members[i].Agent.Name
		if a := cast.Members[i].Alias; a != "" {
			name += " (" + a + ")"
		}
		all = append(all, name)
	}
	return listed(append(all, people...))
}

func listed(names []string) string {
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > maxListed:
		return strings.Join(names[:maxListed], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// mention is what a targeted body starts with.
func mention(names, roles []string) string {
	var b strings.Builder
	for _, list := range [][]string{names, roles} {
		for _, n := range list {
			b.WriteString("@" + n + " ")
		}
	}
	return b.String()
}

func (t *Timeline) targetStatuses(p Posted, names, roles []string) map[string]string {
	out := map[string]string{}
	tell := func(key string, m *room.Member) {
		if p.refused[m.Agent.No] {
			out[key] = string(room.StatusNotPermitted)
			return
		}
		out[key] = string(t.presence.Status(m.Agent.No, m.Agent.Profile.ConnectionModel, p.cast.Room.No))
	}
	for _, n := range names {
		if strings.EqualFold(n, room.EveryoneName) {
			out[room.EveryoneName] = statusNoBridge
		} else if m := named(p.cast, n); m != nil {
			tell(n, m)
		}
	}
	if len(roles) == 0 {
		return out
	}
	for no, role := range p.held {
		if m := memberOf(p.cast, no); m != nil && containsFold(roles, role) {
			tell(m.Agent.Name, m)
		}
	}
	return out
}
