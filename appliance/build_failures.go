package appliance

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/store"
)

// failures are the parts that group failed tasks.
type failures struct {
	recorder *failure.Recorder
	service  *failure.Service
	upkeep   *failure.Service
}

// buildFailures makes the groups of failed tasks.
func (a *Appliance) buildFailures(context.Context) error {
	g := a.cfg.Agent
	o := failure.ServiceOptions{RetentionDays: g.EventRetentionDays, Clock: a.clock}
	a.failures = failures{
		recorder: failure.NewRecorder(failure.RecorderOptions{MaxGroups: g.FailureGroups, Overflow: a.failureOverflow}),
		service:  failure.NewService(store.Bind[failure.ServiceTx, failure.ReadTx](a.db), a.auditLog, o),
		upkeep:   failure.NewService(store.BindUpkeep[failure.ServiceTx, failure.ReadTx](a.db), a.auditLog, o),
	}
	return nil
}

// onFailure is all that follows new failures of tasks, in the transaction that stores their events.
func (a *Appliance) onFailure(tx agent.RouterTx, failed []agent.FailedTask) error {
	whole := any(tx).(*store.Tx)
	groups, err := a.failures.recorder.Record(whole, failed)
	if err != nil {
		return err
	}
	for i, g := range groups {
		if g.State == failure.Ignored { // nobody is told of what people chose to ignore
			continue
		}
		key := g.Fingerprint
		if g.CatchAll() {
			key = "" // by task then: what has no group of its own is not one kind
		}
		if err := a.notify.service.OnTaskFailed(whole, failed[i], key); err != nil {
			return err
		}
	}
	return nil
}

func (a *Appliance) failureOverflow(project uuid.UUID, most int) {
	a.log.Warn().Str("part", "failures").Stringer("project", project).Int("groups", most).
		Msg("the project has as many groups of failures as it may: new kinds of failures are counted in one group for all; " +
			"raise agent.failure_groups, or resolve groups and let retention remove them")
}
