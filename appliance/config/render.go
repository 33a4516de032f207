package config

import (
	"fmt"
	"strings"
)

// commentWidth is the width of generated comments.
const commentWidth = 110

// sectionDoc says in one sentence what a TOML table is about.
func sectionDoc(section string) string {
	switch section {
	case "server":
		return "The main listener, TLS, and who may talk to it."
	case "metrics":
		return "Where Prometheus may scrape. /metrics is off on the main listener by default."
	case "log":
		return "What is logged, and how."
	case "secret":
		return "Master secrets. Each can be read from a file: secret_file and previous_secrets_file, or a variable with _FILE."
	case "store":
		return "SQLite. The defaults suit a small machine with an SSD."
	case "agent":
		return "The agent plane: commands, sessions, limits, retention."
	case "schedules":
		return "Schedules of the agent plane: what counts as missed, and how it is caught up with."
	case "room":
		return "The rooms plane: what waits for agents, sizes, attachments."
	case "archive":
		return "The archive plane: the daemons' token, liveness, and limits of their connections."
	}
	return ""
}

// RenderExample writes the example file: every key with its default, what it does and why one would change it.
func RenderExample() []byte {
	var b strings.Builder
	comment(&b, "Signalbox configuration. Every key is listed with its default; remove what you do not change. "+
		"A flag wins over an environment variable, which wins over this file. Each key has a variable: SIGNALBOX_ and its path in "+
		"capitals, such as SIGNALBOX_SERVER_LISTEN. Unknown keys are refused. Check with: signalbox config check")
	section := ""
	for _, k := range Keys() {
		if s := k.Section(); s != section {
			section = s
			b.WriteString("\n\n")
			comment(&b, sectionDoc(s))
			fmt.Fprintf(&b, "[%s]\n", s)
		}
		b.WriteByte('\n')
		comment(&b, k.Doc)
		comment(&b, k.Why)
		comment(&b, "Accepts: "+k.Rule+".")
		fmt.Fprintf(&b, "%s = %s\n", k.Name(), k.Default)
	}
	return []byte(b.String())
}

// comment writes text as TOML comment lines.
func comment(b *strings.Builder, text string) {
	line := "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > commentWidth {
			b.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// RenderReference writes the table of all keys in Markdown, a heading per section.
func RenderReference() []byte {
	var b strings.Builder
	section := "-"
	for _, k := range Keys() {
		if s := k.Section(); s != section {
			section = s
			if s == "" {
				b.WriteString("### Top level\n\n")
			} else {
				fmt.Fprintf(&b, "\n### [%s]\n\n%s\n\n", s, sectionDoc(s))
			}
			b.WriteString("| Key | Default | Accepts | Variables | Reload | Meaning |\n|---|---|---|---|---|---|\n")
		}
		names := append(append([]string{}, k.Env...), k.Z4J...)
		for i, n := range names {
			names[i] = "`" + n + "`"
		}
		again := ""
		if k.Reload {
			again = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s %s |\n", k.Path, k.Default, cell(k.Rule),
			strings.Join(names, " "), again, cell(k.Doc), cell(k.Why))
	}
	return []byte(b.String())
}

// cell keeps text from ending a table cell and from being read as emphasis.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`).Replace(text)
}
