package failure

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// DefaultMaxGroups is how many groups a project has at most, when nothing else is said.
const DefaultMaxGroups = 1000

// RecorderOptions are the settings of a Recorder.
type RecorderOptions struct {
	// MaxGroups is how many groups a project may have, ignored ones included; 0 is DefaultMaxGroups. What would be one more
	// goes to one group that catches all.
	MaxGroups int
	// Overflow is told after the commit that a failure went to the group that catches all, once an hour for each project:
	// nil tells nobody. It must not block.
	Overflow func(projectID uuid.UUID, maxGroups int)
}

const (
	// overflowEvery is how often Overflow is called for one project.
	overflowEvery = time.Hour
	// countEvery is how long a project counts as full before its groups are counted again.
	countEvery = time.Minute
)

// Recorder counts failures. Safe for concurrent use.
type Recorder struct {
	max      int
	overflow func(uuid.UUID, int)

	mu     sync.Mutex
	told   map[uuid.UUID]time.Time // when the overflow of a project was told
	fullAt map[int64]time.Time     // when a project was found to have all its groups
}

// NewRecorder returns a Recorder.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.MaxGroups <= 0 {
		o.MaxGroups = DefaultMaxGroups
	}
	return &Recorder{max: o.MaxGroups, overflow: o.Overflow, told: map[uuid.UUID]time.Time{}, fullAt: map[int64]time.Time{}}
}

// counted is the failures of one group in one transaction.
type counted struct {
	group       Group
	failures    int
	first, last time.Time
	newest      *agent.FailedTask
}

// add counts one more failure.
func (c *counted) add(f *agent.FailedTask) {
	if c.newest == nil || f.OccurredAt.Before(c.first) {
		c.first = f.OccurredAt
	}
	if c.newest == nil || !f.OccurredAt.Before(c.last) {
		c.newest, c.last = f, f.OccurredAt
	}
	c.failures++
}

// kinds are the failures of one transaction by group, in the order of their first failures: of new groups the first get the
// places that are left.
type kinds struct {
	by    map[string]*counted // by fingerprint
	order []*counted
	of    []*counted // of each failure
}

func kindsOf(failed []agent.FailedTask) *kinds {
	k := &kinds{by: make(map[string]*counted, len(failed)), of: make([]*counted, len(failed))}
	for i := range failed {
		f := &failed[i]
		id := Identify(f.Engine, f.TaskName, f.Exception, f.Traceback)
		c := k.by[id.Fingerprint]
		if c == nil {
			c = &counted{group: Group{Identity: id, ProjectNo: f.ProjectNo, ProjectID: f.ProjectID}}
			k.by[id.Fingerprint] = c
			k.order = append(k.order, c)
		}
		c.add(f)
		k.of[i] = c
	}
	return k
}

// Record counts failures of one project in their groups, inside the transaction that stores their events: it is to be called
// once for each new event. It returns the group of each failure, as they all leave it, without counts and times; failures of
// one group share it. The groups are read once and each is written once, however many the failures are. Its errors are the
// store's.
//
// A failure reopens a resolved group when it happened after the group was resolved, to the second: what an agent had
// buffered from before does not.
func (r *Recorder) Record(tx Tx, failed []agent.FailedTask) ([]*Group, error) {
	if len(failed) == 0 {
		return nil, nil
	}
	k := kindsOf(failed)
	if err := r.count(tx, k); err != nil {
		return nil, err
	}
	if err := r.countBeyond(tx, failed, k); err != nil {
		return nil, err
	}
	groups := make([]*Group, len(failed))
	rows := make([]NewFailure, len(failed))
	for i, c := range k.of {
		groups[i] = &c.group
		rows[i] = NewFailure{GroupNo: c.group.No, OccurredAt: failed[i].OccurredAt, EventNo: failed[i].EventNo}
	}
	return groups, tx.InsertFailures(rows)
}

