package api

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/explain"
	"signalbox/appliance/room/timeline"
)

// allRooms selects every room.
var allRooms = directory.Filter{IncludeArchived: true}

// count is an optional number of at least low.
func (q *query) count(name string, low, absent int64) int64 {
	if !q.values.Has(name) {
		return absent
	}
	n, err := strconv.ParseInt(q.values.Get(name), 10, 64)
	if err != nil || n < low {
		q.bad(name, "must be an integer of at least %d", low)
		return absent
	}
	return n
}

// maxItemPage is the most items of one page.
const maxItemPage = 200

func (a *API) listItems(w http.ResponseWriter, c *call) error {
	q := c.query()
	after, before := q.count("after", 0, -1), q.count("before", 1, -1)
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	if q.values.Has("after") && q.values.Has("before") {
		q.bad("before", "excludes after")
	}
	if err := q.err(); err != nil {
		return err
	}
	ctx, _, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	n := int(min(limit, maxItemPage))
	var items []room.Item
	head, more := r.LastPosition, false
	if q.values.Has("after") {
		items, head, err = a.Rooms.Timeline.Since(ctx, r.No, after, n)
		more = len(items) > 0 && items[len(items)-1].Position < head
	} else {
		items, more, err = a.Rooms.Timeline.Before(ctx, r.No, max(before, 0), n)
	}
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		Items []itemPublic `json:"items"`
		Head  int64        `json:"head"`
		More  bool         `json:"more"`
	}{each(items, func(i *room.Item) itemPublic { return showItem(r.ID, i) }), max(head, r.LastPosition), more})
}

type statusOfPublic struct {
	AgentID string      `json:"agent_id"`
	Name    string      `json:"name"`
	Status  room.Status `json:"status"`
	// Covering counts the connections that are attached and cover the room: what is said reaches the agent over these.
	Covering int `json:"covering"`
}

type postedPublic struct {
	Item     itemPublic       `json:"item"`
	Repeated bool             `json:"repeated"`
	Statuses []statusOfPublic `json:"statuses"` // of the agents that it is for
	Answers  []itemPublic     `json:"answers"`
}

// say posts as the operator person, or for an admin as somebody else.
func (a *API) say(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	d := timeline.Draft{RoomID: id, Body: b.required("body"), ThreadID: orEmpty(b.text("thread_id")), RequestID: b.required("request_id")}
	as := orEmpty(b.text("as"))
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.speaker(c, as)
	if err != nil {
		return err
	}
	d.Actor = by
	p, err := a.Rooms.Timeline.Post(ctx, d)
	if err != nil {
		return err
	}
	if as != "" && !p.Repeated { // the item itself does not say who spoke for its sender
		a.recordAct(c, "room_message.said_for", "person", by.ID.String(), map[string]any{"room_id": id.String(), "item_id": p.Item.ID.String()})
	}
	show := func(i *room.Item) itemPublic { return showItem(id, i) }
	out := postedPublic{Item: show(&p.Item), Repeated: p.Repeated, Statuses: []statusOfPublic{}, Answers: each(p.Answers, show)}
	for no, s := range p.Statuses {
		ag, err := a.Rooms.Identity.AgentByNo(ctx, no)
		switch {
		case fault.Is(err, fault.NotFound): // deleted since
			continue
		case err != nil: // the post is stored: its answer must not fail for this
			a.logTrouble(c.Request, err, "status of an addressed agent not told")
			continue
		}
		out.Statuses = append(out.Statuses, statusOfPublic{ag.ID.String(), ag.Name, s,
			hearers(covering(a.Rooms.Connections, no, p.Item.RoomNo))})
	}
	sortBy(out.Statuses, func(s *statusOfPublic) string { return s.Name })
	status := http.StatusCreated
	if p.Repeated {
		status = http.StatusOK
	}
	return reply(w, c, status, out)
}

// hearers counts the connections that pass on what is said.
func hearers(conns []explain.Connection) (n int) {
	for i := range conns {
		if conns[i].Attached && conns[i].Covers {
			n++
		}
	}
	return n
}

