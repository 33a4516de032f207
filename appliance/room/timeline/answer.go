package timeline

import (
	"fmt"
	"strings"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
)

// maxAnswers is how many automatic answers one item brings about. Each is an event for everybody in the room, so what
// goes beyond is told together.
const maxAnswers = 16

// reply is one automatic answer.
type reply struct {
	as    *room.Member // nil: the platform
	body  string
	short string // what is told of it when there are too many: follows a count
}

// refusals are the answers of agents whose policy refuses the sender (D.8).
func refusals(cast *room.Cast, refused []int64, sender room.Actor) []reply {
	out := make([]reply, 0, len(refused))
	for _, no := range refused {
		if m := memberOf(cast, no); m != nil {
			out = append(out, refusal(m, sender))
		}
	}
	return out
}

func refusal(m *room.Member, sender room.Actor) reply {
	return reply{m, fmt.Sprintf("%s may not direct %s. The addressing policy of %s decides who may; its owner can change it.",
		sender.Name, m.Agent.Name, m.Agent.Name), "may not be directed by " + sender.Name}
}

// answer appends automatic answers to an item, in its thread.
func (t *Timeline) answer(tx Tx, s *scene, to room.Item, replies []reply) ([]room.Item, error) {
	root := rootOf(to)
	var out []room.Item
	for _, r := range atMost(replies, maxAnswers) {
		sender := room.Platform()
		if r.as != nil {
			sender = r.as.Agent.Actor()
		}
		it, err := t.append(tx, s.cast, &s.spot, NewItem{Kind: room.ItemMessage, Sender: sender, Body: r.body,
			ThreadNo: root.no, ThreadID: root.id, Automatic: true},
			func(room.Item) feed.Audience { return feed.Audience{} })
		if err != nil {
			return nil, err
		}
		out = append(out, it)
	}
	return out, nil
}

// atMost has the platform tell together what is beyond n replies.
func atMost(replies []reply, n int) []reply {
	if len(replies) <= n {
		return replies
	}
	rest := replies[n-1:]
	counts := map[string]int{}
	var kinds []string
	for _, r := range rest {
		if counts[r.short] == 0 {
			kinds = append(kinds, r.short)
		}
		counts[r.short]++
	}
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d %s", counts[k], k)
	}
	return append(replies[:n-1:n-1], reply{body: "Of the other agents: " + strings.Join(kinds, "; ") + "."})
}
