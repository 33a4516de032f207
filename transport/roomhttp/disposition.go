package roomhttp

import (
	"mime"
	"strings"
)

// disposition is the Content-Disposition of a file (H.8, RFC 6266): a quoted name of plain characters that every client
// reads, and the exact one beside it in the form of RFC 8187 when that differs.
func disposition(kind, filename string) string {
	plain := make([]byte, 0, len(filename))
	exact := true
	for _, r := range filename {
		if r < 0x20 || r > 0x7e || r == '"' || r == '\\' || r == '%' {
			plain = append(plain, '_')
			exact = false
			continue
		}
		plain = append(plain, byte(r))
	}
	out := kind + `; filename="` + string(plain) + `"`
	if !exact {
		out += "; filename*=UTF-8''" + extended(filename)
	}
	return out
}

// extended is the value form of RFC 8187.
func extended(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

// dispositionKind is attachment for types that a browser would run or that can hold a program; they keep their type, so
// that agents see it, and are saved rather than shown. Everything else is inline, as H.8 has it.
func dispositionKind(mimetype string) string {
	base, _, err := mime.ParseMediaType(mimetype)
	if err != nil {
		return "attachment"
	}
	for _, mark := range []string{"html", "xml", "svg", "script", "x-shockwave-flash", "x-java", "mhtml",
		"multipart/", "wasm", "css"} {
		if strings.Contains(base, mark) {
			return "attachment"
		}
	}
	return "inline"
}
