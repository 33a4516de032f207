package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// KnownTypes are the types that the server builds a profile for (A.3), by name.
func KnownTypes() []string {
	return []string{"antigravity", "claude-code", "codex", "cursor", "opencode"}
}

// maxBulk is how many agents one bulk registration makes.
const maxBulk = 200

// KnownOptions are the options of a known type. Only claude-code and the types whose events reach a running session have
// both; nil is the default.
type KnownOptions struct {
	ChannelsEnabled *bool `json:"channels_enabled"` // events reach the session by themselves
	AutoSession     *bool `json:"auto_session"`     // a session is started when one is needed
}

// NewKnownAgent is the body of POST /agents/register-known (A.3). UnmarshalJSON refuses what does not have its shape.
type NewKnownAgent struct {
	Type, Name, Description string
	DisplayName, IconURL    *string
	Options                 KnownOptions
	Parent                  uuid.UUID // uuid.Nil: none
	Overwrite               bool
}

// UnmarshalJSON reads the body of POST /agents/register-known. Its errors are about the shape of the body (422).
func (n *NewKnownAgent) UnmarshalJSON(b []byte) error {
	var in struct {
		Type        *string         `json:"agent_type"`
		Name        *string         `json:"name"`
		Description string          `json:"description"`
		DisplayName *string         `json:"display_name"`
		IconURL     *string         `json:"icon_url"`
		Options     json.RawMessage `json:"options"`
		Parent      *string         `json:"parent_agent_id"`
		Overwrite   bool            `json:"overwrite"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if in.Type == nil {
		return missing("agent_type")
	}
	if in.Name == nil {
		return missing("name")
	}
	*n = NewKnownAgent{Type: *in.Type, Name: *in.Name, Description: in.Description, DisplayName: in.DisplayName,
		IconURL: in.IconURL, Overwrite: in.Overwrite}
	var err error
	if n.Options, err = parseOptions("options", in.Options); err != nil {
		return err
	}
	if in.Parent != nil {
		n.Parent, err = parseID("parent_agent_id", *in.Parent)
	}
	if err != nil {
		return err
	}
	return checkType("agent_type", n.Type)
}

// NewKnownAgents is the body of POST /agents/register-known-bulk: children of one parent (A.3).
type NewKnownAgents struct {
	Type      string
	Parent    uuid.UUID
	Options   KnownOptions
	Overwrite bool
	Children  []NewChild
}

// NewChild is one child: its name is that of the parent, a full stop and SubagentName.
type NewChild struct {
	SubagentName string  `json:"subagent_name"`
	Description  string  `json:"description"`
	DisplayName  *string `json:"display_name"`
	IconURL      *string `json:"icon_url"`
}

// UnmarshalJSON reads the body of POST /agents/register-known-bulk. Its errors are about the shape of the body (422).
func (n *NewKnownAgents) UnmarshalJSON(b []byte) error {
	var in struct {
		Type      *string         `json:"agent_type"`
		Parent    *string         `json:"parent_agent_id"`
		Options   json.RawMessage `json:"options"`
		Overwrite bool            `json:"overwrite"`
		Children  []NewChild      `json:"subagents"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if in.Type == nil {
		return missing("agent_type")
	}
	if in.Parent == nil {
		return missing("parent_agent_id")
	}
	if len(in.Children) == 0 || len(in.Children) > maxBulk {
		return fault.Field("subagents", "must be a list of 1 to %d objects", maxBulk)
	}
	*n = NewKnownAgents{Type: *in.Type, Overwrite: in.Overwrite, Children: in.Children}
	var err error
	if n.Options, err = parseOptions("options", in.Options); err != nil {
		return err
	}
	if n.Parent, err = parseID("parent_agent_id", *in.Parent); err != nil {
		return err
	}
	return checkType("agent_type", n.Type)
}

func parseOptions(field string, b json.RawMessage) (o KnownOptions, err error) {
	if orNil(b) == nil {
		return o, nil
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return o, fault.Wrap(fault.Invalid, err, "%s: must be an object of channels_enabled and auto_session", field)
	}
	return o, nil
}

func parseID(field, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, fault.Field(field, "must be an id, which is a UUID")
	}
	return id, nil
}

