package agent

import "fmt"

// parent explains the parent of a bulk retry, which is handed to nobody: its children are.
func (e *explanation) parent() {
	b := &e.bulk
	if e.cmd.Status.Terminal() {
		e.ended()
		e.counts()
		if b.InFlight > 0 {
			e.say("%s that an agent had taken may still be answered for: the counts follow.", countOf(b.InFlight, "child"))
		}
		return
	}
	e.out.WaitingFor = WaitsForChildren
	switch {
	case b.WaitReason != "" && b.InFlight == 0:
		e.out.WaitingFor = WaitsForAgent
		e.out.Summary = fmt.Sprintf("It waits for an agent: %s.", b.WaitReason)
	case b.WaitReason != "":
		e.out.Summary = fmt.Sprintf("It waits for %d of its children to end; no further one is issued: %s.", b.InFlight, b.WaitReason)
	case b.InFlight == 0:
		e.out.Summary = "It is about to issue its next children."
	default:
		e.out.Summary = fmt.Sprintf("It waits for %d of its children to end; each that ends makes room for the next.", b.InFlight)
	}
	e.say("%s", e.out.Summary)
	e.counts()
	at := e.cmd.TimeoutAt
	e.out.Next = NextStep{What: "it ends as timeout unless one of its children ends before", At: &at}
	e.say("Unless one of its children ends before, it ends as timeout at %s.", e.when(at))
}

// counts says how the tasks of a bulk retry stand.
func (e *explanation) counts() {
	b := &e.bulk
	e.say("Of %s, %d were retried, %d failed, %d timed out at their agent, %d were refused, %d were cancelled, %d are under way and %d wait.",
		countOf(b.Total, "task"), b.Completed, b.Failed, b.TimedOut, b.Refused, b.Cancelled, b.InFlight, b.Waiting())
}
