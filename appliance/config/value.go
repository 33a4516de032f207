package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// value binds a key to a field of one Config. Setting parses only; check judges the field as it stands, so that a
// Config built in code and one that was loaded obey the same rules.
type value interface {
	kind() string
	rule() string
	// set reads the text of a flag or a SIGNALBOX_ variable.
	set(text string) error
	// setLegacy reads the text of a Z4J_ variable, where a duration is a number of seconds.
	setLegacy(text string) error
	// setTOML reads a decoded TOML value.
	setTOML(v any) error
	check() error
	// plain is the exact value for comparisons. It reveals secrets and never leaves the package.
	plain() string
	// literal is the value in TOML syntax with secrets masked.
	literal() string
}

// typeError says that a TOML value has the wrong type, without repeating the value.
func typeError(want string, got any) error {
	return fmt.Errorf("must be %s, got %s", want, tomlType(got))
}

func tomlType(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case []any:
		return "an array"
	case map[string]any:
		return "a table"
	}
	return "a date or time"
}

type intValue struct {
	p        *int
	min, max int
}

func (v intValue) kind() string                { return "integer" }
func (v intValue) rule() string                { return fmt.Sprintf("%d to %d", v.min, v.max) }
func (v intValue) setLegacy(text string) error { return v.set(text) }
func (v intValue) plain() string               { return strconv.Itoa(*v.p) }
func (v intValue) literal() string             { return strconv.Itoa(*v.p) }

func (v intValue) set(text string) error {
	n, err := parseInt(text)
	if err == nil {
		*v.p = n
	}
	return err
}

func (v intValue) setTOML(x any) error {
	n, ok := x.(int64)
	if !ok {
		return typeError("an integer", x)
	}
	if n > math.MaxInt32 || n < math.MinInt32 {
		return fmt.Errorf("must be %s, got %d", v.rule(), n)
	}
	*v.p = int(n)
	return nil
}

func (v intValue) check() error {
	if *v.p < v.min || *v.p > v.max {
		return fmt.Errorf("must be %s, got %d", v.rule(), *v.p)
	}
	return nil
}

type boolValue struct{ p *bool }

func (v boolValue) kind() string                { return "boolean" }
func (v boolValue) rule() string                { return "true or false" }
func (v boolValue) setLegacy(text string) error { return v.set(text) }
func (v boolValue) check() error                { return nil }
func (v boolValue) plain() string               { return strconv.FormatBool(*v.p) }
func (v boolValue) literal() string             { return strconv.FormatBool(*v.p) }

func (v boolValue) set(text string) error {
	b, err := parseBool(text)
	if err == nil {
		*v.p = b
	}
	return err
}

func (v boolValue) setTOML(x any) error {
	b, ok := x.(bool)
	if !ok {
		return typeError("true or false", x)
	}
	*v.p = b
	return nil
}

type durationValue struct {
	p        *Duration
	min, max time.Duration
}

func (v durationValue) kind() string { return "duration" }
func (v durationValue) rule() string {
	return fmt.Sprintf("%s to %s", Duration(v.min), Duration(v.max))
}
func (v durationValue) set(text string) error { return v.p.UnmarshalText([]byte(text)) }
func (v durationValue) plain() string         { return v.p.String() }
func (v durationValue) literal() string       { return strconv.Quote(v.p.String()) }

func (v durationValue) setLegacy(text string) error {
	if v.min < time.Second { // parts of a second have a meaning
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.Abs(n) > math.MaxInt32 {
			return fmt.Errorf("must be a number of seconds, got %q", text)
		}
		*v.p = Duration(time.Duration(n * float64(time.Second)))
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt32 || n < math.MinInt32 {
		return fmt.Errorf("must be a whole number of seconds, got %q", text)
	}
	*v.p = Duration(time.Duration(n) * time.Second)
	return nil
}

func (v durationValue) setTOML(x any) error {
	s, ok := x.(string)
	if !ok {
		return typeError("a duration string such as \"60s\"", x)
	}
	return v.set(s)
}

func (v durationValue) check() error {
	if d := v.p.Std(); d < v.min || d > v.max {
		return fmt.Errorf("must be %s, got %s", v.rule(), *v.p)
	}
	return nil
}

// sizeValue is a number of bytes; max 0 means no upper bound.
type sizeValue struct {
	p        *Size
	min, max Size
}

func (v sizeValue) kind() string { return "size" }
func (v sizeValue) rule() string {
	if v.max == 0 {
		return fmt.Sprintf("at least %s", v.min)
	}
	return fmt.Sprintf("%s to %s", v.min, v.max)
}
func (v sizeValue) set(text string) error       { return v.p.UnmarshalText([]byte(text)) }
func (v sizeValue) setLegacy(text string) error { return v.set(text) }
func (v sizeValue) plain() string               { return strconv.FormatInt(v.p.Bytes(), 10) }

func (v sizeValue) literal() string {
	if s := v.p.String(); s != v.plain() {
		return strconv.Quote(s)
	}
	return v.plain()
}

func (v sizeValue) setTOML(x any) error {
	switch x := x.(type) {
	case string:
		return v.set(x)
	case int64:
		return v.set(strconv.FormatInt(x, 10))
	}
	return typeError("a size such as \"8KiB\" or a number of bytes", x)
}

func (v sizeValue) check() error {
	if *v.p < v.min || v.max != 0 && *v.p > v.max {
		return fmt.Errorf("must be %s, got %s", v.rule(), *v.p)
	}
	return nil
}

// textValue is a string with a rule of its own; an empty string is the rule's business too.
type textValue struct {
	p    *string
	text string
	ok   func(string) error
}

func (v textValue) kind() string                { return "string" }
func (v textValue) rule() string                { return v.text }
func (v textValue) setLegacy(text string) error { return v.set(text) }
func (v textValue) check() error                { return v.ok(*v.p) }
func (v textValue) plain() string               { return *v.p }
func (v textValue) literal() string             { return quoteTOML(*v.p) }

func (v textValue) set(text string) error {
	*v.p = text
	return nil
}

func (v textValue) setTOML(x any) error {
	s, ok := x.(string)
	if !ok {
		return typeError("a string", x)
	}
	return v.set(s)
}

// enumValue is one of a closed list of words.
type enumValue[T ~string] struct {
	p       *T
	u       encoding.TextUnmarshaler
	choices []T
}

func (v enumValue[T]) kind() string                { return "word" }
func (v enumValue[T]) rule() string                { return joinChoices(v.choices) }
func (v enumValue[T]) set(text string) error       { return v.u.UnmarshalText([]byte(text)) }
func (v enumValue[T]) setLegacy(text string) error { return v.set(text) }
func (v enumValue[T]) plain() string               { return string(*v.p) }
func (v enumValue[T]) literal() string             { return quoteTOML(string(*v.p)) }

func (v enumValue[T]) setTOML(x any) error {
	s, ok := x.(string)
	if !ok {
		return typeError("a string", x)
	}
	return v.set(s)
}

func (v enumValue[T]) check() error {
	scratch := *v.p
	return parseEnum(&scratch, []byte(*v.p), v.choices)
}

// quoteTOML writes a basic string; JSON's escapes are a subset of TOML's.
func quoteTOML(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return strconv.Quote(s)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
