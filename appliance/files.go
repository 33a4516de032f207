package appliance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"signalbox/appliance/secret"
)

// Names of the files in the data directory.
const (
	DatabaseFile  = "signalbox.db"
	SecretFile    = "secret.key"
	AdminKeyFile  = "admin.key"
	AddressesFile = "addresses.json"
)

// replaceFile puts a file of mode 0600 in place whole or not at all: a crash leaves the old one or the new one.
func replaceFile(path string, content []byte) error { return publish(path, content, os.Rename) }

// createFile is replaceFile for a file that must not be there: fs.ErrExist when it is, and nothing has changed then.
func createFile(path string, content []byte) error { return publish(path, content, os.Link) }

// publish writes the content beside the path, makes it durable and gives it its name.
func publish(path string, content []byte, name func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), temporary(path)) // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // in vain once it has been renamed
	if _, err := tmp.Write(content); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), tmp.Close())
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := name(tmp.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// temporary is the pattern of the names that publish writes under.
func temporary(path string) string { return "." + filepath.Base(path) + ".*.tmp" }

// removeTemporary tidies what a crash within publish has left. The caller owns the directory.
func removeTemporary(dir string) error {
	var errs []error
	for _, file := range []string{SecretFile, AdminKeyFile, AddressesFile} {
		left, err := filepath.Glob(filepath.Join(dir, temporary(file)))
		errs = append(errs, err)
		for _, path := range left {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// readSecret reads a file that holds one secret. It refuses one that others may read.
func readSecret(path string) (secret.Text, error) {
	info, err := os.Stat(path)
	if err != nil {
		return secret.Text{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return secret.Text{}, fmt.Errorf("%s: must not be readable by others: chmod 600 %s", path, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return secret.Text{}, err
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return secret.Text{}, fmt.Errorf("%s: is empty", path)
	}
	return secret.NewText(text), nil
}

// ensureSecret returns the secret in the file, making file and secret with mint when there is none. Of two processes that
// start at once one makes it and both get the same.
func ensureSecret(path string, mint func() secret.Text) (text secret.Text, minted bool, err error) {
	text, err = readSecret(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, false, err
	}
	text = mint()
	err = createFile(path, []byte(text.Reveal()+"\n"))
	if errors.Is(err, fs.ErrExist) {
		text, err = readSecret(path)
		return text, false, err
	}
	return text, true, err
}

// prepareDataDir makes the data directory, which holds every secret, the owner's alone.
func prepareDataDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("data directory %s: must be the owner's alone: %w", dir, err)
	}
	return nil
}

// writeAddresses tells scripts where every listener is bound. The file is there exactly while the appliance is ready.
func writeAddresses(dir string, addresses map[string]string) error {
	content, err := json.MarshalIndent(addresses, "", "  ")
	if err != nil {
		return fmt.Errorf("encode addresses: %w", err)
	}
	return replaceFile(filepath.Join(dir, AddressesFile), append(content, '\n'))
}

func removeAddresses(dir string) error {
	err := os.Remove(filepath.Join(dir, AddressesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
