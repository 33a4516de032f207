package commands

import (
	"encoding/json"
	"time"
)

// idName names somebody or something of the rooms plane.
type idName struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type roomRow struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	Description     string     `json:"description"`
	Instructions    string     `json:"instructions"`
	ChannelType     string     `json:"channel_type"`
	Chat            bool       `json:"chat"`
	Owner           *idName    `json:"owner"`
	Group           *idName    `json:"group"`
	ReadVisibility  string     `json:"read_visibility"`
	WriteVisibility string     `json:"write_visibility"`
	Head            int64      `json:"head"`
	ArchivedAt      *time.Time `json:"archived_at"`
	CreatedAt       time.Time  `json:"created_at"`
	UpdatedAt       time.Time  `json:"updated_at"`

	Members []roomMember       `json:"members"`
	People  []roomPersonMember `json:"people"`
	Roles   []roomRole         `json:"roles"`
	Links   []roomLink         `json:"links"`
}

func (r roomRow) state() string {
	if r.ArchivedAt != nil {
		return "archived"
	}
	return "active"
}

type roomMember struct {
	AgentID     string       `json:"agent_id"`
	Name        string       `json:"name"`
	Alias       *string      `json:"alias"`
	Listening   bool         `json:"listening"`
	Role        *string      `json:"role"`
	Status      string       `json:"status"`
	Addressable string       `json:"addressable"`
	OpenCommand *string      `json:"open_command"`
	ReactsTo    string       `json:"reacts_to"`
	Deaf        []deafReason `json:"deaf"`
	JoinedAt    *time.Time   `json:"joined_at"`
}

type deafReason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

type roomPersonMember struct {
	PersonID string     `json:"person_id"`
	Name     string     `json:"name"`
	Email    string     `json:"email"`
	Manager  bool       `json:"manager"`
	JoinedAt *time.Time `json:"joined_at"`
}

type roomRole struct {
	Name         string   `json:"name"`
	Exclusive    bool     `json:"exclusive"`
	Instructions string   `json:"instructions"`
	HeldBy       []idName `json:"held_by"`
}

type roomLink struct {
	TargetRoomID   string `json:"target_room_id"`
	TargetRoomName string `json:"target_room_name"`
	Label          string `json:"label"`
}

// roomItem is one entry of a room's log.
type roomItem struct {
	ID          string     `json:"id"`
	RoomID      string     `json:"room_id"`
	Position    int64      `json:"position"`
	Kind        string     `json:"kind"`
	Sender      roomSender `json:"sender"`
	OnBehalfOf  *string    `json:"on_behalf_of"`
	Body        string     `json:"body"`
	ThreadID    *string    `json:"thread_id"`
	Attachments []struct {
		Filename string `json:"filename"`
		Size     int64  `json:"size"`
	} `json:"attachments"`
	Automatic bool       `json:"automatic"`
	At        *time.Time `json:"at"`
}

type roomSender struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name"`
}

type postedItem struct {
	Item     roomItem         `json:"item"`
	Repeated bool             `json:"repeated"`
	Statuses []addressedAgent `json:"statuses"`
	Answers  []roomItem       `json:"answers"`
}

// addressedAgent is an agent that a message is for. Covering counts its connections that are attached and cover the room.
type addressedAgent struct {
	AgentID  string `json:"agent_id"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	Covering int    `json:"covering"`
}

type roomItemPage struct {
	Items []roomItem `json:"items"`
	Head  int64      `json:"head"`
}

type roomPolicyRow struct {
	AgentID     string  `json:"agent_id"`
	Name        string  `json:"name"`
	Addressable string  `json:"addressable"`
	OpenCommand *string `json:"open_command"`
	Senders     []struct {
		Kind     string `json:"kind"`
		ID       string `json:"id"`
		Name     string `json:"name"`
		Admitted bool   `json:"admitted"`
	} `json:"senders"`
}

type itemExplanation struct {
	Item      roomItem `json:"item"`
	Agent     idName   `json:"agent"`
	Code      string   `json:"code"`
	Summary   string   `json:"summary"`
	Sentences []string `json:"sentences"`
	Paths     []struct {
		ConnectionID string `json:"connection_id"`
		State        string `json:"state"`
		Text         string `json:"text"`
	} `json:"connections"`
}

type personRow struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	Email       string     `json:"email"`
	Kind        string     `json:"kind"`
	Role        string     `json:"role"`
	HasPassword bool       `json:"has_password"`
	DisabledAt  *time.Time `json:"disabled_at"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
}

