package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// NewAgent is the body of POST /agents (A.3). UnmarshalJSON refuses what does not have its shape; Register refuses what
// breaks a rule. Unknown fields are ignored.
type NewAgent struct {
	Name, Description string
	ConnectorType     string // "": external
	DisplayName       *string
	IconURL           *string
	Profile           room.Profile
	RawProfile        json.RawMessage // integration_profile as it arrived; nil: made of Profile
	Tools, Models     json.RawMessage // nil: none
	Metadata          json.RawMessage
	Overwrite         bool
	// Policy is who may address the agent; it counts with HasPolicy alone, else a new agent is owner-only and a known one
	// keeps what it has.
	Policy    *room.Policy
	HasPolicy bool
	agentType string
	parent    uuid.UUID
	hasParent bool
}

// UnmarshalJSON reads the body of POST /agents. Its errors are about the shape of the body (422).
func (n *NewAgent) UnmarshalJSON(b []byte) error {
	var in struct {
		Name        *string         `json:"name"`
		Description string          `json:"description"`
		Connector   string          `json:"connector_type"`
		DisplayName *string         `json:"display_name"`
		IconURL     *string         `json:"icon_url"`
		Profile     json.RawMessage `json:"integration_profile"`
		Tools       json.RawMessage `json:"tools"`
		Models      json.RawMessage `json:"models"`
		Metadata    json.RawMessage `json:"metadata"`
		Overwrite   bool            `json:"overwrite"`
		Policy      json.RawMessage `json:"addressing_policy"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if in.Name == nil {
		return missing("name")
	}
	profile, err := ParseProfile(in.Profile)
	if err != nil {
		return err
	}
	*n = NewAgent{Name: *in.Name, Description: in.Description, ConnectorType: in.Connector, DisplayName: in.DisplayName,
		IconURL: in.IconURL, Profile: profile, RawProfile: in.Profile, Tools: orNil(in.Tools), Models: orNil(in.Models),
		Metadata: orNil(in.Metadata), Overwrite: in.Overwrite, HasPolicy: in.Policy != nil}
	if orNil(in.Policy) != nil {
		if n.Policy, err = room.ParsePolicy(in.Policy); err != nil {
			return fmt.Errorf("addressing_%w", err)
		}
	}
	return n.checkDocuments()
}

// ParseProfile reads an integration_profile (A.3). Capabilities that are not stated are unsupported. Its errors are about
// the shape of the body (422).
func ParseProfile(b json.RawMessage) (room.Profile, error) {
	if orNil(b) == nil {
		return room.Profile{}, missing("integration_profile")
	}
	p := room.Profile{Commands: NoCommands()}
	if err := json.Unmarshal(b, &p); err != nil {
		var typed *json.UnmarshalTypeError
		if errors.As(err, &typed) && typed.Field != "" {
			return p, fault.Field("integration_profile."+typed.Field, "must not be a JSON %s", typed.Value)
		}
		return p, fault.Field("integration_profile", "must be an object")
	}
	if p.ConnectionModel == "" {
		return p, missing("integration_profile.connection_model")
	}
	return p, checkProfile(p)
}

// NoCommands is what an agent can do that obeys no command.
func NoCommands() room.CommandCapabilities {
	return room.CommandCapabilities{Reset: room.CapabilityUnsupported, Compact: room.CapabilityUnsupported,
		Interrupt: room.CapabilityUnsupported}
}

func checkProfile(p room.Profile) error {
	switch p.ConnectionModel {
	case room.AlwaysOn, room.SessionAddressable, room.SessionPassive, room.AutoSession:
	default:
		return fault.Field("integration_profile.connection_model",
			"must be always_on, session_addressable, session_passive or auto_session")
	}
	for _, c := range []struct {
		name  string
		value room.Capability
	}{{"reset", p.Commands.Reset}, {"compact", p.Commands.Compact}, {"interrupt", p.Commands.Interrupt}} {
		switch c.value {
		case room.CapabilityUnsupported, room.CapabilityAlways, room.CapabilitySessionDependent:
		default:
			return fault.Field("integration_profile.command_capabilities."+c.name,
				"must be unsupported, always or session_dependent")
		}
	}
	return nil
}

// described is one entry of tools or models.
type described struct {
	Name        *string         `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// checkDocuments checks the parts that are kept as they arrived.
func (n *NewAgent) checkDocuments() error {
	for _, f := range []struct {
		name string
		b    json.RawMessage
	}{{"integration_profile", n.RawProfile}, {"tools", n.Tools}, {"models", n.Models}, {"metadata", n.Metadata}} {
		if len(f.b) > maxDocument {
			return fault.Field(f.name, "must have at most %d bytes", maxDocument)
		}
		if !utf8.Valid(f.b) {
			return fault.Field(f.name, "must be UTF-8")
		}
	}
	for _, f := range []struct {
		name string
		b    json.RawMessage
	}{{"tools", n.Tools}, {"models", n.Models}} {
		var list []*described
		if f.b == nil {
			continue
		}
		if err := json.Unmarshal(f.b, &list); err != nil {
			return fault.Field(f.name, "must be a list of objects with name and description")
		}
		for i, e := range list {
			if e == nil || e.Name == nil || e.Description == nil {
				return fault.Field(fmt.Sprintf("%s[%d]", f.name, i), "must be an object with name and description")
			}
		}
	}
	if n.Metadata != nil && (n.Metadata[0] != '{' || !json.Valid(n.Metadata)) {
		return fault.Field("metadata", "must be an object")
	}
	return nil
}

// check refuses what breaks a rule of A.3, and fills in what may be left out.
func (n *NewAgent) check() error {
	if err := room.ValidName("name", n.Name); err != nil {
		return err
	}
	if n.ConnectorType == "" {
		n.ConnectorType = "external"
	}
	err := checkText("description", n.Description, maxDescription)
	if err == nil {
		err = checkLine("connector_type", n.ConnectorType, 1, maxConnector)
	}
	if err == nil {
		err = checkLook(n.DisplayName, n.IconURL)
	}
	if err == nil {
		err = checkProfile(n.Profile)
	}
	if err == nil {
		err = n.checkDocuments()
	}
	if err != nil {
		return err
	}
	if n.RawProfile == nil {
		if n.RawProfile, err = rawProfile(n.Profile); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		b     *json.RawMessage
		empty string
	}{{&n.RawProfile, "{}"}, {&n.Tools, "[]"}, {&n.Models, "[]"}, {&n.Metadata, "{}"}} {
		if *f.b, err = compact(*f.b, f.empty); err != nil {
			return err
		}
	}
	return nil
}

// checkLook checks how an agent shows itself.
func checkLook(displayName, iconURL *string) error {
	if displayName != nil && *displayName != "" {
		if err := checkLine("display_name", *displayName, 1, maxName); err != nil {
			return err
		}
	}
	if iconURL != nil && *iconURL != "" {
		return checkIcon(*iconURL)
	}
	return nil
}

// rawProfile writes a profile in the form that agents send.
func rawProfile(p room.Profile) (json.RawMessage, error) {
	none := []string{}
	b, err := json.Marshal(struct {
		room.Profile
		Pre    []string `json:"pre_invocation_mediation"`
		Post   []string `json:"post_invocation_mediation"`
		Report []string `json:"event_reporting"`
	}{p, none, none, none})
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a profile")
	}
	return b, nil
}

func compact(b json.RawMessage, empty string) (json.RawMessage, error) {
	if b == nil {
		return json.RawMessage(empty), nil
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "body: must be JSON")
	}
	return out.Bytes(), nil
}

// orNil makes a JSON null absent.
func orNil(b json.RawMessage) json.RawMessage {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	return b
}

func missing(field string) error { return fault.Field(field, "must be given") }

// textOf is the text behind the pointer, or the other.
func textOf(p *string, other string) string {
	if p == nil {
		return other
	}
	return strings.TrimSpace(*p)
}
