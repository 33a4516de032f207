package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// commandsResult is what the round trips measured.
type commandsResult struct {
	Issued  int       `json:"issued"`
	Receipt quantiles `json:"issue_to_receipt"`
	Result  quantiles `json:"issue_to_result"`
}

// benchCommandTimeout bounds one round trip; the published default of a command is 60 s.
const benchCommandTimeout = 60 * time.Second

// resultLook is how often the server is asked whether it has stored the result: the API of the protocol has no other way.
const resultLook = 2 * time.Millisecond

// roundTrips issues commands to the first agent, one after the other. The agent answers at once, so what is measured is
// the server and the way.
func (b *benchAgents) roundTrips(ctx context.Context, pool *benchPool) (commandsResult, error) {
	s, err := b.open(ctx, pool.configs[0])
	if err != nil {
		return commandsResult{}, fmt.Errorf("connect: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	received := make(chan receipt, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.serve(ctx, received); err != nil {
			cancel(err)
		}
	}()
	toReceipt, toResult := agentclient.NewHistogram(), agentclient.NewHistogram()
	for range b.commands {
		got, done, err := roundTrip(ctx, pool, received)
		if err != nil {
			return commandsResult{}, err
		}
		_, _ = toReceipt.RecordValue(max(got.Microseconds(), 1)), toResult.RecordValue(max(done.Microseconds(), 1))
	}
	cancel(nil)
	if s.ws != nil {
		err = s.ws.Close()
	}
	<-ended
	return commandsResult{Issued: b.commands, Receipt: quantilesOf(toReceipt), Result: quantilesOf(toResult)}, err
}

// receipt is a command that reached its agent.
type receipt struct {
	id string
	at time.Time
}

// roundTrip issues one command and returns the time to its receipt and to its stored result.
func roundTrip(ctx context.Context, pool *benchPool, received <-chan receipt) (got, done time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, benchCommandTimeout)
	defer cancel()
	body := map[string]any{"agent_id": pool.ids[0], "engine": "celery", "task_id": uuid.NewString()}
	start := time.Now()
	var cmd record[commandRow]
	if err := pool.scope.post(ctx, pool.scope.path("commands", "cancel-task"), body, &cmd); err != nil {
		return 0, 0, fmt.Errorf("issue: %w", err)
	}
	for arrived := false; !arrived; {
		select {
		case r := <-received:
			arrived = r.id == cmd.V.ID // others waited for this agent before the bench
			got = r.at.Sub(start)
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("command %s did not arrive: %w", cmd.V.ID, context.Cause(ctx))
		}
	}
	for cmd.V.Status != "completed" {
		select {
		case <-time.After(resultLook):
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("result of command %s was not stored: %w", cmd.V.ID, context.Cause(ctx))
		}
		if err := pool.scope.get(ctx, pool.scope.path("commands", cmd.V.ID), nil, &cmd); err != nil {
			return 0, 0, fmt.Errorf("look for the result: %w", err)
		}
	}
	return got, time.Since(start), nil
}

// serve answers every command with an acknowledgement and a result until ctx ends.
func (s benchSession) serve(ctx context.Context, received chan<- receipt) error {
	if s.ws != nil {
		return s.serveWS(ctx, received)
	}
	for ctx.Err() == nil {
		cmds, err := s.lp.Poll(ctx, 30*time.Second, 50)
		at := time.Now()
		if err != nil {
			return unlessOver(ctx, err)
		}
		for _, c := range cmds {
			if _, err := s.lp.Upload(ctx,
				agentclient.Outgoing{Type: wire.TypeCommandAck, ID: c.ID, Payload: []byte(agentclient.AckPayload)},
				agentclient.Outgoing{Type: wire.TypeCommandResult, ID: c.ID, Payload: []byte(agentclient.ResultPayload(true, "{}", ""))}); err != nil {
				return unlessOver(ctx, err)
			}
			received <- receipt{c.ID, at}
		}
	}
	return nil
}

func (s benchSession) serveWS(ctx context.Context, received chan<- receipt) error {
	for {
		f, err := s.ws.Receive()
		at := time.Now()
		if err != nil {
			return unlessOver(ctx, err)
		}
		typ, id := f.Type, f.ID
		f.Release()
		if typ != wire.TypeCommand {
			continue
		}
		if err := errors.Join(s.ws.SendJSON(wire.TypeCommandAck, id, agentclient.AckPayload),
			s.ws.SendJSON(wire.TypeCommandResult, id, agentclient.ResultPayload(true, "{}", ""))); err != nil {
			return unlessOver(ctx, err)
		}
		received <- receipt{id, at}
	}
}

// unlessOver is err, or nil when the bench is over and the session was to end.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