// speaker is who posts. An exact name wins over one that differs in case.
func (a *API) speaker(c *call, as string) (context.Context, room.Actor, error) {
	ctx, by, err := a.operator(c)
	if err != nil || as == "" {
		return ctx, by, err
	}
	if err := mustAdmin(c); err != nil {
		return ctx, by, fault.Wrap(fault.Forbidden, err, "as: only an admin speaks for others")
	}
	p, err := a.Rooms.Identity.PersonNamed(ctx, as)
	if fault.Is(err, fault.NotFound) {
		p, err = a.personFolded(ctx, as)
	}
	if err == nil && p.DisabledAt != nil {
		err = fault.New(fault.Conflict, "as: %s is disabled", p.Email)
	}
	return ctx, p.Actor(), err
}

// personFolded finds the only person whose name is the text, without regard to case.
func (a *API) personFolded(ctx context.Context, text string) (found room.Person, err error) {
	people, err := a.Rooms.Identity.People(ctx)
	if err != nil {
		return found, err
	}
	n := 0
	for i := range people {
		if strings.EqualFold(people[i].Name, text) {
			found = people[i]
			n++
		}
	}
	switch n {
	case 0:
		return found, fault.New(fault.NotFound, "no person %q", text)
	case 1:
		return found, nil
	}
	return room.Person{}, fault.New(fault.Conflict, "several people are called %q: use the email address or the id", text)
}

// itemRecord is one item of a stream.
type itemRecord struct {
	Type   string     `json:"type"` // item
	Cursor string     `json:"cursor"`
	Item   itemPublic `json:"item"`
}

func (a *API) streamItems(w http.ResponseWriter, c *call) error {
	q := c.query()
	at, follow := a.streamQuery(q)
	last := q.count("last", 1, 0)
	if err := q.err(); err != nil {
		return err
	}
	_, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if last > 0 && at.head {
		at = position{seq: max(0, r.LastPosition-last)}
	}
	return a.serveStream(w, c, at, follow, logReader{
		key: timeline.RoomKey{RoomNo: r.No},
		head: func(ctx context.Context) (int64, error) {
			_, head, err := a.Rooms.Timeline.Since(ctx, r.No, math.MaxInt64, 1)
			return head, err
		},
		read: func(ctx context.Context, after int64) (logPage, error) {
			if _, err := a.Rooms.Directory.Room(ctx, by, r.ID); err != nil { // deleted meanwhile
				return logPage{}, err
			}
			items, head, err := a.Rooms.Timeline.Since(ctx, r.No, after, streamPage)
			p := logPage{next: after, resumed: min(after, head), head: head}
			if len(items) > 0 {
				p.next = items[len(items)-1].Position
			}
			p.more = p.next < head
			p.records = each(items, func(i *room.Item) any {
				return itemRecord{"item", a.streamCursor(i.Position), showItem(r.ID, i)}
			})
			return p, err
		},
	})
}

// eachRoomAgent calls fn for every agent by name.
func (a *API) eachRoomAgent(ctx context.Context, fn func(*room.Agent) error) error {
	var after string
	for {
		agents, more, err := a.Rooms.Identity.Agents(ctx, agentPage(after))
		if err != nil {
			return err
		}
		for i := range agents {
			if err := fn(&agents[i]); err != nil {
				return err
			}
		}
		if !more || len(agents) == 0 {
			return nil
		}
		after = agents[len(agents)-1].Name
	}
}

// roomOfItem finds the room that an item is in, by its number.
func (a *API) roomOfItem(ctx context.Context, by room.Actor, itemID uuid.UUID) (room.Item, room.Room, error) {
	item, err := a.Rooms.Timeline.Item(ctx, itemID)
	if err != nil {
		return item, room.Room{}, err
	}
	rooms, err := a.Rooms.Directory.Rooms(ctx, by, allRooms)
	if err != nil {
		return item, room.Room{}, err
	}
	for i := range rooms {
		if rooms[i].No == item.RoomNo {
			return item, rooms[i], nil
		}
	}
	return item, room.Room{}, fault.New(fault.NotFound, "message not found: its room was deleted")
}
