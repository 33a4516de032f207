package commands

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// toldLine is a command line within a text that a person reads, to the closing quote or the end of the literal, where a
	// value follows.
	toldLine = regexp.MustCompile("`signalbox ([^`]*)")
	toldVerb = regexp.MustCompile(`%(\[\d\])?[sqdv]`)
)

// Command lines that explanations, alerts, errors and hints name must be ones that exist, with as many arguments as they take:
// a next action that is refused helps nobody.
func TestToldCommandsExist(t *testing.T) {
	t.Parallel()
	found := 0
	for _, root := range []string{"../appliance", "../transport", "."} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Error(path, err)
				}
				for _, m := range toldLine.FindAllStringSubmatchIndex(text, -1) {
					line := text[m[2]:m[3]]
					switch {
					case m[1] == len(text) && line == "": // the command follows, too
						continue
					case m[1] == len(text): // its value follows
						line += "x"
					}
					found++
					line = toldVerb.ReplaceAllString(line, "x")
					if err := parseOnly(docArgs(line)); err != nil {
						t.Errorf("%s: `signalbox %s`: %v", path, line, err)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 25 {
		t.Errorf("found %d command lines, which is too few to be all of them", found)
	}
	// Those that jobs are explained with are put together from parts: see TestEveryStateHasOneNextAction in package job.
	for _, line := range []string{"jobs cancel x", "jobs watch x", "jobs retry x", "jobs show x", "jobs explain x", "daemons show x", "routes test x",
		"jobs resolve x --resume --reason 'WHY'", "jobs resolve x --abandon --reason 'WHY'", "jobs resolve x --complete --reason 'WHY'",
		"jobs preview transfer x x x", "jobs preview adopt x x", "jobs preview evict x x --job x"} {
		if err := parseOnly(docArgs(line)); err != nil {
			t.Errorf("`signalbox %s`: %v", line, err)
		}
	}
}
