package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/explain"
	"signalbox/appliance/room/identity"
)

// roomsResource is the resource of the scopes of the rooms plane.
const roomsResource = "rooms"

func agentPage(after string) identity.AgentFilter {
	return identity.AgentFilter{After: after, Limit: identity.MaxAgentPage}
}

// itemExplanation says what became of an item for an agent.
type itemExplanation struct {
	Item           itemPublic           `json:"item"`
	Agent          namedPublic          `json:"agent"`
	Code           explain.Code         `json:"code"`
	Summary        string               `json:"summary"`
	Sentences      []string             `json:"sentences"`
	Queued         *queuedPublic        `json:"queued"`
	DroppedThrough int64                `json:"dropped_through"`
	Addressed      *addressedPublic     `json:"addressed"`
	Deliveries     []roomDeliveryPublic `json:"deliveries"`
	Connections    []pathPublic         `json:"connections"`
}

type queuedPublic struct {
	Sequence int64  `json:"sequence"`
	Kind     string `json:"kind"`
	Flag     bool   `json:"flag"`
	At       stamp  `json:"at"`
}

type addressedPublic struct {
	Value bool         `json:"value"`
	Rule  explain.Rule `json:"rule"`
	Text  string       `json:"text"`
}

type roomDeliveryPublic struct {
	ConnectionID string `json:"connection_id"`
	Generation   int64  `json:"generation"`
	Transport    string `json:"transport"`
	Outcome      string `json:"outcome"`
	At           stamp  `json:"at"`
}

type pathPublic struct {
	ConnectionID string       `json:"connection_id"`
	State        explain.Code `json:"state"`
	Text         string       `json:"text"`
}

func (a *API) explainItem(w http.ResponseWriter, c *call) error {
	itemID, err := c.pathID("id")
	if err != nil {
		return err
	}
	q := c.query()
	agentID := q.id("agent")
	if !q.values.Has("agent") {
		q.bad("agent", "is required")
	}
	if err := q.err(); err != nil {
		return err
	}
	f, queued, err := a.explainFacts(c, itemID, agentID)
	if err != nil {
		return err
	}
	e := explain.Explain(f)
	out := itemExplanation{Item: showItem(f.Room.ID, &f.Item), Agent: namedPublic{f.Agent.ID.String(), f.Agent.Name}, Code: e.Code,
		Summary: e.Summary, Sentences: e.Sentences, Queued: queued, DroppedThrough: f.Dropped,
		Deliveries: each(f.Deliveries, func(d *explain.Delivery) roomDeliveryPublic {
			return roomDeliveryPublic{d.Connection, d.Generation, d.Transport, d.Outcome, stamp(d.At)}
		}),
		Connections: each(e.Paths, func(p *explain.Path) pathPublic { return pathPublic{p.Connection, p.State, p.Text} })}
	if e.Addressed != nil {
		out.Addressed = &addressedPublic{e.Addressed.Value, e.Addressed.Rule, e.Addressed.Text}
	}
	return reply(w, c, http.StatusOK, out)
}

// explainFacts gathers what an explanation looks at. The parts are read one after the other: an answer is of a moment.
func (a *API) explainFacts(c *call, itemID, agentID uuid.UUID) (f explain.Facts, queued *queuedPublic, err error) {
	ctx, by, err := a.operator(c)
	if err != nil {
		return f, nil, err
	}
	if f.Item, f.Room, err = a.roomOfItem(ctx, by, itemID); err != nil {
		return f, nil, err
	}
	if f.Agent, err = a.Rooms.Identity.Agent(ctx, agentID); err != nil {
		return f, nil, err
	}
	members, _, err := a.Rooms.Directory.Members(ctx, f.Room.ID)
	if err != nil {
		return f, nil, err
	}
	for i := range members {
		if members[i].Agent.No == f.Agent.No {
			f.Member = &members[i]
		}
	}
	if f.Sender, err = a.senderOf(ctx, &f.Item, members); err != nil {
		return f, nil, err
	}
	f.Role = a.Rooms.Connections.RoleHolders(f.Room.No)[f.Agent.No]
	// Connections first: what they have read is then not ahead of what the buffer is known to hold.
	f.Connections = covering(a.Rooms.Connections, f.Agent.No, f.Room.No)
	event, found, err := a.Rooms.Feed.Find(ctx, f.Agent.No, f.Item.No)
	if err != nil {
		return f, nil, err
	}
	if found {
		f.Queued = &explain.Queued{Sequence: event.Sequence, Flag: event.Flag, At: event.At}
		queued = &queuedPublic{event.Sequence, event.Kind.String(), event.Flag, stamp(event.At)}
		for _, d := range a.Rooms.Connections.Deliveries(f.Agent.No, event.Sequence) {
			f.Deliveries = append(f.Deliveries, explain.Delivery{Connection: d.ConnectionID, Generation: d.Generation,
				Transport: string(d.Transport), Outcome: outcomeOf(d.Skip), At: d.At})
		}
	}
	f.Dropped, err = a.Rooms.Feed.DroppedThrough(ctx, f.Agent.No, f.Room.No)
	return f, queued, err
}

func outcomeOf(s connection.Skip) string {
	switch s {
	case "":
		return explain.OutcomeDelivered
	case connection.SkipFiltered:
		return explain.OutcomeFiltered
	case connection.SkipGap:
		return explain.OutcomeGap
	}
	return explain.OutcomeNotCovered
}

// senderOf is the sender as it is known now; of one that is gone only what the item says.
func (a *API) senderOf(ctx context.Context, i *room.Item, members []room.Member) (room.Actor, error) {
	gone := room.Actor{Kind: i.SenderKind, No: i.SenderNo, Name: i.SenderName}
	id, err := uuid.Parse(i.SenderID)
	if err != nil {
		return gone, nil
	}
	gone.ID = id
	switch i.SenderKind {
	case room.KindPerson:
		p, err := a.Rooms.Identity.Person(ctx, id)
		if fault.Is(err, fault.NotFound) {
			return gone, nil
		}
		return p.Actor(), err
	case room.KindAgent:
		for k := range members {
			if members[k].Agent.ID == id {
				return members[k].Agent.Actor(), nil
			}
		}
		ag, err := a.Rooms.Identity.Agent(ctx, id)
		if fault.Is(err, fault.NotFound) {
			return gone, nil
		}
		return ag.Actor(), err
	}
	return gone, nil
}

// mustAdmin is the right to what only an admin may do on a route that others use too.
func mustAdmin(c *call) error { return agent.Authorize(c.who, roomsResource, true, agent.Admin, nil) }
