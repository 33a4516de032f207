package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// Bounds of list settings: more than anyone writes by hand, few enough to scan on every request.
const (
	maxListEntries    = 1024
	maxPatterns       = 64
	maxPatternLen     = 200
	minSecretBytes    = 32
	maxPreviousSecret = 16
)

// listValue is a list of strings that parse one by one.
type listValue[T any] struct {
	p     *[]T
	name  string
	text  string
	most  int
	parse func(string) (T, error)
	show  func(T) string
	// judge checks an entry of the finished list; nil when parse has said it all.
	judge func(T) error
	// hidden masks the entries.
	hidden bool
}

func (v listValue[T]) kind() string                { return v.name }
func (v listValue[T]) rule() string                { return v.text }
func (v listValue[T]) setLegacy(text string) error { return v.set(text) }

// set reads a JSON array of strings, or entries parted by commas or line ends.
func (v listValue[T]) set(text string) error {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") {
		var items []string
		if err := json.Unmarshal([]byte(text), &items); err != nil {
			return errors.New("must be a JSON array of strings or a comma-separated list")
		}
		return v.assign(items)
	}
	var items []string
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' }) {
		if s = strings.TrimSpace(s); s != "" {
			items = append(items, s)
		}
	}
	return v.assign(items)
}

func (v listValue[T]) setTOML(x any) error {
	raw, ok := x.([]any)
	if !ok {
		return typeError("an array of strings", x)
	}
	items := make([]string, len(raw))
	for i, r := range raw {
		if items[i], ok = r.(string); !ok {
			return fmt.Errorf("entry %d: %w", i+1, typeError("a string", r))
		}
	}
	return v.assign(items)
}

func (v listValue[T]) assign(items []string) error {
	var out []T
	var errs []error
	for i, s := range items {
		t, err := v.parse(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
			continue
		}
		out = append(out, t)
	}
	if len(errs) > 0 {
		return joinInline(errs)
	}
	*v.p = out
	return nil
}

func (v listValue[T]) check() error {
	var errs []error
	if len(*v.p) > v.most {
		errs = append(errs, fmt.Errorf("must have at most %d entries, got %d", v.most, len(*v.p)))
	}
	for i, t := range *v.p {
		if v.judge == nil {
			break
		}
		if err := v.judge(t); err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
		}
	}
	return joinInline(errs)
}

func (v listValue[T]) plain() string {
	var b strings.Builder
	for _, t := range *v.p {
		b.WriteString(quoteTOML(v.show(t)))
		b.WriteByte(',')
	}
	return b.String()
}

func (v listValue[T]) literal() string {
	out := make([]string, len(*v.p))
	for i, t := range *v.p {
		out[i] = quoteTOML(redacted)
		if !v.hidden {
			out[i] = quoteTOML(v.show(t))
		}
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// joinInline joins errors into one line; nil for none.
func joinInline(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

func prefixesValue(p *Prefixes) value {
	return listValue[netip.Prefix]{
		p: (*[]netip.Prefix)(p), name: "list of CIDR ranges", most: maxListEntries,
		text:  "CIDR ranges or single addresses, without zone ids, at most 64 characters each",
		parse: ParsePrefix, show: netip.Prefix.String,
		judge: func(r netip.Prefix) error {
			if !r.IsValid() || r != r.Masked() || r.Addr().Is4In6() || r.Addr().Zone() != "" {
				return fmt.Errorf("%s is not a canonical range", r)
			}
			return nil
		},
	}
}

func hostsValue(p *Hosts) value {
	return listValue[string]{
		p: (*[]string)(p), name: "list of host names", most: maxListEntries,
		text:  "host names without port; *.example.com covers every name below",
		parse: parseHost, show: func(s string) string { return s },
		judge: func(s string) error { _, err := parseHost(s); return err },
	}
}

func patternsValue(p *[]string) value {
	return listValue[string]{
		p: p, name: "list of patterns", most: maxPatterns,
		text:  "RE2 regular expressions, at most 64 of 1 to 200 characters",
		parse: func(s string) (string, error) { return s, nil },
		show:  func(s string) string { return s },
		judge: func(s string) error {
			if s == "" || len(s) > maxPatternLen {
				return fmt.Errorf("must be 1 to %d characters long", maxPatternLen)
			}
			if _, err := regexp.Compile("(?i)" + s); err != nil {
				return fmt.Errorf("%q is not a regular expression: %w", s, err)
			}
			return nil
		},
	}
}

func secretsValue(p *[]Secret) value {
	return listValue[Secret]{
		p: p, name: "list of secrets", most: maxPreviousSecret, hidden: true,
		text:  "at most 16 texts of at least 32 bytes",
		parse: func(s string) (Secret, error) { return NewSecret(s), nil },
		show:  Secret.Reveal,
		judge: masterSecretRule,
	}
}

// masterSecretRule is the rule of a set master secret (agent protocol K).
func masterSecretRule(s Secret) error {
	if n := len(s.Reveal()); n < minSecretBytes {
		return fmt.Errorf("must be at least %d bytes long, got %d", minSecretBytes, n)
	}
	return nil
}

// secretValue is one secret text; empty means not set and passes.
type secretValue struct {
	p     *Secret
	text  string
	judge func(Secret) error
}

func (v secretValue) kind() string                { return "secret" }
func (v secretValue) rule() string                { return v.text }
func (v secretValue) setLegacy(text string) error { return v.set(text) }
func (v secretValue) plain() string               { return v.p.Reveal() }

func (v secretValue) set(text string) error {
	*v.p = NewSecret(text)
	return nil
}

func (v secretValue) setTOML(x any) error {
	s, ok := x.(string)
	if !ok {
		return typeError("a string", x)
	}
	return v.set(s)
}

func (v secretValue) check() error {
	if v.p.IsZero() {
		return nil
	}
	return v.judge(*v.p)
}

func (v secretValue) literal() string {
	if v.p.IsZero() {
		return `""`
	}
	return quoteTOML(redacted)
}