func checkType(field, name string) error {
	if !slices.Contains(KnownTypes(), name) {
		return fault.Field(field, "must be one of %s", strings.Join(KnownTypes(), ", "))
	}
	return nil
}

// KnownProfile is the profile of a known type (A.3). What events reach by themselves is session_addressable, or
// auto_session when its host also starts sessions; what has to ask for them is session_passive.
func KnownProfile(name string, o KnownOptions) (room.Profile, error) {
	if err := checkType("agent_type", name); err != nil {
		return room.Profile{}, err
	}
	p := room.Profile{ConnectionModel: room.SessionAddressable, MessageExchange: true, Commands: NoCommands()}
	if name != "antigravity" && name != "cursor" {
		p.Commands = room.CommandCapabilities{Reset: room.CapabilitySessionDependent,
			Compact: room.CapabilitySessionDependent, Interrupt: room.CapabilitySessionDependent}
	}
	channels := name != "antigravity" && name != "cursor"
	if o.ChannelsEnabled != nil {
		channels = *o.ChannelsEnabled
	}
	switch auto := o.AutoSession != nil && *o.AutoSession; {
	case auto:
		p.ConnectionModel = room.AutoSession
	case !channels:
		p.ConnectionModel = room.SessionPassive
	}
	return p, nil
}

// agent is the registration that a known type stands for.
func (n *NewKnownAgent) agent() (NewAgent, error) {
	p, err := KnownProfile(n.Type, n.Options)
	if err != nil {
		return NewAgent{}, err
	}
	return NewAgent{Name: n.Name, Description: n.Description, DisplayName: n.DisplayName, IconURL: n.IconURL, Profile: p,
		Overwrite: n.Overwrite, agentType: n.Type, parent: n.Parent, hasParent: n.Parent != uuid.Nil}, nil
}

// RegisterKnown is Register for an agent of a known type.
func (d *Identity) RegisterKnown(ctx context.Context, by Registrant, n NewKnownAgent) (Registered, error) {
	a, err := n.agent()
	if err != nil {
		return Registered{}, err
	}
	return d.Register(ctx, by, a)
}

// RegisterKnownBulk registers children of a parent, all or none; every name is checked before any is made (A.3).
func (d *Identity) RegisterKnownBulk(ctx context.Context, by Registrant, n NewKnownAgents) ([]Registered, error) {
	if len(n.Children) == 0 || len(n.Children) > maxBulk {
		return nil, fault.Field("subagents", "must be a list of 1 to %d objects", maxBulk)
	}
	parent, err := d.Agent(ctx, n.Parent)
	if fault.Is(err, fault.NotFound) || err == nil && parent.OwnerNo != by.Owner.No {
		return nil, fault.Field("parent_agent_id", "must be the id of an agent of yours")
	}
	if err != nil {
		return nil, err
	}
	all := make([]NewAgent, len(n.Children))
	seen := map[string]bool{}
	for i, c := range n.Children {
		field := fmt.Sprintf("subagents[%d].subagent_name", i)
		if err := room.ValidName(field, c.SubagentName); err != nil {
			return nil, err
		}
		if seen[c.SubagentName] {
			return nil, fault.Field(field, "is given twice")
		}
		seen[c.SubagentName] = true
		k := NewKnownAgent{Type: n.Type, Name: parent.Name + "." + c.SubagentName, Description: c.Description,
			DisplayName: c.DisplayName, IconURL: c.IconURL, Options: n.Options, Parent: n.Parent, Overwrite: n.Overwrite}
		if all[i], err = k.agent(); err != nil {
			return nil, err
		}
	}
	return d.registerAll(ctx, by, all)
}
