package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Files larger than these are not what they are taken for.
const (
	maxConfigFile = 256 << 10
	maxSecretFile = 64 << 10
)

// LoadOptions says where settings come from. Nothing is read from the process behind the caller's back.
type LoadOptions struct {
	// File is the TOML file; when empty SIGNALBOX_CONFIG in Env names it, and without both there is none.
	File string
	// Env is the environment as "NAME=value" lines, usually os.Environ(). An empty value counts as not set.
	Env []string
	// KnownEnv names SIGNALBOX_ variables that belong to other parts of the program; a trailing * covers a prefix.
	KnownEnv []string
	// Flags are the flags that were given, by TOML path ("server.listen"). A secret also takes its path with "_file".
	Flags map[string]string
}

// Load builds the configuration: defaults, then the file, then Z4J_ variables, then SIGNALBOX_ variables, then flags.
// Every problem is collected; the error is then an *InvalidError and the configuration is nil. Warnings are returned
// either way. The Origins tell where each value came from.
func Load(opts LoadOptions) (*Config, *Origins, []Warning, error) {
	l := newLoader(opts.Env)
	if file := opts.File; file != "" {
		l.readFile(file)
	} else if file = l.env["SIGNALBOX_CONFIG"]; file != "" {
		l.readFile(file)
	}
	l.applyZ4J()
	l.applyEnv(opts.KnownEnv)
	l.applyFlags(opts.Flags)
	l.problems = append(l.problems, validate(l.cfg, &l.origins, l.unread)...)
	l.warnings = append(l.warnings, review(l.cfg, &l.origins)...)
	if len(l.problems) > 0 {
		sortProblems(l.problems)
		return nil, nil, l.warnings, &InvalidError{l.problems}
	}
	return l.cfg, &l.origins, l.warnings, nil
}

// loader lays one source over the other and collects what is wrong.
type loader struct {
	cfg      *Config
	keys     []binding
	byPath   map[string]*binding
	env      map[string]string
	origins  Origins
	unread   map[string]bool
	problems []Problem
	warnings []Warning
}

func newLoader(env []string) *loader {
	l := &loader{
		cfg: Default(), byPath: map[string]*binding{}, env: map[string]string{},
		origins: Origins{map[string]Origin{}}, unread: map[string]bool{},
	}
	l.keys = bind(l.cfg)
	for i := range l.keys {
		l.byPath[l.keys[i].Path] = &l.keys[i]
	}
	for _, line := range env {
		if name, value, ok := strings.Cut(line, "="); ok && value != "" {
			l.env[name] = value
		}
	}
	return l
}

func (l *loader) problem(path, origin, format string, args ...any) {
	l.problems = append(l.problems, Problem{Path: path, Origin: origin, Msg: fmt.Sprintf(format, args...)})
}

func (l *loader) warn(path, format string, args ...any) {
	l.warnings = append(l.warnings, Warning{path, fmt.Sprintf(format, args...)})
}

// assign lays a value over the present one. Two variables that name the same key and differ are worth a warning.
func (l *loader) assign(b *binding, org Origin, set func() error) {
	before, prior := b.plain(), l.origins.Of(b.Path)
	if err := set(); err != nil {
		l.unread[b.Path] = true
		l.problem(b.Path, org.String(), "%s", err)
		return
	}
	if prior.Kind == FromEnv && org.Kind == FromEnv && before != b.plain() {
		l.warn(b.Path, "%s wins over %s, and they differ", org.Name, prior.Name)
	}
	l.origins.byPath[b.Path] = org
}

// variable returns the value of the variable name for b; for a secret, name with _FILE may name a file instead.
func (l *loader) variable(b *binding, name string) (text, source string, ok bool) {
	text, ok = l.env[name]
	if !b.Secret {
		return text, name, ok
	}
	file, hasFile := l.env[name+"_FILE"]
	switch {
	case ok && hasFile:
		l.unread[b.Path] = true
		l.problem(b.Path, "env "+name, "%s and %s_FILE are both set; set only one", name, name)
		return "", "", false
	case hasFile:
		text, err := readSecret(file)
		if err != nil {
			l.unread[b.Path] = true
			l.problem(b.Path, "env "+name+"_FILE", "%s", err)
			return "", "", false
		}
		return text, name + "_FILE", true
	}
	return text, name, ok
}

func (l *loader) applyEnv(known []string) {
	used := map[string]bool{"SIGNALBOX_CONFIG": true}
	for i := range l.keys {
		b := &l.keys[i]
		// The short name first, so that the full one wins.
		for j := len(b.Env) - 1; j >= 0; j-- {
			name := b.Env[j]
			used[name] = true
			if b.Secret {
				used[name+"_FILE"] = true
			}
			if text, source, ok := l.variable(b, name); ok {
				l.assign(b, Origin{Kind: FromEnv, Name: source}, func() error { return b.set(text) })
			}
		}
	}
	for _, name := range sortedKeys(l.env) {
		if strings.HasPrefix(name, "SIGNALBOX_") && !used[name] && !matches(known, name) {
			l.problem(name, "", "unknown variable%s", suggest(name, sortedKeys(used)))
		}
	}
}

func (l *loader) applyFlags(flags map[string]string) {
	for _, path := range sortedKeys(flags) {
		b, text := l.byPath[path], flags[path]
		file := false
		if b == nil {
			if b = l.byPath[strings.TrimSuffix(path, "_file")]; b == nil || !b.Secret {
				l.problem(path, "", "unknown setting%s", suggestPath(path, l.keys))
				continue
			}
			file = true
		}
		org := Origin{Kind: FromFlag, Name: b.Flag}
		if !file {
			l.assign(b, org, func() error { return b.set(text) })
			continue
		}
		if _, both := flags[b.Path]; both {
			l.unread[b.Path] = true
			l.problem(b.Path, org.String(), "--%s and --%s-file are both set; set only one", b.Flag, b.Flag)
			continue
		}
		org.Name += "-file"
		l.assignFile(b, org, text)
	}
}

// assignFile sets a secret from the file at path.
func (l *loader) assignFile(b *binding, org Origin, path string) {
	l.assign(b, org, func() error {
		text, err := readSecret(path)
		if err != nil {
			return err
		}
		return b.set(text)
	})
}

// readSecret reads a secret file without its trailing line ends.
func readSecret(path string) (string, error) {
	data, err := readBounded(path, maxSecretFile)
	if err != nil {
		return "", fmt.Errorf("read the secret file: %w", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("the secret file %s is empty", path)
	}
	return text, nil
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %s", path, Size(most))
	}
	return data, nil
}

// Init writes content, the text of the example file, to path with mode 0600. An existing file is never touched; the
// error then wraps fs.ErrExist.
func Init(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the configuration file: %w", err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the configuration file: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}
