package room

import (
	"strings"
	"testing"
	"unicode"

	"signalbox/appliance/fault"
)

func TestParseTyped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, name, args string
		ok               bool
	}{
		{"!reset @x", "reset", "@x", true},
		{"  !reset   @x  now ", "reset", "@x  now", true},
		{"\n!interrupt\t@x\nstop it", "interrupt", "@x\nstop it", true},
		{"!help", "help", "", true},
		{"!Reset @x", "reset", "@x", true},
		{"!", "", "", true},
		{"! reset", "", "reset", true},
		{"!!reset", "!reset", "", true},
		{"reset", "", "", false},
		{"say !reset", "", "", false},
		{"", "", "", false},
		{"  ", "", "", false},
	} {
		name, args, ok := ParseTyped(c.text)
		if name != c.name || args != c.args || ok != c.ok {
			t.Errorf("%q: %q %q %v", c.text, name, args, ok)
		}
	}
}

func TestAgentCommands(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		command string
		every   bool
		ok      bool
	}{
		"reset": {"reset", false, true}, "compact": {"compact", false, true}, "interrupt": {"interrupt", false, true},
		"reset-all-agents": {"reset", true, true}, "compact-all-agents": {"compact", true, true},
		"interrupt-all-agents": {"interrupt", true, true},
		"help":                 {}, "help-all-agents": {}, "": {}, "-all-agents": {}, "reset-all": {}, "reset-all-agents-all-agents": {},
	} {
		command, every, ok := AgentCommand(name)
		if ok != want.ok || ok && (command != want.command || every != want.every) {
			t.Errorf("%q: %q %v %v", name, command, every, ok)
		}
	}
	c := CommandCapabilities{Reset: CapabilityAlways, Interrupt: CapabilitySessionDependent}
	for command, want := range map[string]Capability{CommandReset: CapabilityAlways, CommandCompact: CapabilityUnsupported,
		CommandInterrupt: CapabilitySessionDependent, "help": CapabilityUnsupported} {
		if got := c.Of(command); got != want {
			t.Errorf("%s: %s", command, got)
		}
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	m := &Member{Agent: Agent{Name: "build-bot"}, Alias: "bob"}
	for _, c := range []struct {
		args, role string
		want       bool
	}{
		{"@build-bot", "", true},
		{"please @Build-Bot now", "", true},
		{"@build-bot, now", "", true},
		{"@*build-bot*", "", true},
		{"@bob", "", true},
		{"@*bob*", "", false},
		{"@lead", "lead", true},
		{"@LEAD", "lead", true},
		{"@lead", "", false},
		{"@other @build-bot", "", false}, // only the first
		{"@build-bot.", "", false},
		{"@build-bot-2", "", false},
		{"@ @build-bot", "", true}, // a bare @ is no token
		{"build-bot", "", false},
		{"@everyone", "everyone", false},
		{"", "", false},
	} {
		target := ParseTarget(c.args)
		if got := target.Is(m, c.role); got != c.want {
			t.Errorf("%q with role %q: %v", c.args, c.role, got)
		}
		if target.Nobody() != !strings.Contains(c.args, "@") {
			t.Errorf("%q: nobody is %v", c.args, target.Nobody())
		}
	}
}

func FuzzParseTyped(f *testing.F) {
	for _, s := range []string{"!reset @x", " !a b", "!", "!\u00a0x", "no", "!\xff @\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, args, ok := ParseTyped(text)
		if ok != strings.HasPrefix(strings.TrimSpace(text), "!") {
			t.Fatalf("%q: %v", text, ok)
		}
		if strings.IndexFunc(name, unicode.IsSpace) >= 0 || strings.TrimSpace(args) != args {
			t.Fatalf("%q: %q %q", text, name, args)
		}
		target := ParseTarget(args)
		if s := target.String(); strings.IndexFunc(s, unicode.IsSpace) >= 0 || !strings.Contains(args, "@"+s) && s != "" {
			t.Fatalf("%q: target %q", args, s)
		}
	})
}

// Status by model and presence (H.7).
func TestAgentStatus(t *testing.T) {
	t.Parallel()
	claimed, spawn, live := Presence{Claimed: true, AnyLive: true}, Presence{SpawnCovered: true, AnyLive: true}, Presence{AnyLive: true}
	for _, c := range []struct {
		model ConnectionModel
		want  [4]Status // nothing, live, spawn-capable, claimed
	}{
		{AlwaysOn, [4]Status{StatusDisconnected, StatusLive, StatusLive, StatusLive}},
		{SessionAddressable, [4]Status{StatusNoSession, StatusNoSession, StatusDormant, StatusLive}},
		{AutoSession, [4]Status{StatusDisconnected, StatusDormant, StatusDormant, StatusLive}},
		{SessionPassive, [4]Status{StatusAwaitingManualPoll, StatusAwaitingManualPoll, StatusAwaitingManualPoll,
			StatusAwaitingManualPoll}},
	} {
		for i, p := range []Presence{{}, live, spawn, claimed} {
			if got := AgentStatus(c.model, p); got != c.want[i] {
				t.Errorf("%s %+v: %s, want %s", c.model, p, got, c.want[i])
			}
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", maxName)
	for name, want := range map[string]bool{"a": true, "0": true, "build-bot": true, "a.b_c-d": true, "every": true, "everyone2": true,
		long: true, "": false, "A": false, "-a": false, ".a": false, "_a": false, "a b": false, "a\n": false, "é": false,
		"everyone": false, long + "a": false, "@a": false} {
		if err := ValidName("name", name); (err == nil) != want || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("name %.40q: %v", name, err)
		}
	}
	for alias, want := range map[string]bool{"Bob": true, "-": true, "a.b": true, "9": true, "": false, "a b": false, "é": false,
		"everyone": false, "Everyone": false, "a\n": false, long + "a": false} {
		if err := ValidAlias("alias", alias); (err == nil) != want || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("alias %.40q: %v", alias, err)
		}
	}
}
