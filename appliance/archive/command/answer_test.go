package command_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/fault"
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	const unsupported, stale, duplicateID = pb.ErrorCode_ERROR_CODE_UNSUPPORTED, pb.ErrorCode_ERROR_CODE_STALE_REVISION,
		pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT
	otherDigest := func(a *pb.CommandAck) { a.PayloadSha256 = strings.Repeat("0", 64) }
	r := newRig(t)
	for name, c := range map[string]struct {
		acks  [][]func(*pb.CommandAck)
		want  []command.State // what the handler is told
		final command.State
		alert bool
	}{
		"rejected":                     {acks(ack(status(rejected, none, stale))), states(command.Rejected), command.Rejected, false},
		"duplicate of a rejection":     {acks(ack(status(duplicate, rejected, stale))), states(command.Rejected), command.Rejected, false},
		"duplicate of an acceptance":   {acks(ack(status(duplicate, accepted, 0))), states(command.Accepted), command.Accepted, false},
		"conflict":                     {acks(ack(status(conflict, none, duplicateID), otherDigest)), states(command.Conflict), command.Conflict, true},
		"accepted with another digest": {acks(ack(otherDigest)), states(command.Conflict), command.Conflict, true},
		"rejected with another digest": {acks(ack(status(rejected, none, stale), otherDigest)), states(command.Conflict), command.Conflict, true},
		"not readable in full":         {acks(ack(status(rejected, none, unsupported), otherDigest)), states(command.Rejected), command.Rejected, false},
		"rejected after accepted": {acks(ack(), ack(status(rejected, none, stale))), states(command.Accepted, command.Conflict),
			command.Conflict, true},
		"accepted after a conflict": {acks(ack(status(conflict, none, duplicateID)), ack()), states(command.Conflict), command.Conflict, true},
		"repeated":                  {acks(ack(), ack(), ack(status(duplicate, accepted, 0))), states(command.Accepted), command.Accepted, false},
	} {
		t.Run(name, func(t *testing.T) {
			r.t, r.peerID = t, uuid.New()
			link := r.register()
			s, _ := r.connect(link)
			row := r.enqueue(link, query())
			r.expect(s, row)
			for _, a := range c.acks {
				r.mustAck(link, row, a...)
			}
			got := []command.State{}
			for _, a := range r.answers(row) {
				got = append(got, a.row.State)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("told %v, want %v", got, c.want)
			}
			if state := r.row(row.No).State; state != c.final {
				t.Errorf("state %s", state)
			}
			alerts, err := r.reg.Alerts(ctx, alertsOf(link))
			if err != nil || (len(alerts) == 1 && alerts[0].Kind == archive.AlertCommandConflict) != c.alert || len(alerts) > 1 {
				t.Errorf("alerts %+v, %v", alerts, err)
			}
		})
	}
}

func acks(list ...[]func(*pb.CommandAck)) [][]func(*pb.CommandAck) { return list }

func ack(list ...func(*pb.CommandAck)) []func(*pb.CommandAck) { return list }

func states(list ...command.State) []command.State { return list }

func TestAnswersToNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	row := r.enqueue(link, query())
	if err := r.queue.Acked(ctx, link, &pb.CommandAck{CommandId: uuid.NewString(), Status: accepted}); err != nil {
		t.Fatal(err)
	}
	r.peerID = uuid.New() // another daemon answers a command that is not its own
	r.mustAck(r.register(), row)
	if r.unknown != 2 || len(r.answers(row)) != 0 || r.row(row.No).State != command.Pending {
		t.Errorf("%d unknown, %+v", r.unknown, r.answers(row))
	}
	wantFault(t, r.queue.Acked(ctx, link, &pb.CommandAck{CommandId: "x"}), fault.Invalid)
}

// An answer and what its handler makes of it are one transaction.
func TestHandlerFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	r.expect(s, row)
	r.fail = fault.New(fault.Internal, "no")
	wantFault(t, r.ack(link, row), fault.Internal)
	if got := r.row(row.No); got.State != command.Sent || got.Ack != nil {
		t.Fatalf("%+v", got)
	}
	r.fail = nil
	r.mustAck(link, row)
	if len(r.answers(row)) != 1 {
		t.Fatal("not told")
	}
}
