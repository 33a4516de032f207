package frame

import (
	"bytes"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// faults are the places where a frame that passed the scan does not fit the schema; -1 is no such place. They exist
// because the parser's error names one place only, and only in words that quote the input.
type faults struct {
	key         int // an unknown key outside command
	enum        int // an unknown enum name outside command
	inCommand   int // an unknown key inside command
	commandEnum int // an unknown enum name inside command
	spellings   int // the second spelling of a field
}

// schemaFaults walks data, which passed the scan, along the schema of the message md.
func schemaFaults(data []byte, md protoreflect.MessageDescriptor) faults {
	w := walker{data: data, faults: faults{-1, -1, -1, -1, -1}}
	w.message(md, false)
	return w.faults
}

// commandName is the message inside which unknown keys and enum names are the receiver's to answer.
const commandName = "archive_control.v1.Command"

// walker reads JSON that is known to be well formed.
type walker struct {
	data []byte
	i    int
	faults
}

func first(at *int, i int) {
	if *at < 0 {
		*at = i
	}
}

// message reads one value that should be a message md.
func (w *walker) message(md protoreflect.MessageDescriptor, command bool) {
	w.space()
	if w.data[w.i] != '{' || md.ParentFile().Package() == "google.protobuf" {
		w.skip()
		return
	}
	command = command || md.FullName() == commandName
	var seen map[protoreflect.FieldNumber]bool
	w.object(func(name []byte, at int) {
		fd := md.Fields().ByJSONName(string(name))
		if fd == nil {
			fd = md.Fields().ByTextName(string(name))
		}
		switch {
		case fd == nil && command:
			first(&w.inCommand, at)
		case fd == nil:
			first(&w.key, at)
		case seen[fd.Number()]:
			first(&w.spellings, at)
		}
		if fd == nil {
			w.skip()
			return
		}
		if seen == nil {
			seen = make(map[protoreflect.FieldNumber]bool)
		}
		seen[fd.Number()] = true
		w.field(fd, command)
	})
}

// field reads the value of a field.
func (w *walker) field(fd protoreflect.FieldDescriptor, command bool) {
	w.space()
	switch {
	case fd.IsMap():
		w.skip() // no map of the schema has messages or enums as values
	case fd.IsList() && w.data[w.i] == '[':
		w.array(func() { w.single(fd, command) })
	default:
		w.single(fd, command)
	}
}

func (w *walker) single(fd protoreflect.FieldDescriptor, command bool) {
	w.space()
	switch {
	case fd.Message() != nil:
		w.message(fd.Message(), command)
	case fd.Enum() != nil && w.data[w.i] == '"':
		at := w.i
		name := w.text()
		if fd.Enum().Values().ByName(protoreflect.Name(name)) != nil {
			return
		}
		if command {
			first(&w.commandEnum, at)
		} else {
			first(&w.enum, at)
		}
	default:
		w.skip()
	}
}

// object reads an object and calls f with each key, before its value.
func (w *walker) object(f func(name []byte, at int)) {
	w.i++
	for w.more('}') {
		at := w.i
		name := w.text()
		w.space()
		w.i++ // colon
		f(name, at)
	}
}

// array reads an array and calls f before each element.
func (w *walker) array(f func()) {
	w.i++
	for w.more(']') {
		f()
	}
}

// more moves to the next key or element, or past the end.
func (w *walker) more(end byte) bool {
	w.space()
	if w.data[w.i] == ',' {
		w.i++
		w.space()
	}
	if w.data[w.i] == end {
		w.i++
		return false
	}
	return true
}

// text reads a string and returns it unescaped.
func (w *walker) text() []byte {
	from := w.i + 1
	for w.i = from; w.data[w.i] != '"'; w.i++ {
		if w.data[w.i] == '\\' {
			w.i++
		}
	}
	text := w.data[from:w.i]
	w.i++
	if bytes.IndexByte(text, '\\') >= 0 {
		text = unescape(nil, text)
	}
	return text
}

// skip reads any value.
func (w *walker) skip() {
	w.space()
	switch w.data[w.i] {
	case '{':
		w.object(func([]byte, int) { w.skip() })
	case '[':
		w.array(w.skip)
	case '"':
		w.text()
	default:
		for bytes.IndexByte([]byte(",]} \t\r\n"), w.data[w.i]) < 0 {
			w.i++
		}
	}
}

func (w *walker) space() {
	for w.data[w.i] == ' ' || w.data[w.i] == '\n' || w.data[w.i] == '\t' || w.data[w.i] == '\r' {
		w.i++
	}
}
