// Package schedule holds the schedules of the agent plane and the scheduler that fires them (agent protocol G.1, G.2).
//
// It has three parts: the pure rules of slots (when a cron, interval or clocked schedule is due, through days on which the
// clocks change), the service Schedules that people and scripts use, and Scheduler, which decides slots as they come due.
// What a fire is and how it reaches an agent is package fire's: it implements Starter.
//
// A slot is a moment at which a schedule is due. Every slot is decided once: fired, or passed over with a row in
// schedule_misfires that says why. DecidedAt of the schedule is the last decided slot, and it is written in the
// transaction that stores the fire, so whatever dies in between, a slot is neither lost nor fired twice. Fires do not wait
// for one another: a run that is slow or stuck holds no later slot up.
package schedule
