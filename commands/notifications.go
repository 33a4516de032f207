package commands

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// notificationRow is Notification.
type notificationRow struct {
	ID            string     `json:"id"`
	Trigger       string     `json:"trigger"`
	RuleName      string     `json:"rule_name"`
	ChannelName   string     `json:"channel_name"`
	Subject       string     `json:"subject"`
	Collected     int64      `json:"collected"`
	State         string     `json:"state"`
	Attempts      int        `json:"attempts"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	LastError     *string    `json:"last_error"`
	CreatedAt     time.Time  `json:"created_at"`
	EndedAt       *time.Time `json:"ended_at"`
	Body          *struct {
		Text string `json:"text"`
	} `json:"body"`
}

func newNotificationsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notifications",
		Short: "Tell people about failures: channels, rules, and what was sent",
		Long: `Tell people what happens. A channel is a way to people: a signed webhook, e-mail, or a chat or push service. A rule of a
project says what is told through which channels. What was sent, waits or was given up is listed and shown.

The first occurrence of a kind is told at once; what follows within the rule's group time is counted and told in one
message. A message is sent at least once, and has one id over all attempts.`,
		Example: `  signalbox notifications channels create ops --kind webhook --url https://hooks.example.com/signalbox
  signalbox notifications test ops
  signalbox notifications rules create failures --trigger task_failed --pattern 'mail.*' --channel ops
  signalbox notifications list --state dead`,
	}
	cmd.AddCommand(newChannelsCommand(opts), newRulesCommand(opts), newNotificationsListCommand(opts), newNotificationsShowCommand(opts),
		newNotificationsRetryCommand(opts), newNotificationsTestCommand(opts))
	return cmd
}

func newNotificationsListCommand(opts *options) *cobra.Command {
	var (
		f       filters
		channel string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List notifications, newest first",
		Example: `  signalbox notifications list
  signalbox notifications list --state dead --channel ops --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := map[string][]string{}
			setNonEmpty(query, "state", f.state)
			setNonEmpty(query, "cursor", f.cursor)
			if channel != "" {
				c, err := s.channel(cmd.Context(), channel)
				if err != nil {
					return err
				}
				query["channel_id"] = []string{c.V.ID}
			}
			rows, next, err := list[notificationRow](cmd.Context(), s, s.path("notifications"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				n := r.V
				table = append(table, []string{shortID(n.ID), n.State, n.ChannelName, n.Trigger, cut(n.Subject, 70), itoa(n.Attempts),
					opts.out.when(&n.CreatedAt), dash(cut(text(n.LastError), 60))})
			}
			return opts.out.table([]string{"ID", "STATE", "CHANNEL", "TRIGGER", "SUBJECT", "ATTEMPTS", "CREATED", "LAST ERROR"}, table)
		},
	}
	f.addState(cmd, "pending", "delivered", "dead")
	cmd.Flags().StringVar(&channel, "channel", "", "only this channel: name, id or unique id prefix")
	f.addLimit(cmd)
	f.addCursor(cmd, "continue after a next_cursor of an earlier answer")
	return cmd
}

func newNotificationsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show NOTIFICATION",
		Short: "Show one notification with its text",
		Long:  "Show one notification, named by its id or a unique beginning of it.",
		Example: `  signalbox notifications show 4f1c
  signalbox notifications show 4f1c --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.notification(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var n record[notificationRow]
			if err := s.get(cmd.Context(), s.path("notifications", id), nil, &n); err != nil {
				return err
			}
			return opts.showNotification(n)
		},
	}
}

func (o *options) showNotification(n record[notificationRow]) error {
	if o.json {
		return o.out.object("notification", n)
	}
	v := n.V
	err := o.out.facts([2]string{"id", v.ID}, [2]string{"state", v.State}, [2]string{"channel", v.ChannelName}, [2]string{"rule", v.RuleName},
		[2]string{"trigger", v.Trigger}, [2]string{"subject", v.Subject}, [2]string{"occurrences", itoa(v.Collected)},
		[2]string{"attempts", itoa(v.Attempts)}, [2]string{"next attempt", o.out.when(v.NextAttemptAt)},
		[2]string{"last error", text(v.LastError)}, [2]string{"created", o.out.when(&v.CreatedAt)}, [2]string{"ended", o.out.when(v.EndedAt)})
	if err == nil && v.Body != nil {
		o.out.text("\n%s", strings.TrimRight(printable(v.Body.Text), "\n"))
	}
	return err
}

func newNotificationsRetryCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "retry NOTIFICATION",
		Short: "Send a dead notification again",
		Long: `Send a notification again that was given up. It keeps its id, by which a receiver can tell whether it has seen it, and gets
