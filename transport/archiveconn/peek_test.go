package archiveconn

import (
	"strings"
	"testing"

	"signalbox/appliance/archive/valid"
)

const (
	peekEnvelope = "0190a5b4-0000-7000-8000-000000000001"
	peekClient   = "0190a5b4-0000-7000-8000-000000000002"
)

func TestPeek(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{
		`{"envelopeId":"` + peekEnvelope + `","clientId":"` + peekClient + `"}`:                                          true,
		`{"x":[{"token":1}],"client_id":"` + peekClient + `","envelope_id":"` + peekEnvelope + `"}`:                      true,
		`{"EnvelopeId":"` + peekEnvelope + `","clientId":"` + peekClient + `"}`:                                          false,
		`{"envelopeId":"` + peekEnvelope + `","clientId":7}`:                                                             false,
		`{"envelopeId":"` + peekEnvelope + `"}`:                                                                          false,
		`{"envelopeId":"` + strings.ToUpper(peekEnvelope[:8]) + peekEnvelope[8:] + `a","clientId":"` + peekClient + `"}`: false,
		`[]`: false, `null`: false, ``: false, `{`: false,
	} {
		got := peek([]byte(in))
		if want := (peeked{peekEnvelope, peekClient}); ok && got != want || !ok && got != (peeked{}) {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

// FuzzPeek: whatever comes, the two ids are valid or none is given.
func FuzzPeek(f *testing.F) {
	f.Add([]byte(`{"envelopeId":"` + peekEnvelope + `","clientId":"` + peekClient + `"}`))
	f.Add([]byte(`{"envelope_id":null,"clientId":{}}`))
	f.Add([]byte("\xff{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := peek(data)
		if p != (peeked{}) && (!valid.IsUUID(p.envelope) || !valid.IsUUID(p.client)) {
			t.Errorf("%+v", p)
		}
	})
}
