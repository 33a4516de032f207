package feed

import (
	"slices"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Audience says who gets an event of an item, and what is decided for each.
type Audience struct {
	Kind room.EventKind // 0: that of the item
	// Only limits the receivers to these members; nil means all members.
	Only []int64
	// FlagAll and Flagged say for whom a message is addressed. Of a join the flag is the membership's listening.
	FlagAll bool
	Flagged map[int64]bool
	// Commands are the receivers of a command, and what each is told.
	Commands map[int64]room.Command
}

// Queue numbers one event of the item for every member of its room but the one that made it, or for those that the
// audience names. It runs inside the caller's transaction, with the item stored and complete; after COMMIT the events are
// given to the readers that are attached, and these are woken. cast is the item's room.
func (f *Feed) Queue(tx Tx, cast *room.Cast, it room.Item, a Audience) error {
	if a.Kind == 0 {
		a.Kind = kindOf(it.Kind)
	}
	if a.Kind != kindOf(it.Kind) || cast.Room.No != it.RoomNo {
		return fault.New(fault.Internal, "a %s event of a %s item in room %d, of room %d", a.Kind, it.Kind, cast.Room.No, it.RoomNo)
	}
	body, err := encode(cast.Room.ID, cast.Room.Channel, &it)
	if err != nil {
		return err
	}
	if err := f.heads.check(tx); err != nil {
		return err
	}
	placed, err := f.place(tx, it, a)
	if err != nil {
		f.heads.forget()
		return err
	}
	if len(placed) == 0 {
		return nil
	}
	f.heads.note(&it, placed)
	for _, p := range placed {
		if err := f.trim(tx, p); err != nil {
			return err
		}
	}
	d := delivery{feed: f, body: body, commands: a.Commands, placed: placed, event: Event{Kind: a.Kind, Room: cast.Room.Ref(),
		ItemNo: it.No, QueuedAt: tx.Now(), body: body}}
	tx.AfterCommit(d.run)
	tx.Hint(d.unsure)
	return nil
}

// place writes the rows.
func (f *Feed) place(tx Tx, it room.Item, a Audience) (placed []Placed, err error) {
	r := Row{RoomNo: it.RoomNo, ItemNo: it.No, Kind: a.Kind}
	if it.SenderKind == room.KindAgent {
		r.Except = it.SenderNo
	}
	if a.Kind == room.EventCommand {
		for _, agentNo := range sortedKeys(a.Commands) {
			if a.Only != nil && !slices.Contains(a.Only, agentNo) {
				continue
			}
			c := a.Commands[agentNo]
			if placed, err = tx.FeedInsertOne(placed, r, agentNo, Flags{}, &c); err != nil {
				return nil, err
			}
		}
		return placed, nil
	}
	flags := Flags{All: a.FlagAll, Listening: a.Kind == room.EventJoin}
	if a.Only != nil {
		for _, agentNo := range a.Only {
			one := flags
			one.All = a.FlagAll || a.Flagged[agentNo]
			if placed, err = tx.FeedInsertOne(placed, r, agentNo, one, nil); err != nil {
				return nil, err
			}
		}
		return placed, nil
	}
	if placed, known, err := f.placeKnown(tx, r, a); known || err != nil {
		return placed, err
	}
	if !flags.All && !flags.Listening {
		for agentNo, flagged := range a.Flagged {
			if flagged {
				flags.Some = append(flags.Some, agentNo)
			}
		}
	}
	return tx.FeedInsert(make([]Placed, 0, 16), r, flags)
}

// placeKnown writes the rows of all members with the numbers that are known here; false when one is not.
func (f *Feed) placeKnown(tx Tx, r Row, a Audience) (placed []Placed, known bool, err error) {
	if len(f.heads.last) == 0 {
		return nil, false, nil
	}
	members, err := tx.FeedMembers(r.RoomNo)
	if err != nil {
		return nil, false, err
	}
	placed = make([]Placed, 0, len(members))
	for _, m := range members {
		if m.AgentNo == r.Except {
			continue
		}
		last, known := f.heads.last[m.AgentNo]
		if !known {
			return nil, false, nil
		}
		flag := a.FlagAll || a.Flagged[m.AgentNo]
		if a.Kind == room.EventJoin {
			flag = m.Listening
		}
		placed = append(placed, Placed{AgentNo: m.AgentNo, Sequence: last + 1, Flag: flag})
	}
	return placed, true, tx.FeedInsertPlaced(r, placed)
}

func sortedKeys(m map[int64]room.Command) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// delivery hands the events of one item to those who read.
type delivery struct {
	feed     *Feed
	event    Event // what all have in common
	body     *Body
	commands map[int64]room.Command
	placed   []Placed
	ran      bool
}

// unsure follows run, and stands in for it when nobody knows whether the events are stored: then those who read look for
// themselves.
func (d *delivery) unsure() {
	if d.ran {
		return
	}
	for _, p := range d.placed {
		if t := d.feed.tails.get(p.AgentNo); t != nil {
			wakeAll(t.reset())
		}
	}
}

// run is called after COMMIT, on the writer's goroutine.
func (d *delivery) run() {
	d.ran = true
	d.feed.observer.Queued(d.event.Kind, len(d.placed))
	d.feed.bodies.put(d.body)
	for _, p := range d.placed {
		t := d.feed.tails.get(p.AgentNo)
		if t == nil {
			continue
		}
		e := d.event
		e.Sequence, e.Flag = p.Sequence, p.Flag
		if c, ok := d.commands[p.AgentNo]; ok {
			e.command = &c
		}
		wakeAll(t.push(e))
	}
}

func wakeAll(readers []*Reader) {
	for _, r := range readers {
		if r.wake != nil {
			r.wake()
		}
	}
}

// Forget removes the agent's events of a room that it leaves, and the record of those dropped: leaving causes no gap
// (C.7, E.5). Its numbering goes on. Call it in the transaction that removes the membership.
func (f *Feed) Forget(tx Tx, agentNo, roomNo int64) error {
	st, _, err := f.retain(tx, agentNo)
	if err != nil {
		return err
	}
	n, err := tx.FeedDeleteRoom(agentNo, roomNo)
	if err != nil || n == 0 {
		return err
	}
	if err := f.renumber(tx, agentNo, st, n); err != nil {
		return err
	}
	f.resetAfter(tx, agentNo)
	return nil
}

// ForgetRoom does Forget for every member of a room that is deleted. Call it before their memberships are removed.
func (f *Feed) ForgetRoom(tx Tx, roomNo int64) error {
	agents, err := tx.FeedRoomAgents(roomNo)
	if err != nil {
		return err
	}
	for _, agentNo := range agents {
		if err := f.Forget(tx, agentNo, roomNo); err != nil {
			return err
		}
	}
	return nil
}

// ForgetAgent removes everything that waits for an agent that is deleted, in the transaction that deletes it.
func (f *Feed) ForgetAgent(tx Tx, agentNo int64) error {
	if err := tx.FeedDeleteAgent(agentNo); err != nil {
		return err
	}
	f.resetAfter(tx, agentNo)
	return nil
}

// resetAfter has the agent's readers read the database again.
func (f *Feed) resetAfter(tx Tx, agentNo int64) {
	tx.Hint(func() {
		if t := f.tails.get(agentNo); t != nil {
			wakeAll(t.reset())
		}
	})
}
