package fire

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// maxTargets is how many agents are tried for one fire: the next one is asked only when the best refuses the command.
const maxTargets = 3

// StartFire stores a fire and hands it to an agent or puts it into the buffer (agent protocol G.2 to G.4), inside the
// caller's transaction. A fire that is there already is answered with what is stored. A command that cannot be issued makes
// the fire failed: errors are the store's, and Conflict naming fire_id when somebody triggers under the id of another fire.
func (f *Fires) StartFire(stx schedule.Tx, n schedule.NewFire) (schedule.Fired, error) {
	tx, err := own(stx)
	if err != nil {
		return schedule.Fired{}, err
	}
	switch stored, found, err := f.stored(tx, &n); {
	case err != nil:
		return schedule.Fired{}, err
	case found:
		return repeated(stored), nil
	}
	id, err := newID()
	if err != nil {
		return schedule.Fired{}, err
	}
	s, now := &n.Schedule, tx.Now()
	fire := Fire{ID: id, FireID: n.FireID, ScheduleNo: s.No, ScheduleID: s.ID, ScheduleName: s.Name, ProjectNo: s.ProjectNo,
		Engine: s.Engine, Origin: n.Origin, SlotAt: n.SlotAt, Status: StatusPending, ScheduledFor: n.ScheduledFor, FiredAt: now}
	payload := commandPayload(s, fire)
	behind, err := f.behind(tx, &n)
	if err != nil {
		return schedule.Fired{}, err
	}
	var cmd *agent.Command
	var why *Trouble
	if !behind {
		if cmd, why, err = f.issue(tx, n.By, fire, s.ID, s.Engine, payload); err != nil {
			return schedule.Fired{}, err
		}
	}
	to := Buffered
	switch {
	case cmd != nil:
		fire.CommandNo, fire.CommandID = cmd.No, &cmd.ID
		to = Delivered
	case why != nil:
		to = Failed
	}
	fire, _ = fire.To(to, now, why)
	if fire.No, err = tx.InsertFire(fire); err != nil {
		return schedule.Fired{}, err
	}
	if to == Buffered {
		if err := f.enqueue(tx, fire, payload); err != nil {
			return schedule.Fired{}, err
		}
		if behind { // replay hands it over in its turn
			tx.AfterCommit(func() { f.buffer.eligible(fire.ProjectNo) })
		} else if err := f.opts.News.FireBuffered(tx, fire); err != nil {
			return schedule.Fired{}, err
		}
	}
	return schedule.Fired{FireID: fire.FireID, Buffered: to == Buffered, CommandID: fire.CommandID}, f.became(tx, StatusPending, fire)
}

// repeated is the answer to a request for a fire that is there.
func repeated(fire Fire) schedule.Fired {
	return schedule.Fired{FireID: fire.FireID, Buffered: fire.Status == Buffered, CommandID: fire.CommandID, Repeated: true}
}

// TriggeredAs finds the fire of a trigger by its id, as schedule.Starter says.
func (f *Fires) TriggeredAs(stx schedule.Tx, scheduleNo int64, fireID uuid.UUID) (*schedule.Fired, error) {
	tx, err := own(stx)
	if err != nil {
		return nil, err
	}
	stored, found, err := f.stored(tx, &schedule.NewFire{Schedule: schedule.Schedule{No: scheduleNo}, FireID: fireID})
	if err != nil || !found {
		return nil, err
	}
	fired := repeated(stored)
	return &fired, nil
}

// stored finds the fire that the request repeats. An id that another fire has is no repeat: ids of slots to come can be told
// beforehand, and the id of a trigger is whatever its caller says. The slot then gets another id, the trigger Conflict.
func (f *Fires) stored(tx Tx, n *schedule.NewFire) (fire Fire, found bool, err error) {
	if n.SlotAt != nil {
		fire, err = tx.FireOfSlot(n.Schedule.No, *n.SlotAt)
		if !fault.Is(err, fault.NotFound) {
			return fire, err == nil, err
		}
	}
	fire, err = tx.FireByFireID(n.FireID)
	switch {
	case fault.Is(err, fault.NotFound):
		return Fire{}, false, nil
	case err != nil:
		return Fire{}, false, err
	case n.SlotAt != nil:
		n.FireID, err = newID()
		return Fire{}, false, err
	case fire.ScheduleNo != n.Schedule.No || fire.SlotAt != nil:
		return Fire{}, false, fault.New(fault.Conflict, "fire_id: is the id of another fire").With("field", "fire_id")
	}
	return fire, true, nil
}

