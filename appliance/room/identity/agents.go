package identity

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// Registered is an agent with its key, whose text exists only here.
type Registered struct {
	Agent   room.Agent
	Key     secret.Text
	Rotated bool // the agent was there before
}

// Register makes an agent, or with Overwrite gives an agent of the same owner a new key and profile (A.3, A.4): the old
// key is invalid before it returns. A new agent can be addressed by its owner alone (D.8). Invalid for a bad field,
// Conflict when the name is taken, also by somebody else's agent, Unavailable when the bootstrap owner cannot be
// resolved.
func (d *Identity) Register(ctx context.Context, by Registrant, n NewAgent) (Registered, error) {
	all, err := d.registerAll(ctx, by, []NewAgent{n})
	if err != nil {
		return Registered{}, err
	}
	return all[0], nil
}

// registerAll registers all the agents or none.
func (d *Identity) registerAll(ctx context.Context, by Registrant, all []NewAgent) ([]Registered, error) {
	ids := make([]uuid.UUID, len(all))
	for i := range all {
		err := all[i].check()
		if err == nil {
			ids[i], err = newID()
		}
		if err != nil {
			return nil, err
		}
	}
	out := make([]Registered, len(all))
	err := d.st.Update(ctx, "register agent", func(tx Tx) error {
		owner, err := tx.RoomPersonByNo(by.Owner.No)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if by.Owner = owner; err != nil {
			return fault.Wrap(fault.Unavailable, err, "the owner of new agents cannot be resolved")
		}
		if err := checkOwner(by); err != nil {
			return err
		}
		for i := range all {
			if out[i], err = d.register(ctx, tx, by, &all[i], ids[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (d *Identity) register(ctx context.Context, tx Tx, by Registrant, n *NewAgent, id uuid.UUID) (Registered, error) {
	parent, err := parentOf(tx, by, n)
	if err != nil {
		return Registered{}, err
	}
	out := Registered{Key: secret.NewRoomKey()}
	hash := secret.RoomKeyHash(out.Key.Reveal())
	out.Agent, err = tx.RoomAgentByName(n.Name)
	switch {
	case fault.Is(err, fault.NotFound):
		out.Agent = n.agent(id, by.Owner, parent)
		out.Agent.KeySetAt, out.Agent.CreatedAt, out.Agent.UpdatedAt = tx.Now(), tx.Now(), tx.Now()
		if out.Agent.No, err = tx.InsertRoomAgent(out.Agent, hash); err != nil {
			return Registered{}, err
		}
		return out, d.recordAgent(ctx, tx, by.actor(), "room_agent.registered", out.Agent, registeredBy(by))
	case err != nil:
		return Registered{}, err
	case !n.Overwrite || out.Agent.OwnerNo != by.Owner.No:
		return Registered{}, fault.New(fault.Conflict, "name: an agent called %s exists already", n.Name).With("name", n.Name)
	}
	out.Rotated = true
	n.replace(&out.Agent, parent)
	out.Agent.KeySetAt, out.Agent.UpdatedAt = tx.Now(), tx.Now()
	if err := tx.SetRoomAgentKey(out.Agent.No, hash); err != nil {
		return Registered{}, err
	}
	if err := d.updateAgent(tx, &out.Agent); err != nil {
		return Registered{}, err
	}
	return out, d.recordAgent(ctx, tx, by.actor(), "room_agent.rotated", out.Agent, registeredBy(by))
}

// actor is who registers, for the audit log.
func (r Registrant) actor() room.Actor { return r.Owner.Actor() }

func registeredBy(r Registrant) map[string]any {
	if r.KeyID == uuid.Nil {
		return nil
	}
	return map[string]any{"registration_key_id": r.KeyID.String()}
}

// parentOf finds the parent that the agent names; 0 when it names none.
func parentOf(tx Tx, by Registrant, n *NewAgent) (int64, error) {
	if !n.hasParent {
		return 0, nil
	}
	p, err := tx.RoomAgentByID(n.parent)
	if fault.Is(err, fault.NotFound) || err == nil && p.OwnerNo != by.Owner.No {
		return 0, fault.Field("parent_agent_id", "must be the id of an agent of yours")
	}
	if err == nil && p.Name == n.Name {
		return 0, fault.Field("parent_agent_id", "must be another agent")
	}
	return p.No, err
}

// agent is the new agent, open to its owner alone unless the registration says otherwise.
func (n *NewAgent) agent(id uuid.UUID, owner room.Person, parent int64) room.Agent {
	a := room.Agent{ID: id, Name: n.Name, OwnerNo: owner.No, OwnerID: owner.ID, OwnerName: owner.Name,
		OwnerAdmin: owner.Role == room.RoleAdmin, Policy: room.OwnerOnly()}
	n.replace(&a, parent)
	return a
}

// replace puts in what a registration says. What it leaves out of the looks, the parent and the policy stays (A.4).
func (n *NewAgent) replace(a *room.Agent, parent int64) {
	a.Type, a.Description, a.ConnectorType = n.agentType, n.Description, n.ConnectorType
	a.DisplayName, a.IconURL = textOf(n.DisplayName, a.DisplayName), textOf(n.IconURL, a.IconURL)
	a.Profile, a.RawProfile, a.Tools, a.Models, a.Metadata = n.Profile, n.RawProfile, n.Tools, n.Models, n.Metadata
	if n.hasParent {
		a.ParentNo = parent
	}
	if n.HasPolicy {
		a.Policy = n.Policy
	}
}

// updateAgent stores an agent; what was cached of it is dropped before the caller's Update returns.
func (d *Identity) updateAgent(tx Tx, a *room.Agent) error {
	no := a.No
	a.UpdatedAt = tx.Now()
	tx.Hint(func() { d.cache.drop(no) })
	return tx.UpdateRoomAgent(*a)
}

func (d *Identity) recordAgent(ctx context.Context, tx Tx, by room.Actor, action string, a room.Agent,
	more map[string]any) error {
	meta := map[string]any{"name": a.Name}
	if a.OwnerNo != 0 {
		meta["owner_id"] = a.OwnerID.String()
	}
	for k, v := range more {
		meta[k] = v
	}
	return d.record(ctx, tx, by, action, "room_agent", a.ID, meta)
}

// mayManage tells whether the actor may change the agent: its owner and admins, and with self the agent itself.
func mayManage(by room.Actor, a room.Agent, self bool) error {
	owner := by.Kind == room.KindPerson && a.OwnerNo != 0 && by.OwnerNo == a.OwnerNo
	if by.Admin && by.Kind != room.KindAgent || owner || self && by.Kind == room.KindAgent && by.No == a.No {
		return nil
	}
	return fault.New(fault.Forbidden, "only the owner of %s or an admin may do this", a.Name)
}

// changeAgent runs fn on an agent inside a transaction.
func (d *Identity) changeAgent(ctx context.Context, op string, id uuid.UUID, fn func(Tx, *room.Agent) error) error {
	return d.st.Update(ctx, op, func(tx Tx) error {
		a, err := tx.RoomAgentByID(id)
		if err != nil {
			return named(err, "agent")
		}
		return fn(tx, &a)
	})
}

// DeleteAgent removes an agent for good (A.4): its key, its memberships and what waited for it are gone, its name is free.
// Its owner, an admin and the agent itself may. NotFound when there is none.
func (d *Identity) DeleteAgent(ctx context.Context, by room.Actor, id uuid.UUID) error {
	return d.changeAgent(ctx, "delete agent", id, func(tx Tx, a *room.Agent) error {
		if err := mayManage(by, *a, true); err != nil {
			return err
		}
		if err := d.opts.OnDelete(tx, *a); err != nil {
			return err
		}
		if err := tx.DeleteRoomAgent(a.No); err != nil {
			return err
		}
		no := a.No
		tx.Hint(func() { d.cache.drop(no) })
		tx.AfterCommit(func() { d.opts.Closed(no, "the agent was deleted") })
		return d.recordAgent(ctx, tx, by, "room_agent.deleted", *a, nil)
	})
}

// SetPolicy replaces the addressing policy of an agent (D.8); nil opens it to everybody. Its owner and an admin may.
func (d *Identity) SetPolicy(ctx context.Context, by room.Actor, id uuid.UUID, p *room.Policy) (a room.Agent, err error) {
	err = d.changeAgent(ctx, "set policy", id, func(tx Tx, found *room.Agent) error {
		if err := mayManage(by, *found, false); err != nil {
			return err
		}
		a = *found
		a.Policy = p
		if err := d.updateAgent(tx, &a); err != nil {
			return err
		}
		return d.recordAgent(ctx, tx, by, "room_agent.policy.changed", a, map[string]any{"policy": p})
	})
	return a, err
}

// AgentChange says what of an agent to change; nil leaves a field as it is, "" empties it.
type AgentChange struct {
	Description, DisplayName, IconURL *string
}

// UpdateAgent changes how an agent describes itself. Its owner, an admin and the agent itself may.
func (d *Identity) UpdateAgent(ctx context.Context, by room.Actor, id uuid.UUID, c AgentChange) (a room.Agent, err error) {
	if c.Description != nil {
		if err := checkText("description", *c.Description, maxDescription); err != nil {
			return a, err
		}
	}
	if err := checkLook(c.DisplayName, c.IconURL); err != nil {
		return a, err
	}
	err = d.changeAgent(ctx, "update agent", id, func(tx Tx, found *room.Agent) error {
		if err := mayManage(by, *found, true); err != nil {
			return err
		}
		a = *found
		if c.Description != nil {
			a.Description = *c.Description
		}
		a.DisplayName, a.IconURL = textOf(c.DisplayName, a.DisplayName), textOf(c.IconURL, a.IconURL)
		if err := d.updateAgent(tx, &a); err != nil {
			return err
		}
		return d.recordAgent(ctx, tx, by, "room_agent.updated", a, nil)
	})
	return a, err
}

// Agent finds an agent by its id.
func (d *Identity) Agent(ctx context.Context, id uuid.UUID) (room.Agent, error) {
	return d.viewAgent(ctx, func(tx ReadTx) (room.Agent, error) { return tx.RoomAgentByID(id) })
}

// AgentByNo finds an agent by its number.
func (d *Identity) AgentByNo(ctx context.Context, no int64) (room.Agent, error) {
	return d.viewAgent(ctx, func(tx ReadTx) (room.Agent, error) { return tx.RoomAgentByNo(no) })
}

// AgentNamed finds an agent by its name.
func (d *Identity) AgentNamed(ctx context.Context, name string) (room.Agent, error) {
	return d.viewAgent(ctx, func(tx ReadTx) (room.Agent, error) { return tx.RoomAgentByName(name) })
}

func (d *Identity) viewAgent(ctx context.Context, find func(ReadTx) (room.Agent, error)) (a room.Agent, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		a, err = find(tx)
		return named(err, "agent")
	})
	return a, err
}

// AgentFilter chooses agents.
type AgentFilter struct {
	OwnerNo int64  // 0: anybody's
	Prefix  string // of the name
	After   string // names above it; "": from the first
	Limit   int    // 1 to MaxAgentPage; 0 is the most
}

// MaxAgentPage is how many agents one page has at most.
const MaxAgentPage = 500

// Agents returns agents by name, and whether there are more: ask again with After set to the last name.
func (d *Identity) Agents(ctx context.Context, f AgentFilter) (out []room.Agent, more bool, err error) {
	if f.Limit <= 0 || f.Limit > MaxAgentPage {
		f.Limit = MaxAgentPage
	}
	err = d.st.View(ctx, func(tx ReadTx) error {
		out, err = tx.RoomAgents(f, f.Limit+1)
		return err
	})
	if len(out) > f.Limit {
		out, more = out[:f.Limit], true
	}
	return out, more, err
}

// AgentRooms returns the rooms that an agent is a member of, from one snapshot.
func (d *Identity) AgentRooms(ctx context.Context, agentNo int64) (out []room.Ref, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		out, err = tx.RoomsOfAgent(agentNo)
		return err
	})
	return out, err
}

// OwnerOnlyHint says that only its owner can address an agent, with the one command that opens it. "" when others can
// too. Every surface that shows an agent shows this.
func OwnerOnlyHint(a room.Agent) string {
	if !a.Policy.OwnerOnly() {
		return ""
	}
	return "only its owner can address it; open it with: signalbox roomagents policy " + a.Name + " --open"
}
