package commands

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// item decodes the room item that a record carries.
func (r *streamRecord) item() (roomItem, error) {
	var i roomItem
	if err := json.Unmarshal(r.Item, &i); err != nil {
		return i, fmt.Errorf("read item of stream record: %w", err)
	}
	return i, nil
}

// itemLine is an item as people read it: time, position, who, what.
func (o *options) itemLine(i *roomItem) string {
	line := o.out.stamp(i.At) + "  " + pad(itoa(i.Position), 4) + "  "
	who := oneLine(i.Sender.Name)
	if i.Kind == "room_join" {
		return line + "* " + who + " joined"
	}
	if i.ThreadID != nil {
		who += " (in a thread)"
	}
	if i.Automatic {
		who += " (automatic)"
	}
	// Lines after the first are set off, so that no body can pass for the lines of others.
	body := strings.ReplaceAll(printable(i.Body), "\n", "\n    | ")
	for _, a := range i.Attachments {
		body += fmt.Sprintf(" [%s, %s]", oneLine(a.Filename), bytesText(a.Size))
	}
	return line + who + ": " + strings.TrimSpace(body)
}

func newRoomsTailCommand(opts *options) *cobra.Command {
	var (
		w    streamFlags
		last int
	)
	cmd := &cobra.Command{
		Use:   "tail ROOM",
		Short: "Follow what is said in a room",
		Long: `Follow what is said in a room, in its order: the number after the time is the position in the room, and ROOM:POSITION names
the message elsewhere.` + streamLong,
		Example: `  signalbox rooms tail plaza
  signalbox rooms tail plaza --last 20
  signalbox rooms tail plaza --cursor 0 --follow=false --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return usagef("--last: must not be negative, got %d", last)
			}
			if last > 0 && w.cursor != "" {
				return usagef("--last and --cursor exclude each other: both say where to begin")
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			st, err := roomStream(c, id, &w, last)
			if err != nil {
				return err
			}
			return opts.follow(cmd.Context(), st, w.limit, opts.showItem)
		},
	}
	w.add(cmd)
	cmd.Flags().IntVar(&last, "last", 0, "begin with this many of the newest messages")
	return cmd
}

// roomStream is the stream of a room's log.
func roomStream(c *client, room string, w *streamFlags, last int) (*stream, error) {
	if w.limit < 0 {
		return nil, usagef("--limit: must not be negative, got %d", w.limit)
	}
	s := &stream{client: c, path: roomPath("rooms", room, "messages", "stream"), cursor: w.cursor, follow: w.follow}
	switch {
	case last > 0:
		s.query = url.Values{"last": {itoa(last)}}
	case s.cursor == "" && !s.follow:
		s.cursor = "0"
	}
	return s, nil
}

func (o *options) showItem(rec *streamRecord) error {
	if o.json {
		return o.out.ndjson(rec)
	}
	if rec.Type == "gap" {
		o.out.say("gap: %s", gapText(rec.Reason))
		return nil
	}
	i, err := rec.item()
	if err != nil {
		return err
	}
	o.out.text("%s", o.itemLine(&i))
	return nil
}
