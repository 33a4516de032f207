package commands

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	docWords  = regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`)
	docQuoted = regexp.MustCompile(`'([^']*)'|"([^"]*)"`)
	// docPrompt may name the machine.
	docPrompt = regexp.MustCompile(`^[a-z]*\$ `)
	// docProgram is the program at the start of a command line, however it is called there.
	docProgram = regexp.MustCompile(`^(?:[a-z]*\$ |# )?(?:[A-Z][A-Z0-9_]*=\S* +)*(?:sudo (?:-u \S+ )?)?(?:\S*/)?signalbox +`)
)

// docCommands returns the signalbox command lines of the fenced blocks of a document, without the program's name. In a
// console block only what follows a prompt is a command; the rest is output.
func docCommands(text string) []string {
	var out []string
	fence := ""
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if kind, ok := strings.CutPrefix(line, "```"); ok {
			if fence != "" {
				kind = ""
			}
			fence = kind
			continue
		}
		if fence != "sh" && fence != "console" || fence == "console" && !docPrompt.MatchString(line) {
			continue
		}
		line = strings.ReplaceAll(line, "<(signalbox", "\nsignalbox")
		for part := range strings.SplitSeq(line, "\n") {
			if found := docProgram.FindString(part); found != "" {
				out = append(out, strings.TrimPrefix(part, found))
			}
		}
	}
	return out
}

// docArgs splits a command line into arguments up to what belongs to the shell.
func docArgs(line string) []string {
	var args []string
	for _, w := range docWords.FindAllString(line, -1) {
		if strings.HasPrefix(w, ">") || w == "<" || strings.HasPrefix(w, "2>") || strings.HasPrefix(w, "#") || w == "|" || w == "&" ||
			w == "&&" || w == ";" {
			break
		}
		closing := strings.HasSuffix(w, ")") && !strings.Contains(w, "(")
		args = append(args, docQuoted.ReplaceAllString(strings.TrimSuffix(w, ")"), "$1$2"))
		if closing {
			break
		}
	}
	return args
}

// Command lines in the documents must name commands and flags that exist, with as many arguments as they take.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range docCommands(string(text)) {
			found++
			if err := parseOnly(docArgs(line)); err != nil {
				t.Errorf("%s: signalbox %s: %v", file, line, err)
			}
		}
	}
	if found < 40 {
		t.Errorf("found %d command lines, which is too few to be all of them", found)
	}
}

// parseOnly finds the command that the arguments name and checks flags and arguments without running it.
func parseOnly(args []string) error {
	root := newRootCommand(newOptions(Stdio{}, Assets{}))
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return usagef("unknown command %q for %q", cmd.Flags().Arg(0), cmd.CommandPath())
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func TestDocCommandsAreFound(t *testing.T) {
	t.Parallel()
	text := "signalbox outside\n```sh\nsudo -u x /usr/bin/signalbox a --b 'c d' > e\nA=1 signalbox f \\\n  g\nsource <(signalbox h bash)\n" +
		"```\n```console\n$ ./bin/signalbox i j  # k\nsignalbox: output\n```\n```toml\nsignalbox no\n```\n"
	want := []string{"a|--b|c d", "f|g", "h|bash", "i|j"}
	var got []string
	for _, line := range docCommands(text) {
		got = append(got, strings.Join(docArgs(line), "|"))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range [][]string{{"frob"}, {"agents", "frob"}, {"agents", "list", "--frob"}, {"agents", "show"}} {
		if parseOnly(bad) == nil {
			t.Errorf("%q was taken for a command that exists", bad)
		}
	}
}

// The proxies' configurations that docs/proxies.md shows are the files of deploy/, which the interop tests put in front of
// the real binary.
func TestProxiesAreShownAsTheyAreTested(t *testing.T) {
	shown, err := os.ReadFile(filepath.Join("..", "docs", "proxies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for kind, file := range map[string]string{"nginx": "nginx.conf", "caddyfile": "Caddyfile"} {
		text, err := os.ReadFile(filepath.Join("..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(shown), "```"+kind+"\n"+string(text)+"```\n") {
			t.Errorf("docs/proxies.md does not show deploy/%s as it is", file)
		}
	}
}
