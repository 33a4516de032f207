package failure

import (
	"slices"
	"strings"
	"unicode"
)

const (
	// maxFrames is how many frames tell one place from another.
	maxFrames = 5
	// maxNameBytes bounds a name of a class, and the file and function of a frame.
	maxNameBytes = 200
	// usualFrames are as many as most tracebacks have, at most.
	usualFrames = 32
)

const (
	header      = "Traceback (most recent call last):"
	groupHeader = "Exception Group Traceback (most recent call last):"
	// The lines between the tracebacks of a chain; what was raised last comes last.
	chainContext = "During handling of the above exception, another exception occurred:"
	chainCause   = "The above exception was the direct cause of the following exception:"
)

// frame is a place in code, as the traceback has it.
type frame struct{ file, function string }

// trace is what a traceback tells: the frames of the exception that was raised last, outermost first, and its class.
type trace struct {
	frames []frame
	class  string
	cut    bool // the end is missing: frames are the outermost ones only
}

// parseTrace reads a Python traceback. Of a chain it reads the last one, which is the exception that ended the task; of an
// exception group the one of the group itself. ok is false for a text that holds none.
func parseTrace(text string) (t trace, ok bool) {
	ended := false    // the exception after the frames was read
	nested := false   // among the exceptions of a group
	awaiting := false // a chain announced another traceback
	for rest := text; rest != ""; {
		var line string
		line, rest = cutLine(rest)
		bare := line[margin(line):]
		switch {
		case bare == header || bare == groupHeader:
			if nested {
				continue
			}
			t, ok, ended, awaiting = trace{frames: t.frames[:0]}, true, false, false
			continue
		case bare == chainContext || bare == chainCause:
			awaiting = awaiting || !nested
			continue
		case startsParts(line): // of a group
			nested = true
			continue
		case !ok || ended || nested:
			continue
		}
		if f, isFrame := frameOf(bare); isFrame && len(bare) != len(line) {
			if n := len(t.frames); n == 0 || t.frames[n-1] != f { // a recursion repeats itself
				if t.frames == nil {
					t.frames = make([]frame, 0, usualFrames)
				}
				t.frames = append(t.frames, f)
			}
			continue
		}
		// The exception stands at the indentation of the header, code and markers stand deeper.
		if class := classOf(unboxed(line)); class != "" {
			t.class, ended = class, true
		}
	}
	t.cut = ok && (awaiting || !ended)
	if !ok {
		return trace{}, false
	}
	if t.cut && len(t.frames) > 1 && (!strings.HasSuffix(text, "\n") || isMarkedCut(text)) {
		t.frames = t.frames[:len(t.frames)-1] // its line may be cut, too
	}
	return t, true
}

// cutLine splits off the first line, without its end.
func cutLine(text string) (line, rest string) {
	line, rest, _ = strings.Cut(text, "\n")
	for strings.HasSuffix(line, "\r") {
		line = line[:len(line)-1]
	}
	return line, rest
}

// margin is the length of what stands before the text of a line: indentation, and the box of an exception group.
func margin(line string) (n int) {
	for n < len(line) && (line[n] == ' ' || line[n] == '\t' || line[n] == '|' || line[n] == '+') {
		n++
	}
	return n
}

// startsParts tells the line that begins one of the exceptions of a group: "  +-+--- 1 ---".
func startsParts(line string) bool {
	n := 0
	for n < len(line) && (line[n] == ' ' || line[n] == '|') {
		n++
	}
	return strings.HasPrefix(line[n:], "+-")
}

// unboxed is a line without the margin that tracebacks of exception groups have.
func unboxed(line string) string {
	if rest, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "| "); ok {
		return rest
	}
	return line
}

// frameOf reads a line of a Python traceback after its indentation: File "…", line N, in function.
func frameOf(line string) (f frame, ok bool) {
	rest, ok := strings.CutPrefix(line, `File "`)
	if !ok {
		return frame{}, false
	}
	file, rest, ok := strings.Cut(rest, `", line `)
	if !ok || file == "" {
		return frame{}, false
	}
	n := digits(rest)
	function, ok := strings.CutPrefix(rest[n:], ", in ")
	return frame{file, function}, ok && n > 0 && function != ""
}

// isMarkedCut tells whether the text ends with what agents append to a text that they have cut: "[... traceback truncated
// ...]", "…[truncated]".
func isMarkedCut(text string) bool {
	text = strings.TrimRight(text, " \r\n")
	open := strings.LastIndexByte(text, '[')
	return open >= 0 && strings.HasSuffix(text, "]") && strings.Contains(text[open:], "truncated")
}

// top returns the frames that tell the place, innermost first: the task's own code as long as there is any, for it is what
// stays the same when a library is upgraded, and else that of libraries. Where the end is missing, the outermost are taken:
// they do not depend on where the text was cut.
func (t *trace) top() []string {
	if len(t.frames) == 0 {
		return nil
	}
	own := make([]string, 0, maxFrames)
	libraries := make([]string, 0, maxFrames)
	for i := range t.frames {
		f := t.frames[i]
		if !t.cut {
			f = t.frames[len(t.frames)-1-i]
		}
		place, library := placeOf(f.file)
		switch {
		case !library:
			own = append(own, f.text(place))
		case len(own) == 0 && len(libraries) < maxFrames:
			libraries = append(libraries, f.text(place))
		}
		if len(own) == maxFrames {
			break
		}
	}
	top := own
	if len(own) == 0 {
		top = libraries
	}
	if t.cut {
		slices.Reverse(top)
	}
	return top
}

// text is a frame as groups show it.
func (f frame) text(place string) string {
	return clip(place, maxNameBytes) + " in " + clip(f.function, maxNameBytes)
}

// locals stands in the name of a class that a function made.
const locals = "<locals>"

// classOf returns the class at the start of an exception's text, "" when there is none: names joined by dots, alone, before a
// colon, or before a parenthesis as repr writes it.
func classOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line = strings.TrimRight(line, "\r")
	for at := 0; at <= maxNameBytes; {
		n := nameLen(line[at:])
		if n == 0 {
			return ""
		}
		at += n
		switch rest := line[at:]; {
		case at > maxNameBytes:
			return ""
		case rest == "", rest[0] == '(', rest == ":", strings.HasPrefix(rest, ": "), strings.HasPrefix(rest, ":\t"):
			return line[:at]
		case rest[0] != '.':
			return ""
		}
		at++
	}
	return ""
}

// nameLen is the length of the Python name that the text begins with, 0 without one.
func nameLen(s string) int {
	if strings.HasPrefix(s, locals) {
		return len(locals)
	}
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return i
		}
	}
	return len(s)
}
