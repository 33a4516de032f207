package job

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// Bounds of snapshots that are not complete: of one, and how many there are per daemon.
const (
	maxSnapshotBytes = 16 << 20
	maxSnapshots     = 4
)

// partials are snapshots of which parts are missing. They belong to a connection and are worth nothing without it: a
// registration decides anew.
type partials struct {
	mu sync.Mutex
	m  map[int64]*collecting // by daemon
}

type collecting struct {
	generation int64
	m          map[uuid.UUID]*collected // by the request
}

// collected are the parts of one answer, joined. A broken one keeps nothing but that fact.
type collected struct {
	id     uuid.UUID // snapshot_id
	next   uint32
	bytes  int
	broken string
	joined *pb.JobSnapshot
}

func (p *partials) init() { p.m = map[int64]*collecting{} }

// add joins a part and returns the whole with the last one, else nil.
func (p *partials) add(link archive.Link, m *pb.JobSnapshot) *collected {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.m[link.Daemon.No]
	if of == nil || of.generation < link.Generation {
		of = &collecting{generation: link.Generation, m: map[uuid.UUID]*collected{}}
		p.m[link.Daemon.No] = of
	}
	if of.generation > link.Generation {
		return nil
	}
	request, id := idOf(m.GetCommandId()), idOf(m.GetSnapshotId())
	c := of.m[request]
	if c == nil || c.id != id { // a second answer discards the first
		if c == nil && len(of.m) >= maxSnapshots {
			return &collected{id: id, broken: "too many snapshots at once", joined: m}
		}
		c = &collected{id: id}
		of.m[request] = c
	}
	c.join(m)
	if !m.GetLastPart() && c.broken == "" {
		return nil
	}
	delete(of.m, request)
	if len(of.m) == 0 {
		delete(p.m, link.Daemon.No)
	}
	return c
}

// drop forgets the parts that came on earlier connections.
func (p *partials) drop(daemonNo, generation int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.m[daemonNo]; of != nil && of.generation < generation {
		delete(p.m, daemonNo)
	}
}

func (c *collected) join(m *pb.JobSnapshot) {
	c.bytes += proto.Size(m)
	switch {
	case m.GetPartIndex() != c.next:
		c.broken = "a part is missing"
	case c.bytes > maxSnapshotBytes:
		c.broken = "it is too large"
	case c.joined != nil && !proto.Equal(c.joined.GetCursor(), m.GetCursor()):
		c.broken = "its parts have different cursors"
	case c.joined != nil && c.joined.GetStateEpoch() != m.GetStateEpoch():
		c.broken = "its parts are of different databases"
	}
	c.next++
	if c.joined == nil {
		c.joined = proto.CloneOf(m)
		return
	}
	if c.broken == "" {
		c.joined.Events = append(c.joined.Events, m.GetEvents()...)
		c.joined.Commands = append(c.joined.Commands, m.GetCommands()...)
		c.joined.Evidence = append(c.joined.Evidence, m.GetEvidence()...)
		c.joined.LastPart = m.GetLastPart()
	}
	if m.GetError() != nil {
		c.joined.Error = m.GetError()
	}
}

// Snapshot takes one part of an answer to RequestJobSnapshot. With the last one, the whole is checked (daemon protocol 4.4),
// its events are applied and the job is decided again, in one transaction. A part of an answer that nobody waits for is
// dropped. Stale: the link no longer owns its daemon.
func (e *Engine) Snapshot(ctx context.Context, link archive.Link, m *pb.JobSnapshot) error {
	// Asked before the part is kept: what nobody waits for takes no memory.
	var wanted bool
	err := e.st.View(ctx, func(tx ReadTx) (err error) {
		_, wanted, err = awaited(tx, link, m)
		return err
	})
	if err != nil || !wanted {
		return err
	}
	c := e.parts.add(link, m)
	if c == nil {
		return nil
	}
	return e.update(ctx, "job_snapshot", func(tx Tx) error {
		if err := e.daemons.Fence(tx, link); err != nil {
			return err
		}
		row, wanted, err := awaited(tx, link, m)
		if err != nil || !wanted {
			return err
		}
		b, err := e.ofCommand(tx, row)
		if err != nil {
			return err
		}
		if err := b.snapshot(link, row, c); err != nil {
			return err
		}
		b.done()
		return nil
	})
}

