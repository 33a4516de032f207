package config

import "fmt"

// OriginKind is the layer a value came from.
type OriginKind int

// The layers, from the weakest to the strongest.
const (
	FromDefault OriginKind = iota
	FromFile
	FromEnv
	FromFlag
)

// Origin says where a value came from.
type Origin struct {
	Kind OriginKind
	// Name is the file, the variable or the flag without dashes; empty for a default.
	Name string
	// Line is the line in the file, from 1; 0 when unknown.
	Line int
}

// String writes "default", "file:line", "env NAME" or "flag --name".
func (o Origin) String() string {
	switch o.Kind {
	case FromFile:
		if o.Line > 0 {
			return fmt.Sprintf("%s:%d", o.Name, o.Line)
		}
		return o.Name
	case FromEnv:
		return "env " + o.Name
	case FromFlag:
		return "flag --" + o.Name
	}
	return "default"
}

// Origins remembers for each key where its value came from.
type Origins struct{ byPath map[string]Origin }

// Of returns the origin of the key at path. A nil Origins says default for every key.
func (o *Origins) Of(path string) Origin {
	if o == nil {
		return Origin{}
	}
	return o.byPath[path]
}
