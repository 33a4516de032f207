package commands

import (
	"context"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// What can be named by name, id or a beginning of its id, as the server calls it.
const (
	kindRoom            = "room"
	kindRoomAgent       = "room_agent"
	kindPerson          = "person"
	kindRegistrationKey = "registration_key"
	kindConnection      = "connection"
)

// kindWords are the kinds as people call them.
var kindWords = map[string]string{kindRoom: "room", kindRoomAgent: "room agent", kindPerson: "person",
	kindRegistrationKey: "registration key", kindConnection: "connection"}

// roomPath joins segments below the API, each escaped.
func roomPath(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// find resolves a name, an id or a unique beginning of an id. An exact name wins over beginnings of ids.
func (c *client) find(ctx context.Context, kind, arg string) (string, error) {
	if id, ok := fullID(arg); ok && kind != kindConnection {
		return id, nil
	}
	if arg == "" {
		return "", usagef("%s: name or id is empty", kindWords[kind])
	}
	var answer struct {
		Matches []idName `json:"matches"`
	}
	if err := c.get(ctx, "/resolve", url.Values{"kind": {kind}, "text": {arg}}, &answer); err != nil {
		return "", err
	}
	if len(answer.Matches) == 0 {
		return "", notFound("no %s %q", kindWords[kind], arg)
	}
	var named []idName
	for _, m := range answer.Matches {
		if m.Name == arg || m.ID == arg {
			named = append(named, m)
		}
	}
	if len(named) == 0 {
		named = answer.Matches
	}
	if len(named) == 1 {
		return named[0].ID, nil
	}
	candidates := make([]string, 0, len(named))
	for _, m := range named {
		candidates = append(candidates, strings.TrimSpace(m.ID+" "+oneLine(m.Name)))
	}
	return "", ambiguous(kindWords[kind], arg, candidates)
}

// findAll resolves several arguments of a kind.
func (c *client) findAll(ctx context.Context, kind string, args []string) ([]string, error) {
	ids := make([]string, 0, len(args))
	for _, arg := range args {
		id, err := c.find(ctx, kind, arg)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// clientAnd makes the client and resolves one argument.
func (o *options) clientAnd(ctx context.Context, kind, arg string) (*client, string, error) {
	c, err := o.newClient()
	if err != nil {
		return nil, "", err
	}
	id, err := c.find(ctx, kind, arg)
	return c, id, err
}

// completeFrom completes names that a list route tells.
func (o *options) completeFrom(path string, name func(record[completable]) (word, about string)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
		defer cancel()
		c, err := o.newClient()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var rows []record[completable]
		if err := c.get(ctx, path, nil, &rows); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		for _, r := range rows {
			if word, about := name(r); strings.HasPrefix(word, prefix) {
				words = append(words, oneLine(word)+"\t"+oneLine(about))
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// completable is what completions read of the rows of any list.
type completable struct {
	Name         string `json:"name"`
	Description  string `json:"description"`
	Status       string `json:"status"`
	Email        string `json:"email"`
	ConnectionID string `json:"connection_id"`
	Agent        idName `json:"agent"`
	State        string `json:"state"`
}

func (o *options) completeRooms() cobra.CompletionFunc {
	return o.completeFrom("/rooms", func(r record[completable]) (string, string) { return r.V.Name, r.V.Description })
}

func (o *options) completeRoomAgents() cobra.CompletionFunc {
	return o.completeFrom("/room-agents", func(r record[completable]) (string, string) { return r.V.Name, r.V.Status })
}

func (o *options) completePeople() cobra.CompletionFunc {
	return o.completeFrom("/people", func(r record[completable]) (string, string) { return r.V.Email, r.V.Name })
}

func (o *options) completeConnections() cobra.CompletionFunc {
	return o.completeFrom("/connections", func(r record[completable]) (string, string) { return r.V.ConnectionID, r.V.Agent.Name })
}

// roomThen completes a room first, then something else.
func (o *options) roomThen(rest cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return o.completeRooms()(cmd, args, prefix)
		}
		if rest == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return rest(cmd, args, prefix)
	}
}
