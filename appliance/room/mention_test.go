package room

import (
	"strings"
	"testing"
)

// Mention matching, row by row (D.8, M 27).
func TestMentions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body, name string
		want       bool
	}{
		{"@agent status?", "agent", true},
		{"@agent", "agent", true},
		{"hi @agent", "agent", true},
		{"mail x@agent now", "agent", true}, // nothing is required before @
		{"@Agent, hi", "agent", true},
		{"@AGENT: hi", "Agent", true},
		{"@agent.", "agent", false},
		{"@agent. done", "agent", false},
		{"@agent-2", "agent", false},
		{"@agent_", "agent", false},
		{"@agent2", "agent", false},
		{"@agents", "agent", false},
		{"@agent-2 and @agent!", "agent", true},
		{"@*agent*", "agent", true},
		{"**@agent**", "agent", true},
		{"~~@ag~ent~~", "agent", true},
		{"@agent*2", "agent", false}, // deleted before matching
		{"@agent\u00e9", "agent", true},
		{"@agent@other", "other", true},
		{"@@agent", "agent", true},
		{"@ agent", "agent", false},
		{"agent", "agent", false},
		{"", "agent", false},
		{"@", "", false},
		{"@everyone", "everyone", false},
		{"@EVERYONE hi", "Everyone", false},
		{"@k8s", "\u212a8s", false}, // a Kelvin sign is no k
		{"@\u212a8s", "k8s", false},
		{"@Prüfer, bitte", "prüfer", true},
		{"@PRÜFER bitte", "prüfer", true},
		{"@prüfer-2", "prüfer", false},
		{"@r+d go", "r+d", true},
		{"@r+d2", "r+d", false},
	} {
		if got := Mentions(c.body, c.name); got != c.want {
			t.Errorf("Mentions(%q, %q) = %v", c.body, c.name, got)
		}
	}
}

func TestAliasesAreSoughtInTheBodyAsWritten(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{"@bob": true, "@Bob,": true, "@*bob*": false, "*@bob*": true, "@bob~": true,
		"@bob.": false, "@b*ob": false} {
		if got := ReadMentions(body).Alias("bob"); got != want {
			t.Errorf("alias in %q: %v", body, got)
		}
	}
}

// Asking one body for many names must not cost the product of its @ and them.
func TestManyAtsCostNothingPerName(t *testing.T) {
	t.Parallel()
	m := ReadMentions(strings.Repeat("@a ", 80_000))
	if len(m.bare.runs) != 1 || len(m.raw.runs) != 1 {
		t.Errorf("%d and %d runs to look up", len(m.bare.runs), len(m.raw.runs))
	}
}

// plainMention is the rule as it is written, without the short cuts.
func plainMention(body, name string) bool {
	if name == "" || strings.EqualFold(name, EveryoneName) {
		return false
	}
	body = strings.ReplaceAll(strings.ReplaceAll(body, "*", ""), "~", "")
	for i := range body {
		if body[i] == '@' && startsWithName(body[i+1:], name) {
			return true
		}
	}
	return false
}

func FuzzMentions(f *testing.F) {
	for _, s := range [][2]string{{"@agent hi", "agent"}, {"@*a*", "a"}, {"@r+d", "r+d"}, {"@@x.", "x"}, {"@\xff", "\xff"}, {"@é", "é"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, body, name string) {
		if got, want := Mentions(body, name), plainMention(body, name); got != want {
			t.Errorf("Mentions(%q, %q) = %v, want %v", body, name, got, want)
		}
		if ValidAlias("alias", name) == nil && !Mentions("hi @"+name+", and", name) {
			t.Errorf("%q is not mentioned by its own mention", name)
		}
	})
}
