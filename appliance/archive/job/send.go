package job

import (
	"fmt"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
)

// MaySend implements command.Handler: a command of a job goes out once the job is decided at the daemon and nothing of
// 4.5 or 4.6 holds it back.
func (e *Engine) MaySend(rtx command.ReadTx, link archive.Link, row command.Row) (bool, error) {
	tx := rtx.(ReadTx)
	why, err := e.held(tx, row)
	if err != nil || why != "" {
		return false, err
	}
	// The row was decided under a generation; the connection must own that one.
	parts, err := tx.JobParticipants(row.JobNo)
	if err != nil {
		return false, err
	}
	for _, p := range parts {
		if p.DaemonNo == row.Daemon.No {
			return decides(row.Kind) || p.Decided == link.Generation, nil
		}
	}
	return false, nil
}

// decides tells the kinds that a decision is made with: they go before everything else.
func decides(k command.Kind) bool {
	return k == archive.ReconcileJob || k == archive.RequestJobSnapshot
}

// HeldBecause implements command.Explainer.
func (e *Engine) HeldBecause(rtx command.ReadTx, row command.Row) (string, error) {
	return e.held(rtx.(ReadTx), row)
}

// held tells in one sentence why a command that wants sending must not go now, "" when it may.
func (e *Engine) held(tx ReadTx, row command.Row) (string, error) {
	j, err := tx.JobByNo(row.JobNo)
	if err != nil {
		return "", err
	}
	b, err := e.read(tx, j)
	if err != nil {
		return "", err
	}
	p, v := b.at(row.Daemon.No), b.view.Command(row.ID)
	if p == nil || v == nil {
		return "The daemon has no part in the job.", nil
	}
	if v.Status == decide.Parked { // asked by a person; the queue does not ask for these
		return "", nil
	}
	if !decide.MaySend(&b.view, v) {
		return b.heldWords(p), nil
	}
	if decides(row.Kind) {
		return "", nil
	}
	peer := b.peers[p.DaemonNo]
	if row.Kind == archive.AssignJob && peer.Paused {
		return fmt.Sprintf("Two databases answer to the id of daemon %s: it gets no new jobs until one of them has been stable.",
			peer.Name), nil
	}
	undecided, err := tx.JobUndecidedAt(p.DaemonNo)
	if err != nil {
		return "", err
	}
	if undecided {
		return fmt.Sprintf("Not every job of daemon %s is reconciled since it registered.", peer.Name), nil
	}
	return b.heldStep(row)
}

// heldStep is held for what a step needs beside.
func (b *book) heldStep(row command.Row) (string, error) {
	if row.Kind != archive.ExecuteStep {
		return "", nil
	}
	if row.Step == pb.JobStep_JOB_STEP_RELEASE && !b.view.VerifyFresh {
		e, no := b.e, b.row.No
		e.work.add(task{jobNo: no, kind: taskExpire})
		return "The verification at the target is too old: it is made again before the source copy is released.", nil
	}
	if b.row.RouteNo == 0 {
		return "", nil
	}
	reconciled, err := b.e.routes.Reconciled(b.rtx, b.row.RouteNo, row.Daemon.No)
	if err != nil {
		return "", err
	}
	if reconciled && (row.Step != pb.JobStep_JOB_STEP_TRANSFER || row.EverSent()) {
		return "", nil
	}
	ready, why, err := b.e.routes.Ready(b.rtx, b.row.RouteNo)
	switch {
	case err != nil:
		return "", err
	case !reconciled && why != "":
		return "The route of the job is not reconciled with the daemon: " + why + ".", nil
	case !reconciled:
		return "The route of the job is not reconciled with the daemon yet.", nil
	case ready:
		return "", nil
	}
	return "The route is not ready: " + why + ".", nil
}

// heldWords tells why decide.MaySend refuses.
func (b *book) heldWords(p *Participant) string {
	peer := b.peers[p.DaemonNo]
	switch {
	case p.Decided == 0 || p.Decided != peer.Generation:
		return fmt.Sprintf("The job is not reconciled with daemon %s.", peer.Name)
	case b.view.OldCopy && !b.allRegistered():
		return "Control runs an older copy of its database: nothing is sent until every daemon of the job has registered."
	}
	return fmt.Sprintf("The job is %s.", stateText(b.row.State))
}

func (b *book) allRegistered() bool {
	for _, role := range roles {
		if p := b.view.Party(role); p != nil && !p.Registered {
			return false
		}
	}
	return true
}
