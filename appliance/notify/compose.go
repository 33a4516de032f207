package notify

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// maxSubject is the longest subject, in characters.
const maxSubject = 250

// body is the JSON that webhooks carry and that other channels are told in words. Its members stay the same over all
// attempts.
type body struct {
	SchemaVersion int               `json:"schema_version"`
	ID            string            `json:"id"`
	Type          string            `json:"type"` // the trigger
	Timestamp     time.Time         `json:"timestamp"`
	Project       bodyRef           `json:"project"`
	Rule          *bodyRef          `json:"rule"` // null: a test
	Subject       string            `json:"subject"`
	Text          string            `json:"text"`
	Collected     int64             `json:"collected"`
	IsFollowUp    bool              `json:"is_follow_up"`
	FirstAt       time.Time         `json:"first_at"`
	LastAt        time.Time         `json:"last_at"`
	Name          string            `json:"name"`
	Detail        string            `json:"detail"`
	Data          map[string]string `json:"data"`
}

type bodyRef struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// compose words what a group has collected.
func compose(g *Group, id uuid.UUID, now time.Time) (subject string, text []byte, err error) {
	var newest sample
	if err := json.Unmarshal(g.Sample, &newest); err != nil {
		return "", nil, fault.Wrap(fault.Internal, err, "sample of a notification group")
	}
	title, intro := newest.Title, newest.Title
	switch {
	case g.Key == "":
		title = fmt.Sprintf("%s in other groups of rule %s", occurrences(g.Collected), g.RuleName)
		intro = fmt.Sprintf("Rule %s: and %s in other groups, more than are told one by one. The newest: %s", g.RuleName,
			occurrences(g.Collected), newest.Title)
	case g.IsTold:
		title = fmt.Sprintf("%d more of: %s", g.Collected, newest.Title)
		intro = fmt.Sprintf("%d more since the last message. The newest: %s", g.Collected, newest.Title)
	case g.Collected > 1:
		title = fmt.Sprintf("%s (%d times)", newest.Title, g.Collected)
		intro = title
	}
	subject = cut(oneLine("["+g.ProjectSlug+"] "+title), maxSubject)
	b := body{SchemaVersion: 1, ID: id.String(), Type: string(g.Trigger), Timestamp: now.UTC(),
		Project: bodyRef{g.ProjectID.String(), g.ProjectSlug}, Rule: &bodyRef{g.RuleID.String(), g.RuleName}, Subject: subject,
		Collected: g.Collected, IsFollowUp: g.IsTold, FirstAt: g.FirstAt.UTC(), LastAt: g.LastAt.UTC(), Name: newest.Name,
		Detail: newest.Detail, Data: newest.Links}
	b.Text = words(intro, &b)
	return encodeBody(subject, &b)
}

func encodeBody(subject string, b *body) (string, []byte, error) {
	if b.Data == nil {
		b.Data = map[string]string{}
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "", nil, fault.Wrap(fault.Internal, err, "encode a notification")
	}
	return subject, text, nil
}

func occurrences(n int64) string {
	if n == 1 {
		return "1 occurrence"
	}
	return fmt.Sprintf("%d occurrences", n)
}

// words is the body as plain text.
func words(intro string, b *body) string {
	var out strings.Builder
	out.WriteString(intro + "\n")
	if b.Detail != "" && !strings.Contains(intro, b.Detail) {
		out.WriteString("\n" + b.Detail + "\n")
	}
	out.WriteString("\nproject: " + b.Project.Name + "\n")
	if b.Rule != nil {
		out.WriteString("rule: " + b.Rule.Name + "\n")
	}
	keys := make([]string, 0, len(b.Data))
	for k := range b.Data {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		out.WriteString(k + ": " + b.Data[k] + "\n")
	}
	if b.Collected > 1 {
		fmt.Fprintf(&out, "from: %s\nto: %s\n", b.FirstAt.Format(time.RFC3339), b.LastAt.Format(time.RFC3339))
	} else {
		out.WriteString("at: " + b.LastAt.Format(time.RFC3339) + "\n")
	}
	return out.String()
}

// message is a row of the outbox as it is sent.
func message(id uuid.UUID, at time.Time, subject string, text []byte) Message {
	var b struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(text, &b) // we wrote it; without it the subject says enough
	return Message{ID: id, CreatedAt: at, Subject: subject, Text: b.Text, Body: text}
}
