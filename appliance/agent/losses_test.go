package agent_test

import (
	"context"
	"testing"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/secret"
	"signalbox/store"
)

func TestAgentLossesShowsTheNewestFigures(t *testing.T) {
	t.Parallel()
	g, ctx := newIngestRig(t), context.Background()
	for _, n := range []string{"1", "5"} {
		g.one(frame(t, agent.FrameHeartbeat, "hb", `{"telemetry_loss":{"buffer_id":"b","runtime_id":"r","capacity_evicted_frames":`+n+`}}`))
	}
	master := agent.SecretSet{Current: secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))}
	d := agent.NewDirectory(store.Bind[agent.DirectoryTx, agent.DirectoryReadTx](g.db), master, audit.New(master.AuditKeys()), g.hub,
		agent.DirectoryOptions{})
	losses := must[[]agent.AgentLoss](t)(d.AgentLosses(ctx, g.peer.ProjectNo, g.peer.AgentID))
	if len(losses) != 1 || losses[0].BufferID != "b" || losses[0].RuntimeID != "r" || !losses[0].FirstAt.Equal(ingestStart) {
		t.Fatalf("losses %+v", losses)
	}
	g.want("figures", string(losses[0].Payload), g.text(`SELECT payload FROM telemetry_losses`))
}
