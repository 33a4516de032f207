package job

import (
	"fmt"
	"strings"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
)

// explain says what a job waits for.
func (b *book) explain(d Detail) (x Explanation, err error) {
	say := func(format string, args ...any) { x.Sentences = append(x.Sentences, fmt.Sprintf(format, args...)) }
	j, now := &b.row, b.rtx.Now()
	step := ""
	if d.Step != 0 {
		step = strings.ToUpper(stepText(d.Step))
	}
	switch j.State {
	case statePending:
		x.Summary, x.WaitsFor = "The job was made and not started.", "a person"
	case statePreflight:
		x.Summary, x.WaitsFor = "The preflight checks the content and the daemons afresh.", "the preflight"
	case stateAssigning:
		x.Summary, x.WaitsFor = "The daemons are being told about the job.", b.waitsFor(stateAssigning)
	case stateRunning, stateStalled:
		x.Summary = fmt.Sprintf("Step %s runs (%d of %d).", step, j.Position+1, max(len(d.Steps), 1))
		x.WaitsFor = b.waitsFor(stateRunning)
		if c := heldBack(d); c != nil {
			x.Summary = fmt.Sprintf("Step %s is to begin (%d of %d), and its command is held back.", step, j.Position+1, max(len(d.Steps), 1))
		}
		if j.State == stateStalled {
			x.Summary = fmt.Sprintf("Step %s makes no progress.", step)
			if !j.MovedAt.IsZero() {
				say("No byte or file counter has moved since %s.", archive.TimeText(j.MovedAt, now))
			}
		}
	case stateWaiting:
		b.explainWait(&x, say, d, now)
	case stateCancelling:
		x.Summary = fmt.Sprintf("The job is being wound down, one daemon at a time; it ends as %s.", stateText(j.Outcome))
		x.WaitsFor = b.waitsFor(stateCancelling)
	case stateManual:
		b.explainManual(&x, say, d)
	case stateCompleted, stateFailed, stateCancelled:
		x.Summary, x.WaitsFor = fmt.Sprintf("The job is %s.", stateText(j.State)), "nothing"
		if j.Placeholder {
			say("Control does not know this job: only a daemon had it. It was abandoned there, and its files were left.")
		}
	}
	if x.NextAction, err = b.advice(d); err != nil {
		return x, err
	}
	if d.Error != nil {
		say("%s (%s).", strings.TrimSuffix(d.Error.GetMessage(), "."), codeText(d.Error.GetCode()))
	}
	for _, c := range d.Commands {
		b.explainCommand(say, c, now)
	}
	for _, s := range d.Participants {
		switch {
		case isTerminal(j.State) && (s.Closed || !s.Assigned):
		case isTerminal(j.State) && !s.Peer.Online:
			say("Daemon %s does not know yet that the job is over: it is told when it registers.", s.Peer.Name)
		case !s.Peer.Online && !isTerminal(j.State):
			say("Daemon %s is offline, last seen %s.", s.Peer.Name, archive.TimeText(s.Peer.LastSeenAt, now))
		}
	}
	return x, nil
}

// heldBack finds the command of a step that is not sent now.
func heldBack(d Detail) *Sent {
	for i := range d.Commands {
		if c := &d.Commands[i]; c.Kind == archive.ExecuteStep && c.State == command.Pending && c.Held != "" {
			return c
		}
	}
	return nil
}

func (b *book) explainWait(x *Explanation, say func(string, ...any), d Detail, now time.Time) {
	j := &b.row
	switch j.Wait {
	case waitOffline:
		x.Summary, x.WaitsFor = "The job waits for a daemon that is offline.", b.waitsFor(j.Kept)
	case waitUnacked:
		x.Summary, x.WaitsFor = "A command was sent as often as allowed and never acknowledged.", b.waitsFor(j.Kept)
	case waitRoute:
		x.Summary, x.WaitsFor = "The job waits for its route.", "the route"
	case waitSpace:
		x.Summary, x.WaitsFor = "The job waits for free space.", "free space"
	case waitBackend:
		x.Summary, x.WaitsFor = "The job waits for what holds the content at the daemon.", "time"
	case waitBackoff:
		x.Summary, x.WaitsFor = "The job is tried again after a pause.", "time"
	case waitReconcile:
		x.Summary, x.WaitsFor = "Control and a daemon are agreeing on where the job stands.", b.waitsFor(j.Kept)
	case waitReserved:
		x.Summary, x.WaitsFor = "The job waits for another job.", "another job"
	case waitOperator:
		x.Summary, x.WaitsFor = "The job waits for a person.", "a person"
	case waitRetention:
		x.Summary, x.WaitsFor = "The released copy is kept in the trash until its time is over.", "time"
	}
	if j.WaitDetail != "" && (d.Error == nil || d.Error.GetMessage() != j.WaitDetail) {
		say("%s.", strings.TrimSuffix(j.WaitDetail, "."))
	}
	if !j.RetryAt.IsZero() {
		say("The next look is %s.", archive.TimeText(j.RetryAt, now))
	}
	if j.Failures > 0 && j.Kept != statePreflight && d.Step != 0 {
		say("Step %s has failed %d of %d times.", strings.ToUpper(stepText(d.Step)), j.Failures, j.Allowance)
	}
	say("It goes on as %s.", stateText(j.Kept))
}