// behind tells whether a slot must wait although an agent could take it: older fires of the schedule are still in the buffer,
// and its slots keep their order. With catch_up skip those are not handed over any more.
func (f *Fires) behind(tx Tx, n *schedule.NewFire) (bool, error) {
	if n.SlotAt == nil || n.Schedule.CatchUp == schedule.Skip {
		return false, nil
	}
	older, err := tx.PendingBefore(n.Schedule.No, n.Schedule.Engine)
	if err != nil || !older {
		return false, err
	}
	targets, err := tx.FireTargets(n.Schedule.ProjectNo, n.Schedule.Engine, 1)
	return len(targets) > 0, err
}

// issue gives the fire to the best agent there is. Neither a command nor a trouble means that no agent is eligible.
func (f *Fires) issue(tx Tx, by agent.Principal, fire Fire, scheduleID uuid.UUID, engine string, payload []byte) (*agent.Command, *Trouble, error) {
	targets, err := tx.FireTargets(fire.ProjectNo, engine, maxTargets)
	if err != nil {
		return nil, nil, err
	}
	var why *Trouble
	for _, t := range targets {
		cmd, err := f.issueTo(tx, by, t, fire, scheduleID, payload)
		if err == nil {
			return cmd, nil, nil
		}
		if !refused(err) {
			return nil, nil, err
		}
		if why == nil {
			why = &Trouble{Code: CodeRefused, Message: "agent " + t.Name + ": " + fault.Message(err)}
		}
	}
	return nil, why, nil
}

// issueTo issues the schedule.fire command of agent protocol G.3 for one agent.
func (f *Fires) issueTo(tx Tx, by agent.Principal, t Target, fire Fire, scheduleID uuid.UUID, payload []byte) (*agent.Command, error) {
	id := scheduleID.String()
	key := "schedule:" + id + ":fire:" + fire.FireID.String()
	issued, err := f.cmds.IssueIn(tx, by, agent.IssueRequest{ProjectNo: fire.ProjectNo, AgentID: t.AgentID,
		Action: actionFire, TargetType: "schedule", TargetID: &id, Payload: payload, IdempotencyKey: &key})
	if err != nil {
		return nil, err
	}
	return &issued.Command, nil
}

// actionFire is the command that a fire becomes.
const actionFire = "schedule.fire"

// refused tells an answer about the request, which leaves the transaction usable, from trouble of the store.
func refused(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.Conflict, fault.NotFound, fault.TooLarge, fault.Forbidden:
		return true
	}
	return false
}

// enqueue puts the fire into the buffer.
func (f *Fires) enqueue(tx Tx, fire Fire, payload []byte) error {
	id, err := newID()
	if err != nil {
		return err
	}
	p := Pending{ID: id, FireNo: fire.No, ScheduleNo: fire.ScheduleNo, ProjectNo: fire.ProjectNo, Engine: fire.Engine,
		Payload: payload, ScheduledFor: fire.ScheduledFor, EnqueuedAt: tx.Now(), ExpiresAt: tx.Now().Add(f.opts.Retention)}
	if err := tx.InsertPending(p); err != nil {
		return err
	}
	tx.Hint(func() { f.buffer.added(Group{p.ProjectNo, p.Engine}, p.ExpiresAt) })
	return nil
}

// commandPayload is the payload of agent protocol G.3.
func commandPayload(s *schedule.Schedule, fire Fire) []byte {
	text := func(v string) []byte { return rawjson.AppendString(nil, v) }
	queue := []byte("null")
	if s.Queue != nil {
		queue = text(*s.Queue)
	}
	return rawjson.AppendCanonicalObject(nil, rawjson.Value{}, "", []rawjson.Member{
		{Key: "args", Value: orJSON(s.Args, "[]")},
		{Key: "engine", Value: text(s.Engine)},
		{Key: "fire_id", Value: text(fire.FireID.String())},
		{Key: "fired_at", Value: text(wireTime(fire.FiredAt))},
		{Key: "kwargs", Value: orJSON(s.Kwargs, "{}")},
		{Key: "queue", Value: queue},
		{Key: "schedule_id", Value: text(s.ID.String())},
		{Key: "schedule_name", Value: text(s.Name)},
		{Key: "scheduled_for", Value: text(wireTime(fire.ScheduledFor))},
		{Key: "task_name", Value: text(s.TaskName)},
	})
}

// wireTime spells a time as Python's isoformat does, which every agent's Python reads: with an offset, not with Z.
func wireTime(t time.Time) string { return strings.TrimSuffix(rawjson.FormatTime(t), "Z") + "+00:00" }

func orJSON(b []byte, absent string) []byte {
	if len(b) == 0 {
		return []byte(absent)
	}
	return b
}

func newID() (uuid.UUID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return id, fault.Wrap(fault.Internal, err, "make an id")
	}
	return id, nil
}

// itoa writes a number into JSON.
func itoa(n int) string { return strconv.Itoa(n) }
