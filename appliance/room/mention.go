package room

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// EveryoneName is the mention of the whole room: it addresses no agent (D.8) and no new agent may be called so (A.3).
const EveryoneName = "everyone"

// Mentioned is a body made ready to be asked about many names (D.8). The zero value mentions nobody.
//
// A name of name characters ends where they end, so that its mentions are exactly the runs of name characters after
// each @: those are looked up, and however many @ a body has, a name costs the same. Only a role can have other
// characters; for such a name the text is searched.
type Mentioned struct {
	raw, bare text // as written, and without emphasis marks
}

type text struct {
	body string
	runs map[string]struct{} // in lower case
}

var emphasis = strings.NewReplacer("*", "", "~", "")

// ReadMentions finds the places of a body where somebody may be mentioned.
func ReadMentions(body string) Mentioned {
	if strings.IndexByte(body, '@') < 0 {
		return Mentioned{}
	}
	m := Mentioned{raw: readText(body)}
	m.bare = m.raw
	if strings.ContainsAny(body, "*~") {
		m.bare = readText(emphasis.Replace(body))
	}
	return m
}

func readText(body string) text {
	t := text{body: body, runs: map[string]struct{}{}}
	for rest := range ats(body) {
		if n := nameRun(rest); n > 0 {
			t.runs[strings.ToLower(rest[:n])] = struct{}{}
		}
	}
	return t
}

// ats ranges over what follows each @.
func ats(body string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for {
			i := strings.IndexByte(body, '@')
			if i < 0 {
				return
			}
			body = body[i+1:]
			if !yield(body) {
				return
			}
		}
	}
}

// Nobody tells whether no name can be mentioned.
func (m Mentioned) Nobody() bool { return m.raw.body == "" }

// Name tells whether an agent's or a role's name is mentioned; the marks * and ~ in the body do not count. Whatever is
// called everyone is not mentioned by that.
func (m Mentioned) Name(name string) bool { return m.bare.mentions(name) }

// Alias tells whether an alias is mentioned; it is sought in the body as written.
func (m Mentioned) Alias(alias string) bool { return m.raw.mentions(alias) }

// Mentions tells whether the body mentions the name (D.8). To ask one body about many names use ReadMentions.
func Mentions(body, name string) bool { return ReadMentions(body).Name(name) }

func (t text) mentions(name string) bool {
	if name == "" || t.body == "" || strings.EqualFold(name, EveryoneName) {
		return false
	}
	if nameRun(name) == len(name) {
		_, ok := t.runs[strings.ToLower(name)]
		return ok
	}
	for rest := range ats(t.body) {
		if startsWithName(rest, name) {
			return true
		}
	}
	return false
}

// startsWithName tells whether the text starts with the name, in whatever case, and the name ends there.
func startsWithName(text, name string) bool {
	if name == "" {
		return false
	}
	for _, want := range name {
		got, size := utf8.DecodeRuneInString(text)
		if size == 0 || fold(got) != fold(want) {
			return false
		}
		text = text[size:]
	}
	return text == "" || !isNameByte(text[0])
}

// fold maps a letter to its lower case, but nothing outside ASCII into it: a Kelvin sign is no k.
func fold(r rune) rune {
	if l := unicode.ToLower(r); r < utf8.RuneSelf || l >= utf8.RuneSelf {
		return l
	}
	return r
}

// nameRun is the length of the run of name characters that the text starts with.
func nameRun(s string) int {
	n := 0
	for n < len(s) && isNameByte(s[n]) {
		n++
	}
	return n
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
