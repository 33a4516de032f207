package room

import (
	"testing"

	"github.com/google/uuid"
)

func testCast(channel ChannelType, policies ...*Policy) *Cast {
	c := &Cast{Room: Room{No: 1, ID: uuid.New(), Channel: channel}}
	names := []string{"build-bot", "agent", "other"}
	aliases := []string{"bob", "", ""}
	for i, n := range names {
		m := Member{Agent: Agent{No: int64(i + 1), ID: uuid.New(), Name: n, OwnerNo: 7}, Alias: aliases[i]}
		if i < len(policies) {
			m.Agent.Policy = policies[i]
		}
		c.Members = append(c.Members, m)
	}
	return c
}

// Who is addressed, rule by rule (D.8).
func TestAddress(t *testing.T) {
	t.Parallel()
	alice := Actor{Kind: KindPerson, No: 9, ID: uuid.New(), Name: "alice", OwnerNo: 9}
	owner := Actor{Kind: KindPerson, No: 7, ID: uuid.New(), Name: "olga", OwnerNo: 7}
	held := map[int64]string{2: "lead", 3: "lead"}
	message := func(body string) Item {
		return Item{Kind: ItemMessage, SenderKind: KindPerson, SenderNo: 9, Body: body}
	}
	with := func(it Item, change func(*Item)) Item { change(&it); return it }
	for _, c := range []struct {
		name     string
		channel  ChannelType
		item     Item
		sender   Actor
		policies []*Policy
		want     []int64
		refused  []int64
	}{
		{name: "nobody", item: message("hello"), sender: alice},
		{name: "direct needs no mention", channel: ChannelDirect, item: message("hello"), sender: alice, want: []int64{1, 2, 3}},
		{name: "group does", channel: ChannelGroup, item: message("hello"), sender: alice},
		{name: "name", item: message("@agent hi"), sender: alice, want: []int64{2}},
		{name: "two names", item: message("@agent @OTHER hi"), sender: alice, want: []int64{2, 3}},
		{name: "alias", item: message("@Bob hi"), sender: alice, want: []int64{1}},
		{name: "alias with marks", item: message("@*Bob* hi"), sender: alice},
		{name: "role, every holder", item: message("@lead hi"), sender: alice, want: []int64{2, 3}},
		{name: "role with marks", item: message("@~lead~ hi"), sender: alice, want: []int64{2, 3}},
		{name: "role nobody holds", item: message("@reviewer hi"), sender: alice},
		{name: "everyone", item: message("@everyone hi"), sender: alice},
		{name: "a reply addresses nobody by itself", item: with(message("yes"), func(i *Item) { i.ThreadNo = 5 }), sender: alice},
		{name: "system notice in a direct room", channel: ChannelDirect,
			item: with(message("@agent"), func(i *Item) { i.SenderKind = KindPlatform }), sender: Platform()},
		{name: "platform on behalf of a person",
			item: with(message("@agent"), func(i *Item) { i.SenderKind, i.OnBehalfOf = KindPlatform, "alice" }), sender: Platform(),
			want: []int64{2}},
		{name: "automatic answer", channel: ChannelDirect, item: with(message("@agent"), func(i *Item) { i.Automatic = true }),
			sender: alice},
		{name: "join", channel: ChannelDirect, item: Item{Kind: ItemJoin, SenderKind: KindPerson, SenderNo: 9}, sender: alice},
		{name: "not itself", channel: ChannelDirect,
			item:   with(message("@agent"), func(i *Item) { i.SenderKind, i.SenderNo = KindAgent, 2 }),
			sender: Actor{Kind: KindAgent, No: 2, OwnerNo: 7}, want: []int64{1, 3}},
		{name: "a person with the agent's number", item: with(message("@agent"), func(i *Item) { i.SenderNo = 2 }), sender: alice,
			want: []int64{2}},
		{name: "refused", item: message("@agent @build-bot"), sender: alice, policies: []*Policy{OwnerOnly(), nil}, want: []int64{2},
			refused: []int64{1}},
		{name: "refused in a direct room", channel: ChannelDirect, item: message("hi"), sender: alice,
			policies: []*Policy{OwnerOnly(), OwnerOnly(), OwnerOnly()}, refused: []int64{1, 2, 3}},
		{name: "not meant is not refused", item: message("@other"), sender: alice, policies: []*Policy{OwnerOnly()}, want: []int64{3}},
		{name: "the owner", item: message("@build-bot"), sender: owner, policies: []*Policy{OwnerOnly()}, want: []int64{1}},
	} {
		channel := c.channel
		if channel == "" {
			channel = ChannelPublic
		}
		got := Address(testCast(channel, c.policies...), c.item, c.sender, held)
		if len(got.Addressed) != len(c.want) {
			t.Errorf("%s: addressed %v, want %v", c.name, got.Addressed, c.want)
		}
		for _, no := range c.want {
			if !got.Addressed[no] {
				t.Errorf("%s: %d is not addressed", c.name, no)
			}
		}
		if len(got.Refused) != len(c.refused) {
			t.Errorf("%s: refused %v, want %v", c.name, got.Refused, c.refused)
			continue
		}
		for i, no := range c.refused {
			if got.Refused[i] != no {
				t.Errorf("%s: refused %v, want %v", c.name, got.Refused, c.refused)
			}
		}
	}
}