func (b *book) explainManual(x *Explanation, say func(string, ...any), d Detail) {
	x.Summary, x.WaitsFor = "The job is held: control cannot decide it, and neither side cleans anything up.", "a person"
	for _, s := range d.Participants {
		words := "control holds it as not committed"
		if s.Committed {
			words = "control holds it as committed"
		}
		if s.Reported == nil {
			say("Daemon %s (%s): %s; it has reported no cursor.", s.Peer.Name, roleText(s.Role), words)
			continue
		}
		say("Daemon %s (%s): %s; it reported %s at revision %d, event %d, %s.", s.Peer.Name, roleText(s.Role), words,
			stateText(s.Reported.GetState()), s.Reported.GetRevision(), s.Reported.GetLastEventSequence(),
			map[bool]string{true: "committed", false: "not committed"}[s.Reported.GetCommitted()])
	}
}

// explainCommand tells of a command that wants an answer, or whose work is under way.
func (b *book) explainCommand(say func(string, ...any), c Sent, now time.Time) {
	name := b.peers[c.Daemon.No].Name
	what := c.Kind.String()
	if c.Step != 0 {
		what += " " + strings.ToUpper(stepText(c.Step))
	}
	switch {
	case c.State == command.Pending && c.Held != "":
		say("Command %s for daemon %s is not sent: %s", what, name, c.Held)
	case c.State == command.Pending:
		say("Command %s waits to be sent to daemon %s.", what, name)
	case c.State == command.Sent:
		say("Command %s (%s) was sent to daemon %s %s without an answer, last %s.", what, c.ID, name, times(c.Attempts),
			archive.TimeText(c.LastSentAt, now))
	case c.State == command.Parked:
		say("Command %s (%s) was sent to daemon %s %s, as often as allowed, last %s, without an answer.", what, c.ID, name,
			times(c.Attempts), archive.TimeText(c.LastSentAt, now))
	case c.State == command.Accepted && c.Lease == pb.LeaseState_LEASE_STATE_OPEN:
		say("Daemon %s accepted %s %s and has not ended it.", name, what, archive.TimeText(c.AckedAt, now))
	}
}

// stateUnknown asks actors for the daemons that are offline.
const stateUnknown = pb.JobState_JOB_STATE_UNSPECIFIED

// actors are the participants that must act next in a state; in states where nobody has to, those that are offline.
func (b *book) actors(state pb.JobState) []pb.ParticipantRole {
	var out []pb.ParticipantRole
	switch state {
	case stateAssigning:
		for _, p := range b.parts {
			if !p.Assigned {
				out = append(out, p.Role)
			}
		}
	case stateRunning, stateStalled:
		role := b.executor(archive.StepAt(b.row.Operation, b.row.Position))
		for _, c := range b.view.Commands {
			if c.Kind == archive.ExecuteStep && c.Status == decide.Accepted && c.Lease == pb.LeaseState_LEASE_STATE_OPEN {
				role = c.Role
			}
		}
		out = append(out, role)
	case stateCancelling:
		if role, ok := decide.NextWindDown(&b.view); ok {
			out = append(out, role)
		}
	default:
		for _, p := range b.parts {
			if !b.peers[p.DaemonNo].Online {
				out = append(out, p.Role)
			}
		}
	}
	return out
}

// waitsFor names the daemons that must act next in a state.
func (b *book) waitsFor(state pb.JobState) string {
	var names []string
	for _, r := range b.actors(state) {
		if no := b.daemonOf(r); no != 0 {
			names = append(names, "daemon "+b.peers[no].Name)
		}
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, " and ")
}

func times(n uint32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