func (p personRow) state() string {
	switch {
	case p.DisabledAt != nil:
		return "disabled"
	case !p.HasPassword:
		return "no password"
	}
	return "active"
}

type roomAgentRow struct {
	ID              string            `json:"id"`
	Name            string            `json:"name"`
	DisplayName     *string           `json:"display_name"`
	Description     string            `json:"description"`
	Owner           *idName           `json:"owner"`
	Type            *string           `json:"type"`
	ConnectorType   string            `json:"connector_type"`
	ConnectionModel string            `json:"connection_model"`
	Commands        map[string]string `json:"command_capabilities"`
	Status          string            `json:"status"`
	Connections     int               `json:"connections"`
	Addressable     string            `json:"addressable"`
	OpenCommand     *string           `json:"open_command"`
	Policy          json.RawMessage   `json:"policy"`
	ReactsTo        string            `json:"reacts_to"`
	Deaf            []deafReason      `json:"deaf"`
	KeySetAt        *time.Time        `json:"key_set_at"`
	CreatedAt       *time.Time        `json:"created_at"`
	UpdatedAt       *time.Time        `json:"updated_at"`
	Rooms           []struct {
		ID        string       `json:"id"`
		Name      string       `json:"name"`
		Alias     *string      `json:"alias"`
		Listening bool         `json:"listening"`
		Status    string       `json:"status"`
		ReactsTo  string       `json:"reacts_to"`
		Deaf      []deafReason `json:"deaf"`
	} `json:"rooms"`
}

type registeredAgent struct {
	Agent  record[roomAgentRow] `json:"agent"`
	APIKey string               `json:"api_key"`
}

type registrationKeyRow struct {
	ID        string     `json:"id"`
	Kind      string     `json:"kind"`
	Label     string     `json:"label"`
	Person    *idName    `json:"person"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedAt *time.Time `json:"revoked_at"`
	Key       string     `json:"key,omitempty"`
}

type connectionRow struct {
	ConnectionID string   `json:"connection_id"`
	Agent        idName   `json:"agent"`
	Scope        string   `json:"scope"`
	Filter       string   `json:"filter"`
	SpawnCapable bool     `json:"spawn_capable"`
	Cursor       int64    `json:"cursor"`
	Head         int64    `json:"head"`
	Lag          int64    `json:"lag"`
	Generation   int64    `json:"generation"`
	Claims       []idName `json:"claims"`
	Placements   []struct {
		SessionID string `json:"session_id"`
		RoomID    string `json:"room_id"`
		RoomName  string `json:"room_name"`
	} `json:"placements"`
	Transport     string     `json:"transport"`
	Attached      bool       `json:"attached"`
	Held          bool       `json:"held"`
	LastBeatAt    *time.Time `json:"last_beat_at"`
	LastBeatAgeMS int64      `json:"last_beat_age_ms"`
	Protocol      int        `json:"protocol"`
	Declared      *int       `json:"declared"`
	Client        *string    `json:"client"`
	ClientVersion *string    `json:"client_version"`
	OpenedAt      *time.Time `json:"opened_at"`
	RoleLease     *struct {
		RoomID   string `json:"room_id"`
		RoomName string `json:"room_name"`
		Role     string `json:"role"`
	} `json:"role_lease"`
}
