package failure

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

const (
	// MaxShown is how many failures of a group one Show returns at most.
	MaxShown = 500
	// maxResolved is how many ids Resolve returns at most.
	maxResolved = 10
	// pruneSlice is how many rows retention removes in one transaction.
	pruneSlice = 100
)

// ServiceOptions are the settings of a Service.
type ServiceOptions struct {
	// RetentionDays is how long failures are kept at most, as events are; a project may ask for less. It must be above zero.
	RetentionDays int
	Clock         clock.Clock // nil: the system's
}

// Service reads groups and sets their states. Safe for concurrent use.
type Service struct {
	st    agent.Store[ServiceTx, ReadTx]
	log   *audit.Log
	days  int
	clock clock.Clock
}

// NewService returns a Service on the store.
func NewService(st agent.Store[ServiceTx, ReadTx], log *audit.Log, o ServiceOptions) *Service {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	return &Service{st: st, log: log, days: o.RetentionDays, clock: o.Clock}
}

// List returns a page of the project's groups, the last seen first; samples come without their traceback. Invalid for an
// unknown state.
func (s *Service) List(ctx context.Context, projectNo int64, f Filter, page agent.Page) (groups []Group, err error) {
	if f.State != "" && !slices.Contains(States(), f.State) {
		return nil, fault.Field("state", "must be one of %v", States())
	}
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		groups, err = tx.FailureGroups(projectNo, f, page)
		return err
	})
	return groups, err
}

// Cursor is the place of a group in List.
func Cursor(g *Group) agent.Cursor { return agent.Cursor{At: g.LastSeen, ID: g.ID} }

// Get returns a group of the project; NotFound when there is none.
func (s *Service) Get(ctx context.Context, projectNo int64, id uuid.UUID) (g Group, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		g, err = group(tx, projectNo, id)
		return err
	})
	return g, err
}

// Show returns a group with its latest failures, newest first: limit of them, at most MaxShown. NotFound when there is no
// such group.
func (s *Service) Show(ctx context.Context, projectNo int64, id uuid.UUID, limit int) (g Group, latest []Failure, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		if g, err = group(tx, projectNo, id); err != nil {
			return err
		}
		latest, err = tx.FailuresOf(g.No, min(limit, MaxShown))
		return err
	})
	return g, latest, err
}

// Resolve returns the ids of the project's groups that start with the hex digits of prefix, at most 10; none for what is
// not a prefix.
func (s *Service) Resolve(ctx context.Context, projectNo int64, prefix string) (ids []uuid.UUID, err error) {
	from, to, ok := agent.IDRange(prefix)
	if !ok {
		return nil, nil
	}
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		ids, err = tx.FailureGroupIDs(projectNo, from, to, maxResolved)
		return err
	})
	return ids, err
}

// SetState sets what people think of a group, with an audit row, and returns the group. A group that has the state already
// is left alone. NotFound when there is no such group.
func (s *Service) SetState(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, to State) (g Group, err error) {
	if !slices.Contains(States(), string(to)) {
		return Group{}, fault.Field("state", "must be one of %v", States())
	}
	err = s.st.Update(ctx, "set failure state", func(tx ServiceTx) (err error) {
		if g, err = group(tx, projectNo, id); err != nil || g.State == to {
			return err
		}
		from := g.State
		g.State, g.StateBy, g.StateAt = to, who.Name, tx.Now()
		if err := tx.SetFailureState(g.No, to, who.Name); err != nil {
			return err
		}
		return s.record(tx, who, &g, from)
	})
	if err != nil {
		return Group{}, err
	}
	return g, nil
}

// actions are the audit actions by the state they lead to.
var actions = map[State]string{Open: "failure.reopened", Resolved: "failure.resolved", Ignored: "failure.ignored"}

func (s *Service) record(tx ServiceTx, who agent.Principal, g *Group, from State) error {
	meta, err := json.Marshal(map[string]any{"from": from, "engine": g.Engine, "task_name": g.TaskName, "exception_class": g.Class})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode audit metadata")
	}
	target := g.ID.String()
	return s.log.Append(tx, audit.Entry{ProjectNo: g.ProjectNo, UserID: optional(who.ID), Action: actions[g.State],
		TargetType: "failure", TargetID: &target, Result: audit.Success, Outcome: audit.Allow, Metadata: meta,
		SourceIP: optional(who.SourceIP), UserAgent: optional(who.UserAgent)})
}

// Prune removes one slice of failures that are past the retention of events, and of groups that have none left and were
// last seen before it. Ignored groups stay: a failure that comes back is to find them. more tells that another call has
// work to do.
func (s *Service) Prune(ctx context.Context) (removed int, more bool, err error) {
	var due []agent.ProjectRetention
	err = s.st.View(ctx, func(tx ReadTx) error {
		projects, err := tx.Retention()
		if err != nil {
			return err
		}
		for _, p := range projects {
			found, err := tx.FailuresExpired(p.ProjectNo, s.cutoff(p))
			if err != nil {
				return err
			}
			if found {
				due = append(due, p)
			}
		}
		return nil
	})
	if err != nil || len(due) == 0 {
		return 0, false, err
	}
	p := due[0]
	err = s.st.Update(ctx, "prune failures", func(tx ServiceTx) (err error) {
		cutoff := s.cutoff(p)
		if removed, err = tx.PruneFailures(p.ProjectNo, cutoff, pruneSlice); err != nil || removed == pruneSlice {
			more = err == nil
			return err
		}
		groups, err := tx.PruneFailureGroups(p.ProjectNo, cutoff, pruneSlice)
		removed, more = removed+groups, groups == pruneSlice
		return err
	})
	return removed, err == nil && (more || len(due) > 1), err
}

func (s *Service) cutoff(p agent.ProjectRetention) time.Time {
	days := s.days
	if p.Days > 0 {
		days = min(days, p.Days)
	}
	return s.clock.Now().Add(-time.Duration(days) * 24 * time.Hour)
}

func group(tx ReadTx, projectNo int64, id uuid.UUID) (Group, error) {
	g, err := tx.FailureGroup(projectNo, id)
	if fault.Is(err, fault.NotFound) {
		return Group{}, fault.New(fault.NotFound, "failure group not found")
	}
	return g, err
}

// optional is nil for the empty text.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
