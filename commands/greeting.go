package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"signalbox/appliance"
	"signalbox/appliance/secret"
)

// greetingFile in the data directory says that the first admin key was made by a start that never became ready, so that
// nobody has been told of it yet. It holds nothing.
const greetingFile = "greeting.due"

// greeting remembers, across starts that fail, whether the first admin key still has to be shown.
type greeting struct {
	dir   string
	hadIt bool // admin.key was there before this start
	due   bool // an earlier start left it to be shown
	told  bool
}

// readGreeting looks at the data directory before a start, which makes the key.
func readGreeting(dir string) *greeting {
	return &greeting{dir: dir, hadIt: exists(filepath.Join(dir, appliance.AdminKeyFile)), due: exists(filepath.Join(dir, greetingFile))}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// take returns the key to be shown, of this start or of an earlier one that never became ready.
func (g *greeting) take(made secret.Text) (key secret.Text, due bool) {
	g.told = true
	if g.due {
		// In vain, it is shown once more at the next start: better than never.
		_ = os.Remove(filepath.Join(g.dir, greetingFile))
		if made.IsZero() {
			text, err := os.ReadFile(filepath.Join(g.dir, appliance.AdminKeyFile))
			if err != nil {
				return secret.Text{}, false // it was taken away since: there is nothing to show
			}
			return secret.NewText(strings.TrimSpace(string(text))), true
		}
	}
	return made, !made.IsZero()
}

// keepForLater leaves the mark when this start made the key and ended before it could be shown.
func (g *greeting) keepForLater() error {
	if g.told || g.hadIt || g.due || !exists(filepath.Join(g.dir, appliance.AdminKeyFile)) {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(g.dir, greetingFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remember to show the first admin key: %w", err)
	}
	return f.Close()
}
