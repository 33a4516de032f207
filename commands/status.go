package commands

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newStatusCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how the appliance is doing; exit code 8 when it is degraded",
		Example: `  signalbox status
  signalbox status --server https://signalbox.example.com --api-key-file admin.key --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var s record[statusRow]
			if err := c.get(cmd.Context(), "/status", nil, &s); err != nil {
				return err
			}
			if opts.json {
				err = opts.out.object("status", s)
			} else {
				err = opts.showStatus(s.V)
			}
			if err != nil {
				return err
			}
			if len(s.V.Degraded) > 0 {
				return exitf(ExitDegraded, "degraded: %s", oneLine(strings.Join(s.V.Degraded, "; ")))
			}
			return nil
		},
	}
}

func (o *options) showStatus(s statusRow) error {
	return o.out.facts(
		[2]string{"version", s.Version}, [2]string{"started", o.out.when(s.StartedAt)}, [2]string{"epoch", s.Epoch},
		[2]string{"database", fmt.Sprintf("%s, %s and %s of WAL, schema %d", s.Store.Path, bytesText(s.Store.SizeBytes),
			bytesText(s.Store.WALBytes), s.Store.SchemaVersion)},
		[2]string{"task sessions", fmt.Sprintf("%d WebSocket, %d long-poll", s.Sessions.WS, s.Sessions.LongPoll)},
		[2]string{"task agents", fmt.Sprintf("%d of %d online", s.Agents.Online, s.Agents.Total)},
		[2]string{"commands", fmt.Sprintf("%d pending, %d dispatched", s.Commands.Pending, s.Commands.Dispatched)},
		[2]string{"rooms", roomFigures(s)}, [2]string{"room agents", roomLines(s)})
}

// roomFigures are the rooms and what their files take; "" of a server that does not tell it.
func roomFigures(s statusRow) string {
	if s.Rooms == nil {
		return ""
	}
	return fmt.Sprintf("%d, files of %s", s.Rooms.Rooms, bytesText(s.Rooms.MediaBytes))
}

// roomLines are the room agents and their connections; "" of a server that does not tell them.
func roomLines(s statusRow) string {
	if s.Rooms == nil {
		return ""
	}
	parts := []string{fmt.Sprintf("%d of %d connected", s.Rooms.Agents.Connected, s.Rooms.Agents.Total)}
	for _, over := range slices.Sorted(maps.Keys(s.Rooms.Attached)) {
		if n := s.Rooms.Attached[over]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d over %s", n, oneLine(over)))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d detached", s.Rooms.Detached)), ", ")
}

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func newHealthcheckCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask whether the appliance is ready; for container health checks",
		Long: `Ask the readiness route of the appliance. It needs no API key. The address is --server, else the admin socket, else the
main listener named in addresses.json of the data directory.

Exit code 0 when ready, 8 when it answers but is not ready, 6 when nothing answers.`,
		Example: `  signalbox healthcheck
  signalbox healthcheck --server http://127.0.0.1:7700 --request-timeout 3s
  HEALTHCHECK CMD ["signalbox", "healthcheck", "--data-dir", "/data"]`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := opts.askReady(cmd)
			var unready *apiError
			if err != nil && !errors.As(err, &unready) {
				return err
			}
			status, reason := answer.Status, ""
			if unready != nil {
				status, reason = "unready", unready.fault.Msg
			}
			if opts.json {
				err = opts.out.document(field{"status", status}, field{"reason", orNull(reason)})
			} else {
				err = nil
				opts.out.text("%s", oneLine(strings.TrimSpace(status+" "+reason)))
			}
			if err != nil {
				return err
			}
			if unready != nil {
				return exitf(ExitDegraded, "not ready: %s", oneLine(reason))
			}
			return nil
		},
	}
}

type readyAnswer struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// askReady tries the socket first and then the TCP address: a container's check may run as a user that may not open the
// socket.
func (o *options) askReady(cmd *cobra.Command) (readyAnswer, error) {
	var answer readyAnswer
	c, err := o.newClient()
	if err != nil {
		return answer, err
	}
	c.token = "" // readiness is public, and a rejected key is no news about it
	err = c.get(cmd.Context(), "/health/ready", nil, &answer)
	var unreachable *unreachableError
	if !errors.As(err, &unreachable) || strings.HasPrefix(c.target, "http") {
		return answer, err
	}
	address, addressErr := o.readAddress()
	if addressErr != nil {
		return answer, err
	}
	remote, remoteErr := o.newRemoteClient("addresses.json", address)
	if remoteErr != nil {
		return answer, remoteErr
	}
	remote.token = ""
	return answer, remote.get(cmd.Context(), "/health/ready", nil, &answer)
}
