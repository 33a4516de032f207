package commands

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"signalbox/appliance/room"
)

// adviseAddressed says on stderr that a message addresses no agent, and which of its mentions are nobody of the room. The
// message is stored: what cannot be found out is left out.
func (o *options) adviseAddressed(ctx context.Context, s speaker, text string, p postedItem) {
	if p.Item.Kind != "message" || len(p.Statuses) > 0 || len(p.Answers) > 0 {
		return
	}
	note := "it addresses no agent"
	if strings.Contains(text, "@") {
		var r record[roomRow]
		if s.client.get(ctx, roomPath("rooms", s.room), nil, &r) == nil {
			if unknown := strangers(text, r.V); len(unknown) > 0 {
				note += "; nobody in the room is called " + strings.Join(unknown, ", ")
			}
		}
	}
	o.out.say("%s", oneLine(note))
}

// mentionWord is a mention that stands alone: the @ of an email address has its name before it.
var mentionWord = regexp.MustCompile(`(^|[^A-Za-z0-9._@-])@([A-Za-z0-9._-]+)`)

// maxStrangers bounds how many unknown mentions are named.
const maxStrangers = 5

// strangers are the mentions of a text that nobody and no role of the room has for a name.
func strangers(text string, r roomRow) (out []string) {
	for _, found := range mentionWord.FindAllStringSubmatch(strings.NewReplacer("*", "", "~", "").Replace(text), -1) {
		if word := "@" + found[2]; !calledSo(word, r) && !hasFold(out, word) && len(out) < maxStrangers {
			out = append(out, word)
		}
	}
	return out
}

func calledSo(word string, r roomRow) bool {
	names := []string{room.EveryoneName}
	for _, m := range r.Members {
		names = append(names, m.Name, text(m.Alias))
	}
	for _, p := range r.People {
		first, _, _ := strings.Cut(p.Name, " ")
		local, _, _ := strings.Cut(p.Email, "@")
		names = append(names, p.Name, first, local, p.Email)
	}
	for _, role := range r.Roles {
		first, _, _ := strings.Cut(role.Name, " ")
		names = append(names, role.Name, first)
	}
	return hasFold(names, word[1:])
}

func hasFold(list []string, want string) bool {
	for _, s := range list {
		if strings.EqualFold(s, want) {
			return true
		}
	}
	return false
}

// heard words how a message stands with an agent that it addresses. An agent without a session in the room hears it all
// the same when one of its connections covers the room.
func (s addressedAgent) heard() string {
	if s.Status != string(room.StatusNoSession) || s.Covering == 0 {
		return oneLine(s.Status)
	}
	if s.Covering == 1 {
		return "heard by 1 connection"
	}
	return fmt.Sprintf("heard by %d connections", s.Covering)
}

// adviseNamesakes says on stderr that a room's name is another's too.
func (o *options) adviseNamesakes(ctx context.Context, c *client, id, name string) {
	var answer struct {
		Matches []idName `json:"matches"`
	}
	if c.get(ctx, "/resolve", url.Values{"kind": {kindRoom}, "text": {name}}, &answer) != nil {
		return // the room is made
	}
	var others []string
	for _, m := range answer.Matches {
		if m.Name == name && m.ID != id {
			others = append(others, m.ID)
		}
	}
	if len(others) > 0 {
		o.out.say("another room is called %s too: %s; commands by this name are ambiguous now, name either by its id", oneLine(name),
			strings.Join(others, ", "))
	}
}
