package room

// Addressing is who an item is for, decided per receiver when it is queued (D.8).
type Addressing struct {
	Addressed map[int64]bool // agents by number
	Refused   []int64        // agents meant by the item whose policy refuses its sender, in the order of the cast
}

// IsNotice tells whether an item addresses nobody whatever it says: an answer of the server, or anything else it says
// on its own account. What it says on behalf of a person is that person's.
func (it Item) IsNotice() bool {
	return it.Automatic || it.SenderKind == KindPlatform && it.OnBehalfOf == ""
}

// Address decides for every member of the cast but the item's own agent (D.8). The sender is the one who posted the
// item; held are the roles that agents live-hold in the room, by agent.
func Address(cast *Cast, it Item, sender Actor, held map[int64]string) Addressing {
	var out Addressing
	if it.Kind != ItemMessage || it.IsNotice() {
		return out
	}
	m := ReadMentions(it.Body)
	if m.Nobody() && cast.Room.Channel != ChannelDirect {
		return out
	}
	for i := range cast.Members {
		member := &cast.Members[i]
		if it.SenderKind == KindAgent && it.SenderNo == member.Agent.No {
			continue
		}
		if !Addressed(cast.Room.Channel, m, member, held[member.Agent.No]) {
			continue
		}
		if !member.Agent.Policy.Admits(&cast.Room, sender, &member.Agent) {
			out.Refused = append(out.Refused, member.Agent.No)
			continue
		}
		if out.Addressed == nil {
			out.Addressed = map[int64]bool{}
		}
		out.Addressed[member.Agent.No] = true
	}
	return out
}

// Addressed tells whether a message that somebody said means the member, before its policy is asked (D.8, rules 2 to
// 6). The role is the one the agent live-holds in the room, or "".
func Addressed(channel ChannelType, m Mentioned, member *Member, role string) bool {
	return channel == ChannelDirect || m.Name(member.Agent.Name) || m.Alias(member.Alias) || m.Name(role)
}
