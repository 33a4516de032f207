//go:build interop

package wire

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"signalbox/appliance/rawjson"
)

// TestInteropCanonicalAgreesWithPython compares what we accept, and the canonical bytes, with Python's json module, which is
// what agents sign with. SIGNALBOX_FUZZ_CASES sets the number of texts, SIGNALBOX_FUZZ_SEED repeats a run.
func TestInteropCanonicalAgreesWithPython(t *testing.T) {
	cases := envInt(t, "SIGNALBOX_FUZZ_CASES", 20000)
	seed := uint64(envInt(t, "SIGNALBOX_FUZZ_SEED", int(rand.Uint32())))
	t.Logf("seed %d", seed)
	py := startPython(t)
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	accepted := 0
	for i := range cases {
		text := g.text()
		want, ok := py.canonical(t, text)
		got, err := rawjson.Canonical(text)
		switch {
		case (err == nil) != ok:
			t.Fatalf("case %d: %q: we say %v, Python accepts: %v", i, text, err, ok)
		case ok && !bytes.Equal(got, want):
			t.Fatalf("case %d: %q\n   ours %q\nPython %q", i, text, got, want)
		case ok:
			accepted++
		}
	}
	t.Logf("%d texts, %d accepted by both, %d refused by both", cases, accepted, cases-accepted)
	if accepted == 0 || accepted == cases {
		t.Error("the generator no longer makes both valid and invalid texts")
	}
}

func envInt(t *testing.T, name string, fallback int) int {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

type python struct {
	in  io.Writer
	out *bufio.Reader
}

func startPython(t *testing.T) *python {
	t.Helper()
	cmd := exec.Command("python3", "testdata/canonical.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("python3: %v", err)
		}
	})
	return &python{in: in, out: bufio.NewReader(out)}
}