all its attempts anew.`,
		Example: `  signalbox notifications retry 4f1c
  signalbox notifications retry 4f1c --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.notification(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var n record[notificationRow]
			if err := s.post(cmd.Context(), s.path("notifications", id, "retry"), nil, &n); err != nil {
				return err
			}
			return opts.showNotification(n)
		},
	}
}

func newNotificationsTestCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "test CHANNEL",
		Short: "Send a real message through a channel and tell what became of it",
		Long: `Send a real message through a channel, at once and one time, and tell what became of it. The channel may be turned off.
It exits with 1 when the message was not accepted.`,
		Example: `  signalbox notifications test ops
  signalbox notifications test ops --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, c, err := opts.theChannel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var n record[notificationRow]
			if err := s.post(cmd.Context(), s.path("notifications", "channels", c.V.ID, "test"), nil, &n); err != nil {
				return err
			}
			if opts.json {
				if err := opts.out.object("notification", n); err != nil {
					return err
				}
			} else if n.V.State == "delivered" {
				opts.out.text("the message was accepted by %s", oneLine(c.V.Target))
			}
			if n.V.State != "delivered" {
				return exitf(ExitFailed, "the message was not accepted: %s", text(n.V.LastError))
			}
			return nil
		},
	}
}

// notification finds the id of a notification by a beginning of it, among the newest.
func (o *options) notification(ctx context.Context, arg string) (*scope, string, error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, "", err
	}
	if id, ok := fullID(arg); ok {
		return s, id, nil
	}
	prefix := strings.ToLower(strings.ReplaceAll(arg, "-", ""))
	if !hexPrefix.MatchString(prefix) {
		return nil, "", usagef("%q is not an id: give a UUID or at least its first four hex digits", arg)
	}
	const newest = 5000
	rows, _, err := list[notificationRow](ctx, s, s.path("notifications"), map[string][]string{}, newest)
	if err != nil {
		return nil, "", err
	}
	var ids, candidates []string
	for _, r := range rows {
		if strings.HasPrefix(strings.ReplaceAll(r.V.ID, "-", ""), prefix) {
			ids = append(ids, r.V.ID)
			candidates = append(candidates, r.V.ID+" "+r.V.Subject)
		}
	}
	switch len(ids) {
	case 0:
		return nil, "", notFound("no notification %q among the newest %d", arg, newest)
	case 1:
		return s, ids[0], nil
	}
	return nil, "", ambiguous("notification", arg, candidates)
}

// pick finds one of a list by its name, its id or a unique beginning of its id.
func pick[T any](what, arg string, rows []record[T], of func(T) (id, name string)) (record[T], error) {
	var found []record[T]
	var candidates []string
	prefix := strings.ToLower(strings.ReplaceAll(arg, "-", ""))
	for _, r := range rows {
		id, name := of(r.V)
		if name == arg || id == strings.ToLower(arg) {
			return r, nil
		}
		if hexPrefix.MatchString(prefix) && strings.HasPrefix(strings.ReplaceAll(id, "-", ""), prefix) {
			found = append(found, r)
			candidates = append(candidates, id+" "+name)
		}
	}
	switch len(found) {
	case 0:
		return record[T]{}, notFound("no notification %s %q", what, arg)
	case 1:
		return found[0], nil
	}
	return record[T]{}, ambiguous("notification "+what, arg, candidates)
}

// deleteNamed asks, deletes and tells.
func (o *options) deleteNamed(ctx context.Context, s *scope, confirm *confirmation, what, plural, id, name, warning string) error {
	if err := confirm.ask(o, fmt.Sprintf("Delete notification %s %s?%s", what, name, warning)); err != nil {
		return err
	}
	if err := s.do(ctx, http.MethodDelete, s.path("notifications", plural, id), nil, nil, nil); err != nil {
		return err
	}
	if o.json {
		return o.out.document(field{what + "_id", id}, field{"deleted", true})
	}
	o.out.text("notification %s %s deleted", what, oneLine(name))
	return nil
}
