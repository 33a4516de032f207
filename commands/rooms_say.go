package commands

import (
	"context"
	"errors"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// speaker says something in one room under one name.
type speaker struct {
	client *client
	room   string // id
	called string // the room as the user named it
	as     string // id of a person; "": the operator person
}

// newSpeaker finds the room and who is to speak.
func (o *options) newSpeaker(ctx context.Context, room, as string) (s speaker, err error) {
	s.called = room
	if s.client, s.room, err = o.clientAnd(ctx, kindRoom, room); err != nil || as == "" {
		return s, err
	}
	s.as, err = s.client.find(ctx, kindPerson, as)
	return s, err
}

// say posts once. Under the same request id it can be repeated: the server answers what it stored.
func (s speaker) say(ctx context.Context, text, thread, requestID string) (record[postedItem], error) {
	body := map[string]any{"body": text, "request_id": requestID}
	if thread != "" {
		body["thread_id"] = thread
	}
	if s.as != "" {
		body["as"] = s.as
	}
	var p record[postedItem]
	err := s.client.post(ctx, roomPath("rooms", s.room, "messages"), body, &p)
	return p, blameArchive(err, s.called)
}

// blameArchive words the refusal of an archived room: named as the user named it, with the next step.
func blameArchive(err error, called string) error {
	var refused *apiError
	if fault.Is(err, fault.Conflict) && errors.As(err, &refused) && strings.Contains(refused.fault.Msg, "is archived") {
		refused.fault.Msg = "room " + oneLine(called) + " is archived"
		refused.hint = "open it again with `signalbox rooms unarchive " + shellQuote(oneLine(called)) + "`"
	}
	return err
}

// unsure tells whether a post may have been stored though no answer says so.
func unsure(err error) bool {
	var unreachable *unreachableError
	return errors.As(err, &unreachable) || fault.Is(err, fault.OutcomeUnknown) || fault.Is(err, fault.Unavailable)
}

func newRoomsSayCommand(opts *options) *cobra.Command {
	var as, thread, requestID string
	cmd := &cobra.Command{
		Use:   "say ROOM TEXT",
		Short: "Say something in a room",
		Long: `Say something in a room, as the operator person or with --as as somebody else. Whoever speaks has to be in the room.

TEXT "-" reads it from stdin. Mention an agent with @NAME to address it; a text that begins with ! is a command (!help
lists them). A text that addresses no agent is said all the same, with a note on stderr. The request carries an id: repeated with the same --request-id, the message is stored once.`,
		Example: `  signalbox rooms say plaza '@build-bot status?'
  signalbox rooms say plaza '!reset @build-bot' --as ben@example.com
  signalbox rooms say plaza 'thanks' --thread plaza:12 --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			text := args[1]
			if text == "-" {
				data, err := io.ReadAll(io.LimitReader(opts.stdio.In, maxTextFile+1))
				if err != nil {
					return usagef("TEXT: read stdin: %w", err)
				}
				if len(data) > maxTextFile {
					return usagef("TEXT: stdin holds more than %d bytes", maxTextFile)
				}
				text = strings.TrimRight(string(data), "\r\n")
			}
			if strings.TrimSpace(text) == "" {
				return usagef("TEXT: is empty")
			}
			if requestID == "" {
				requestID = uuid.NewString()
			}
			s, err := opts.newSpeaker(cmd.Context(), args[0], as)
			if err != nil {
				return err
			}
			if thread != "" {
				if thread, err = s.client.findItem(cmd.Context(), thread); err != nil {
					return err
				}
			}
			p, err := s.say(cmd.Context(), text, thread, requestID)
			if err != nil {
				if unsure(err) {
					opts.out.say("whether it was stored is not known; repeat with --request-id %s and it is stored once", requestID)
				}
				return err
			}
			if opts.json {
				return opts.out.object("posted", p)
			}
			opts.showPosted(args[0], p.V)
			opts.adviseAddressed(cmd.Context(), s, text, p.V)
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "person who speaks: email, name or id (admins only; default: the operator person)")
	cmd.Flags().StringVar(&thread, "thread", "", "message of the thread to answer in: id, or ROOM:POSITION")
	cmd.Flags().StringVar(&requestID, "request-id", "", "idempotency key, 1 to 200 characters (default: a new one)")
	_ = cmd.RegisterFlagCompletionFunc("as", opts.completePeople())
	return cmd
}

// showPosted says where it stands, who it was addressed to, and what the server answered.
func (o *options) showPosted(room string, p postedItem) {
	repeated := ""
	if p.Repeated {
		repeated = "  (stored before)"
	}
	o.out.text("%s:%d  %s%s", oneLine(room), p.Item.Position, p.Item.ID, repeated)
	for _, s := range p.Statuses {
		o.out.text("addressed %s: %s", oneLine(s.Name), s.heard())
	}
	for i := range p.Answers {
		o.out.text("%s", o.itemLine(&p.Answers[i]))
	}
}

var itemPlace = regexp.MustCompile(`^(.+):([0-9]{1,18})$`)

// findItem resolves a message: its id, or ROOM:POSITION as rooms tail shows it.
func (c *client) findItem(ctx context.Context, arg string) (string, error) {
	if id, ok := fullID(arg); ok {
		return id, nil
	}
	place := itemPlace.FindStringSubmatch(arg)
	if place == nil {
		return "", usagef("%q is no message: give its id, or ROOM:POSITION as rooms tail shows it", arg)
	}
	room, err := c.find(ctx, kindRoom, place[1])
	if err != nil {
		return "", err
	}
	position, err := strconv.ParseInt(place[2], 10, 64)
	if err != nil || position < 1 {
		return "", notFound("no message %s: positions begin with 1", arg)
	}
	var p roomItemPage
	query := url.Values{"after": {itoa(position - 1)}, "limit": {"1"}}
	if err := c.get(ctx, roomPath("rooms", room, "messages"), query, &p); err != nil {
		return "", err
	}
	if len(p.Items) == 0 || p.Items[0].Position != position {
		return "", notFound("no message %s: the newest is %d", arg, p.Head)
	}
	return p.Items[0].ID, nil
}