func (p *python) canonical(t *testing.T, text []byte) ([]byte, bool) {
	t.Helper()
	if _, err := fmt.Fprintf(p.in, "%x\n", text); err != nil {
		t.Fatal(err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	body, ok := strings.CutPrefix(strings.TrimSpace(line), "ok ")
	if !ok {
		return nil, false
	}
	b, err := hex.DecodeString(body)
	if err != nil {
		t.Fatal(err)
	}
	return b, true
}

// generator makes JSON texts that lean towards what is easy to get wrong, about a third of them damaged.
type generator struct{ *rand.Rand }

func (g generator) text() []byte {
	b := g.value(g.space(nil), 0)
	b = g.space(b)
	if g.IntN(3) == 0 {
		b = g.damage(b)
	}
	return b
}

func (g generator) damage(b []byte) []byte {
	const alphabet = "{}[],:\"\\/ \t\n\r\v\x00\x1f\x7f0123456789+-.eEuUnNtrfaIity\xff\xc0\xed\xa0\x80\xef\xbb\xbf'"
	for range 1 + g.IntN(3) {
		at := g.IntN(len(b) + 1)
		switch c := alphabet[g.IntN(len(alphabet))]; g.IntN(4) {
		case 0:
			b = append(b[:at:at], append([]byte{c}, b[at:]...)...)
		case 1:
			if at < len(b) {
				b[at] = c
			}
		case 2:
			if at < len(b) {
				b = append(b[:at:at], b[at+1:]...)
			}
		default:
			b = b[:at:at]
		}
	}
	return b
}

func (g generator) space(b []byte) []byte {
	for g.IntN(6) == 0 {
		b = append(b, " \t\n\r"[g.IntN(4)])
	}
	return b
}

func (g generator) value(b []byte, depth int) []byte {
	kinds := 10
	if depth > 4 {
		kinds = 7
	}
	switch g.IntN(kinds) {
	case 0:
		if g.IntN(50) == 0 {
			return append(b, []string{"NaN", "-Infinity", "Infinity", "True", "nul"}[g.IntN(5)]...)
		}
		return append(b, []string{"null", "true", "false"}[g.IntN(3)]...)
	case 1, 2:
		return g.integer(b)
	case 3, 4:
		return g.float(b)
	case 5, 6:
		return g.str(b)
	case 7:
		b = append(b, '[')
		for i := range g.IntN(5) {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.space(g.value(g.space(b), depth+1))
		}
		return append(b, ']')
	default:
		b = append(b, '{')
		for i := range g.IntN(7) {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.space(g.str(g.space(b)))
			b = g.space(g.value(g.space(append(b, ':')), depth+1))
		}
		return append(b, '}')
	}
}

func (g generator) digits(b []byte, n int) []byte {
	for range n {
		b = append(b, byte('0'+g.IntN(10)))
	}
	return b
}

func (g generator) integer(b []byte) []byte {
	if g.IntN(3) == 0 {
		b = append(b, '-')
	}
	switch g.IntN(8) {
	case 0:
		return append(b, '0')
	case 1:
		return g.digits(append(b, byte('1'+g.IntN(9))), 15+g.IntN(20))
	case 2:
		if g.IntN(20) == 0 { // around the limit of 4300 digits
			return g.digits(append(b, '9'), 4297+g.IntN(5))
		}
	}
	return g.digits(append(b, byte('1'+g.IntN(9))), g.IntN(6))
}

func (g generator) float(b []byte) []byte {
	switch g.IntN(6) {
	case 0: // any double at all, in Go's spelling
		f := math.Float64frombits(g.Uint64())
		if math.IsNaN(f) || math.IsInf(f, 0) {
			f = 0.5
		}
		return strconv.AppendFloat(b, f, "eg"[g.IntN(2)], -1, 64)
	case 1: // around the points where the spelling changes
		f := math.Pow(10, float64([]int{-5, -4, 15, 16, 17, -324, -308, 308}[g.IntN(8)]))
		for range g.IntN(3) {
			f = math.Nextafter(f, float64(g.IntN(2)))
		}
		return strconv.AppendFloat(b, f, 'e', 16+g.IntN(20), 64)
	case 2: // exactly between two doubles
		m := g.Uint64()>>11<<1 | 1
		return append(strconv.AppendUint(b, m, 10), ".0"...)
	case 3: // many digits and an exponent that balances them
		n := g.IntN(1200)
		b = g.digits(append(b, byte('1'+g.IntN(9))), n)
		b = append(b, 'e', '-')
		if g.IntN(2) == 0 {
			b = append(b, "0000"...)
		}
		return strconv.AppendInt(b, int64(n+g.IntN(10)), 10)
	}
	b = g.integer(b)
	if g.IntN(2) == 0 {
		b = g.digits(append(b, '.'), 1+g.IntN(20))
	}
	if g.IntN(2) == 0 {
		b = append(append(b, "eE"[g.IntN(2)]), []string{"", "+", "-", "+0", "-00"}[g.IntN(5)]...)
		b = g.digits(b, 1+g.IntN(3))
	}
	return b
}

// str draws from a small stock of pieces, so that keys often repeat in different spellings.
func (g generator) str(b []byte) []byte {
	pieces := []string{"a", "b", "A", `\u0061`, `\u0041`, "é", `\u00e9`, `\u00E9`, "😀", `\ud83d\ude00`, `\uD83D\uDE00`, "ﬁ", `\ufb01`,
		"/", `\/`, `\"`, `\\`, `\b`, `\t`, `\n`, `\f`, `\r`, `\u0000`, `\u000a`, `\u001F`, `\u001f`, "\x7f", "\u2028", "<&>", "long common prefix",
		`\uffff`, "\U0010ffff", " ", "0"}
	bad := []string{`\ud800`, `\udc00`, `\ud83dx`, `\x41`, `\u12`, "\n", "\x01", `\ud83d\ud83d\ude00`}
	b = append(b, '"')
	for range g.IntN(4) {
		if g.IntN(200) == 0 {
			b = append(b, bad[g.IntN(len(bad))]...)
			continue
		}
		b = append(b, pieces[g.IntN(len(pieces))]...)
	}
	return append(b, '"')
}