// count writes the groups, new ones as long as there is room for them.
func (r *Recorder) count(tx Tx, k *kinds) error {
	projectNo := k.order[0].group.ProjectNo
	prints := make([]string, len(k.order))
	for i, c := range k.order {
		prints[i] = c.group.Fingerprint
	}
	heads, err := tx.FailureHeads(projectNo, prints)
	if err != nil {
		return err
	}
	for i := range heads {
		if err := k.by[heads[i].Fingerprint].addTo(tx, &heads[i]); err != nil {
			return err
		}
	}
	if len(heads) == len(k.order) {
		return nil
	}
	room, err := r.room(tx, projectNo)
	for _, c := range k.order {
		if err != nil || room == 0 {
			return err
		}
		if c.group.No == 0 {
			room--
			err = c.begin(tx)
		}
	}
	return err
}

// countBeyond gives the failures without a group to the one that catches all.
func (r *Recorder) countBeyond(tx Tx, failed []agent.FailedTask, k *kinds) error {
	var all *counted
	for i, c := range k.of {
		if c.group.No != 0 {
			continue
		}
		if all == nil {
			all = &counted{group: Group{Identity: Identity{Fingerprint: CatchAll, Engine: "*", TaskName: "*"},
				ProjectNo: c.group.ProjectNo, ProjectID: c.group.ProjectID}}
		}
		all.add(&failed[i])
		k.of[i] = all
	}
	if all == nil {
		return nil
	}
	if r.overflow != nil {
		project, now := all.group.ProjectID, tx.Now()
		tx.AfterCommit(func() { r.tell(project, now) })
	}
	heads, err := tx.FailureHeads(all.group.ProjectNo, []string{CatchAll})
	switch {
	case err != nil:
		return err
	case len(heads) == 0:
		return all.begin(tx)
	}
	return all.addTo(tx, &heads[0])
}

// addTo counts the failures in their stored group.
func (c *counted) addTo(tx Tx, head *Head) error {
	change := Change{No: head.No, Failures: c.failures, First: c.first, Last: c.last,
		Reopen: head.State == Resolved && !c.last.Before(head.StateAt.Truncate(time.Second))}
	if !c.last.Before(head.LastSeen) {
		s := sampleOf(c.newest)
		change.Sample = &s
	}
	c.group.No, c.group.ID, c.group.State = head.No, head.ID, head.State
	if change.Reopen {
		c.group.State = Open
	}
	return tx.AddToFailureGroup(&change)
}

// begin stores the failures as a new group.
func (c *counted) begin(tx Tx) (err error) {
	g := &c.group
	g.ID, g.State, g.StateAt, g.Failures = uuid.New(), Open, tx.Now(), int64(c.failures)
	g.FirstSeen, g.LastSeen, g.Sample = c.first, c.last, sampleOf(c.newest)
	g.No, err = tx.InsertFailureGroup(g)
	return err
}

func sampleOf(f *agent.FailedTask) Sample {
	return Sample{TaskID: f.TaskID, Exception: clip(f.Exception, maxSampleException),
		Traceback: clip(f.Traceback, maxSampleTraceback)}
}

// room is how many more groups the project may have. That there is none is remembered for a while: only retention makes room,
// and a project beyond the cap would have its groups counted again and again.
func (r *Recorder) room(tx Tx, projectNo int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := tx.Now().Sub(r.fullAt[projectNo]); since >= 0 && since < countEvery {
		return 0, nil
	}
	n, err := tx.CountFailureGroups(projectNo, r.max)
	if err == nil && n >= r.max {
		r.fullAt[projectNo] = tx.Now()
	}
	return max(r.max-n, 0), err
}

func (r *Recorder) tell(project uuid.UUID, now time.Time) {
	r.mu.Lock()
	last, ok := r.told[project]
	since := now.Sub(last)
	again := ok && since >= 0 && since < overflowEvery
	if !again {
		r.told[project] = now
	}
	r.mu.Unlock()
	if !again {
		r.overflow(project, r.max)
	}
}
