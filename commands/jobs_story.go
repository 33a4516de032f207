package commands

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// storyDetail is what the words of a story are made of; each event has some of it.
type storyDetail struct {
	Operation   string        `json:"operation"`
	Title       string        `json:"title"`
	By          string        `json:"by"`
	Placeholder bool          `json:"placeholder"`
	From        string        `json:"from"`
	To          string        `json:"to"`
	Because     string        `json:"because"`
	Rule        string        `json:"rule"`
	Reason      string        `json:"reason"`
	ReturnsTo   string        `json:"returns_to"`
	Detail      string        `json:"detail"`
	Until       string        `json:"until"`
	Outcome     string        `json:"outcome"`
	Command     string        `json:"command"`
	Step        string        `json:"step"`
	Attempt     int64         `json:"attempt"`
	Attempts    int64         `json:"attempts"`
	Late        string        `json:"late"`
	Disposition string        `json:"disposition"`
	Event       string        `json:"event"`
	Sequence    int64         `json:"sequence"`
	Committed   bool          `json:"committed"`
	Code        string        `json:"code"`
	SHA256      string        `json:"sha256"`
	Events      int64         `json:"events"`
	NewEvents   int64         `json:"new_events"`
	Defect      string        `json:"defect"`
	Decision    string        `json:"decision"`
	Note        string        `json:"note"`
	EvictJob    string        `json:"evict_job"`
	Error       *archiveFault `json:"error"`
}

// words tells an entry of a job's story in a sentence. What this client does not know is shown as it came.
func (e *jobEntry) words() string {
	var d storyDetail
	if len(e.Detail) > 0 && json.Unmarshal(e.Detail, &d) != nil {
		return e.Event + " " + string(e.Detail)
	}
	at := ""
	if e.Daemon != nil {
		at = " " + *e.Daemon
	}
	command := words(d.Command)
	if d.Step != "" {
		command = strings.TrimSpace(command + " " + strings.ToUpper(d.Step))
	}
	if d.Attempt > 1 {
		command += fmt.Sprintf(" (attempt %d)", d.Attempt)
	}
	var s string
	switch e.Event {
	case "created":
		s = "created: " + d.Operation + " of " + d.Title
		if d.Placeholder {
			s = "found at" + at + ", which reported it; control did not know it"
		}
	case "state":
		s = words(d.From) + " → " + words(d.To)
		if d.Outcome != "" {
			s += ", ends as " + words(d.Outcome)
		}
	case "waiting":
		s = "waits: " + words(d.Reason)
		if d.Until != "" {
			s += ", next look " + d.Until
		}
	case "manual":
		s = "held for a person"
	case "command":
		s = "command to" + at + ": " + command
		if d.Disposition != "" {
			s += " " + words(d.Disposition)
		}
	case "acked":
		s = strings.TrimSpace(at) + " accepted " + command
		if d.Late != "" {
			s += ", late"
		}
	case "rejected":
		s = strings.TrimSpace(at) + " refused " + command
	case "conflict":
		s = strings.TrimSpace(at) + " holds another command under the id of " + command
	case "exhausted":
		s = fmt.Sprintf("%s was sent to%s %d times without an answer", command, at, d.Attempts)
	case "withdrawn":
		s = "withdrawn: " + command
	case "step":
		s = strings.TrimSpace(at) + " reports " + words(d.Event)
		if d.Step != "" {
			s += " " + strings.ToUpper(d.Step)
		}
		s += fmt.Sprintf(", event %d", d.Sequence)
		if d.Committed {
			s += ", committed"
		}
	case "evidence":
		s = "evidence of " + strings.ToUpper(d.Step) + " from" + at + ", sha256 " + cut(d.SHA256, 17)
	case "refused", "dropped":
		s = fmt.Sprintf("%s event %d of%s (%s)", e.Event, d.Sequence, at, words(d.Event))
		if d.Code != "" {
			s += ": " + d.Code
		}
	case "reconcile":
		s = "agreed with" + at + " by rule " + d.Rule
	case "snapshot":
		s = fmt.Sprintf("snapshot of%s: %d events, %d new", at, d.Events, d.NewEvents)
		if d.Defect != "" {
			s += ", not valid: " + d.Defect
		}
	case "decision":
		s = "decided"
		if d.By != "" {
			s += " by " + d.By
		}
		s += ": " + words(d.Decision)
		if d.Reason != "" {
			s += ", because: " + d.Reason
		}
		return s
	case "move":
		s = "goes on with job " + d.EvictJob + ", which gives up the source copy"
	default:
		return strings.TrimSpace(e.Event + at + " " + string(e.Detail))
	}
	for _, more := range []string{d.Detail, d.Because, d.Note, d.Error.String()} {
		if more != "" && !strings.Contains(s, more) {
			s += "; " + more
		}
	}
	return s
}

// storyLine is an entry as a line of its own.
func (o *options) storyLine(e *jobEntry) string {
	return o.out.stamp(e.At) + "  " + pad(e.Event, 9) + "  " + oneLine(e.words())
}

// evidenceText shows the facts of an evidence: names and values, digests cut short.
func evidenceText(raw json.RawMessage) string {
	var kinds map[string]map[string]any
	if len(raw) == 0 || json.Unmarshal(raw, &kinds) != nil {
		return ""
	}
	var parts []string
	for _, facts := range kinds {
		for name, value := range facts {
			if text := factText(name, value); text != "" {
				parts = append(parts, words(name)+" "+text)
			}
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// factText shows one fact; "" for what says nothing.
func factText(name string, value any) string {
	switch v := value.(type) {
	case string:
		if len(v) == 64 {
			return v[:12] + "…"
		}
		return v
	case float64:
		if v == 0 {
			return ""
		}
		if strings.Contains(name, "bytes") {
			return sizeText(uint64(v))
		}
		return fmt.Sprint(int64(v))
	case bool:
		if v {
			return "yes"
		}
	case map[string]any: // counts by name
		var counts []string
		for key, n := range v {
			if f, ok := n.(float64); ok {
				counts = append(counts, fmt.Sprintf("%s %d", words(strings.ToLower(strings.TrimPrefix(key, "MATERIALIZE_METHOD_"))), int64(f)))
			}
		}
		slices.Sort(counts)
		if len(counts) > 0 {
			return "(" + strings.Join(counts, ", ") + ")"
		}
	}
	return ""
}
