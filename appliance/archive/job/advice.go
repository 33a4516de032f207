package job

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// advice names the one next action of a person for a job (product rule P6), with a command line that works as it stands, but
// for what only the person knows.
func (b *book) advice(d Detail) (string, error) {
	j := &b.row
	switch j.State {
	case statePending:
		return b.does("Cancel it, as a job is started when it is made: %s.", "jobs cancel"), nil
	case stateRunning:
		if c := heldBack(d); c != nil {
			return b.adviceHeld(d, c)
		}
	case stateStalled:
		return b.does("Look at the daemon, its disk and its mounts: %s. The job goes on when bytes move again.", "daemons show",
			b.daemonIn(stateRunning)), nil
	case stateWaiting:
		return b.adviceWait(d)
	case stateManual:
		return b.adviceManual(d), nil
	case stateCompleted, stateCancelled:
		return "Nothing.", nil
	case stateFailed:
		return b.adviceFailed(d), nil
	}
	return b.does("Nothing: it goes on by itself; %s follows it.", "jobs watch"), nil
}

// does puts a command line into a sentence: of the job, unless something else is named.
func (b *book) does(sentence, command string, about ...string) string {
	if len(about) == 0 {
		about = []string{b.row.ID.String()}
	}
	return fmt.Sprintf(sentence, "`signalbox "+command+" "+strings.Join(about, " ")+"`")
}

// adviceHeld is for a step whose command is not sent.
func (b *book) adviceHeld(d Detail, c *Sent) (string, error) {
	if j := &b.row; j.RouteNo != 0 {
		ready, why, err := b.e.routes.Ready(b.rtx, j.RouteNo)
		if err != nil || !ready {
			return b.adviceRoute(d, why), err
		}
	}
	if p := b.peers[c.Daemon.No]; p.Paused {
		return b.does("Give one of the two daemons another configuration: %s.", "daemons show", p.ID.String()), nil
	}
	return b.does("Nothing: what holds the command back passes by itself; %s follows it.", "jobs watch"), nil
}

// adviceRoute is for a job whose route is not ready.
func (b *book) adviceRoute(d Detail, why string) string {
	if strings.Contains(why, "create the route again") {
		return b.does("Cancel it: %s. Then remove the route, create it again and make the job anew: the route will not be ready again.", "jobs cancel")
	}
	return b.does("Have the route probed anew: %s. It says what is wrong, and the job goes on when the route is ready.", "routes test", b.routeID(d))
}

func (b *book) routeID(d Detail) string {
	if id := b.def.GetRouteId(); id != "" {
		return id
	}
	return d.Asked().Route.String()
}

func (b *book) adviceWait(d Detail) (string, error) {
	j := &b.row
	switch j.Wait {
	case waitOffline:
		if who := b.daemonIn(stateUnknown); who != "" {
			return b.does("Start the daemon or repair its connection: %s. The job goes on when it has registered.", "daemons show", who), nil
		}
	case waitUnacked:
		return b.does("Look at the daemon, then grant more sends: %s. A late answer counts too.", "jobs retry"), nil
	case waitRoute:
		if j.RouteNo != 0 {
			_, why, err := b.e.routes.Ready(b.rtx, j.RouteNo)
			return b.adviceRoute(d, why), err
		}
	case waitSpace:
		return b.does("Make room, then have it tried at once: %s. It is looked at again without that too, and finished files are not "+
			"copied again.", "jobs retry"), nil
	case waitBackend:
		return b.does("Mend what holds the content at the daemon, then have it tried at once: %s. It is tried again without that too.",
			"jobs retry"), nil
	case waitBackoff:
		return b.does("Nothing: it is tried again by itself; %s has it tried at once.", "jobs retry"), nil
	case waitReserved:
		holder, err := b.holder()
		if err != nil {
			return "", err
		}
		if holder != uuid.Nil {
			return b.does("Wait for the other job, or end it: %s says where it stands.", "jobs explain", holder.String()), nil
		}
	case waitOperator:
		return b.does("Put right what failed, then grant attempts: %s.", "jobs retry"), nil
	case waitRetention:
		return b.does("Nothing until the retention is over; %s has the time.", "jobs show"), nil
	}
	return b.does("Nothing: it goes on by itself; %s follows it.", "jobs watch"), nil
}

// adviceManual is for a held job. What would be refused is not offered.
func (b *book) adviceManual(d Detail) string {
	resumes := b.row.Definition != nil && !b.row.Undone
	for _, s := range d.Participants {
		at := s.Reported.GetState()
		resumes = resumes && !s.Closed && !isTerminal(at) && at != stateCancelling && s.State != stateCancelled && s.State != stateCancelling
	}
	id := b.row.ID.String()
	if !resumes {
		return b.does("Look at the content on both sides, then decide: %s, or --complete in the place of --abandon if the job's work is there.",
			"jobs resolve", id, "--abandon --reason 'WHY'")
	}
	return b.does("Look at the content on both sides, then decide: %s, or --complete or --abandon in the place of --resume.",
		"jobs resolve", id, "--resume --reason 'WHY'")
}

// adviceFailed is how a job is made anew.
func (b *book) adviceFailed(d Detail) string {
	if b.row.Placeholder {
		return "Look at the daemon's own directories for files of the job."
	}
	asked := d.Asked()
	const again = "Put right what failed, then look whether it would pass: %s. A retry is a new job."
	source, target, resource := asked.Source.String(), asked.Target.String(), quoted(asked.ResourceID)
	switch b.row.Operation {
	case pb.JobOperation_JOB_OPERATION_ADOPT:
		return b.does(again, "jobs preview adopt", target, resource)
	case pb.JobOperation_JOB_OPERATION_EVICT:
		return b.does(again, "jobs preview evict", source, resource, "--job", asked.Parent.String())
	}
	return b.does(again, "jobs preview transfer", source, resource, target)
}

// quoted is an argument as a shell takes it.
func quoted(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// daemonIn is the id of the first daemon that must act in a state, "" when there is none.
func (b *book) daemonIn(state pb.JobState) string {
	for _, role := range b.actors(state) {
		if no := b.daemonOf(role); no != 0 {
			return b.peers[no].ID.String()
		}
	}
	return ""
}

// holder finds the job that holds a name that this one waits for.
func (b *book) holder() (uuid.UUID, error) {
	names, err := b.wanted()
	if err != nil {
		return uuid.Nil, err
	}
	for _, r := range names {
		no, err := b.rtx.JobHolder(r)
		if err != nil {
			return uuid.Nil, err
		}
		if no != 0 && no != b.row.No {
			row, err := b.rtx.JobByNo(no)
			return row.ID, err
		}
	}
	return uuid.Nil, nil
}
