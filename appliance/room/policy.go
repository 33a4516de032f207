package room

// Policy says who may address an agent (D.8). A nil policy, and one without rules, admit everybody.
type Policy struct {
	Rules []Rule `json:"rules"`
}

// Rule admits a sender when the room and its group match and the sender matches the list of its kind or an owner field.
type Rule struct {
	Rooms       Selector `json:"rooms"`
	RoomGroups  Selector `json:"room_groups"`
	Users       Selector `json:"users"`
	Agents      Selector `json:"agents"`
	Owner       bool     `json:"owner"`
	OwnerAgents bool     `json:"owner_agents"`
}

// Selector is "*" or a list of ids; an empty list matches nothing.
type Selector struct {
	All bool
	IDs []string
}