// awaited finds the request that the part answers, if the daemon was asked and the answer is still to come.
func awaited(tx ReadTx, link archive.Link, m *pb.JobSnapshot) (row command.Row, wanted bool, err error) {
	row, err = tx.DaemonCommandByID(idOf(m.GetCommandId()))
	if fault.Is(err, fault.NotFound) {
		return row, false, nil
	}
	return row, err == nil && row.Kind == archive.RequestJobSnapshot && row.Daemon.No == link.Daemon.No &&
		(row.State == command.Accepted || row.State.Unanswered()), err
}

// snapshot judges a whole answer.
func (b *book) snapshot(link archive.Link, request command.Row, c *collected) error {
	p := b.at(link.Daemon.No)
	role := p.Role
	snap := decide.Snapshot{Epoch: idOf(c.joined.GetStateEpoch()), Complete: c.broken == "" && c.joined.GetLastPart(),
		Events: c.joined.GetEvents(), Commands: c.joined.GetCommands(), Evidence: c.joined.GetEvidence(),
		Failed: c.joined.GetError().GetCode()}
	var k *decide.Cursor
	if c.joined.GetCursor() != nil {
		var err error
		if k, err = cursorOf(c.joined.GetCursor()); err != nil {
			return err
		}
		snap.Cursor = *k
	}
	known, err := b.known(link)
	if err != nil {
		return err
	}
	checked := decide.ValidateSnapshot(&b.view, role, snap, known)
	if c.broken != "" {
		checked.Defect = c.broken
	}
	detail := map[string]any{"events": len(snap.Events), "new_events": len(checked.Events), "committed": checked.Committed}
	if checked.Defect != "" {
		detail["defect"] = checked.Defect
	}
	if j := c.joined.GetJournalSummary(); j != nil {
		raw, err := protojson.Marshal(j)
		if err != nil {
			return err
		}
		detail["journal"] = json.RawMessage(raw)
	}
	if err := b.entry(EntrySnapshot, p.DaemonNo, request.No, detail); err != nil {
		return err
	}
	if checked.Defect != "" {
		in := decide.Input{Job: &b.view, Role: role, K: k, Snapshot: request.ID}
		out := decide.SnapshotFailed(in, checked)
		return b.apply(out, cause{what: "a snapshot does not hold: " + checked.Defect, input: &in})
	}
	for _, ev := range checked.Events {
		if err := b.happened(b.part(role), ev); err != nil {
			return err
		}
		b.tx.AfterCommit(func() { b.e.observer.Accepted(ev.GetKind()) })
	}
	if seen := checked.CommitSeen; seen != nil {
		if err := b.advance(*seen, cause{what: "a snapshot shows the commit flag"}); err != nil {
			return err
		}
	}
	return b.reconciled(decide.Input{Job: &b.view, Role: role, K: k, Snapshot: request.ID}, "a snapshot was applied")
}

// known is what control holds of the job beside a snapshot.
func (b *book) known(link archive.Link) (decide.Known, error) {
	out := decide.Known{Epoch: link.Epoch, Evidence: map[pb.JobStep]*pb.StepEvidence{}}
	rows, err := b.rtx.JobEvents(b.row.No)
	if err != nil {
		return out, err
	}
	for _, r := range rows {
		m, err := parse(r.Message, &pb.JobEvent{})
		if err != nil {
			return out, err
		}
		if p := b.at(r.DaemonNo); p != nil {
			out.Events = append(out.Events, decide.Stored{Role: p.Role, Message: m})
		}
	}
	proofs, err := b.proofs()
	for step, p := range proofs {
		out.Evidence[step] = p.evidence
	}
	return out, err
}
