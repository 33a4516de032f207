package frame_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid/validtest"
)

// heartbeat returns a frame with the heartbeat replaced by the text and the members added at the top.
func heartbeat(body string, more ...string) string {
	return `{"envelopeId":"` + validtest.UUID(1) + `","version":{"major":2},"sentAt":"2026-01-02T03:04:05Z","clientId":"` + validtest.Client +
		`","connectionGeneration":"5"` + strings.Join(more, "") + `,"heartbeat":` + body + `}`
}

func TestChecksInOrder(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name, in string
		check    int    // 0: accepted
		at       string // the text at the offset of the violation, empty for an offset not looked at
		ahead    bool   // the peer announced a higher minor
	}{
		{name: "valid", in: heartbeat(`{"sequence":"1"}`)},
		{name: "white space", in: " \t\r\n" + strings.NewReplacer(",", " ,\n ", ":{", "\t: { ").Replace(heartbeat(`{"sequence":1}`)) + "\n\n"},
		{name: "number for 64 bits", in: heartbeat(`{"sequence":1}`)},
		{name: "exponent for an integer", in: heartbeat(`{"sequence":1e0}`)},
		{name: "original spelling", in: strings.Replace(heartbeat(`{"sequence":"1","outbox_depth":2}`), "envelopeId", "envelope_id", 1)},
		{name: "null for unset", in: heartbeat(`{"sequence":"1","sentAt":null}`)},
		{name: "escaped key", in: heartbeat(`{"s\u0065quence":"1"}`)},

		{name: "empty", in: "", check: 3},
		{name: "array", in: "[" + heartbeat(`{"sequence":"1"}`) + "]", check: 3, at: "["},
		{name: "text", in: `"{}"`, check: 3, at: `"{}"`},
		{name: "second object", in: heartbeat(`{"sequence":"1"}`) + "{}", check: 3, at: "{}"},
		{name: "trailing comma", in: `{"a":1,}`, check: 3, at: "}"},
		{name: "comma first", in: `{,"a":1}`, check: 3, at: `,"a"`},
		{name: "no comma", in: `{"a":1 "b":2}`, check: 3, at: `"b"`},
		{name: "no colon", in: `{"a" 1}`, check: 3, at: "1}"},
		{name: "comma in an array's end", in: `{"a":[1,]}`, check: 3, at: "]}"},
		{name: "wrong bracket", in: `{"a":[1}}`, check: 3, at: "}}"},
		{name: "key without quotes", in: `{a:1}`, check: 3, at: "a:1"},
		{name: "single quotes", in: `{'a':1}`, check: 3, at: "'a'"},
		{name: "comment", in: `{/**/}`, check: 3, at: "/**/"},
		{name: "cut", in: `{"a":{"b":1}`, check: 3},
		{name: "cut in a string", in: `{"a":"b`, check: 3},
		{name: "cut in an escape", in: `{"a":"b\`, check: 3},
		{name: "cut after a key", in: `{"a"`, check: 3},
		{name: "cut after a colon", in: `{"a":`, check: 3},
		{name: "byte order mark", in: "\xef\xbb\xbf" + heartbeat(`{"sequence":"1"}`), check: 3},
		{name: "byte order mark after space", in: " \ufeff{}", check: 3, at: "\ufeff"},
		{name: "not UTF-8 in a string", in: "{\"a\":\"b\xff\"}", check: 3, at: "\xff"},
		{name: "not UTF-8 in a key", in: "{\"a\xc3\":1}", check: 3, at: "\xc3"},
		{name: "surrogate in UTF-8", in: "{\"a\":\"\xed\xa0\x80\"}", check: 3, at: "\xed"},
		{name: "overlong", in: "{\"a\":\"\xc0\x80\"}", check: 3, at: "\xc0"},
		{name: "control character", in: "{\"a\":\"b\nc\"}", check: 3, at: "\n"},
		{name: "control character in a long string", in: "{\"a\":\"bbbbbbbbbbbbbbbbbbbbbbb\x1fc\"}", check: 3, at: "\x1f"},
		{name: "NUL between tokens", in: "{\"a\":\x001}", check: 3, at: "\x00"},
		{name: "form feed as space", in: "{\f}", check: 3, at: "\f"},
		{name: "unknown escape", in: `{"a":"\x41"}`, check: 3, at: `\x`},
		{name: "short escape", in: `{"a":"\u12"}`, check: 3, at: `\u`},
		{name: "sign in an escape", in: `{"a":"\u+123"}`, check: 3, at: `\u`},
		{name: "high surrogate alone", in: `{"a":"\ud800"}`, check: 3, at: `\ud`},
		{name: "high surrogate before a character", in: `{"a":"\ud800x\udc00"}`, check: 3, at: `\ud800`},
		{name: "two high surrogates", in: `{"a":"\ud800\ud800"}`, check: 3, at: `\ud800`},
		{name: "low surrogate alone", in: `{"a":"\udc00"}`, check: 3, at: `\udc`},
		{name: "low surrogate in a key", in: `{"\udfff":1}`, check: 3, at: `\udf`},
		{name: "leading zero", in: `{"a":01}`, check: 3, at: "1}"},
		{name: "plus", in: `{"a":+1}`, check: 3, at: "+1"},
		{name: "no digits", in: `{"a":-}`, check: 3, at: "}"},
		{name: "no fraction", in: `{"a":1.}`, check: 3, at: "}"},
		{name: "no exponent", in: `{"a":1e+}`, check: 3, at: "}"},
		{name: "bare NaN", in: `{"a":NaN}`, check: 3, at: "NaN"},
		{name: "bare infinity", in: `{"a":-Infinity}`, check: 3, at: "Infinity"},
		{name: "half a literal", in: `{"a":nul}`, check: 3, at: "nul"},
		{name: "literal with a tail", in: `{"a":nullx}`, check: 3, at: "x}"},
		{name: "nested 32 deep", in: `{"a":` + deep(31) + `}`, check: 5},
		{name: "nested 33 deep", in: `{"a":` + deep(32) + `}`, check: 3, at: "[" + strings.Repeat("]", 32)},
		{name: "nested 33 deep in objects", in: strings.Repeat(`{"a":`, 33) + "1" + strings.Repeat("}", 33), check: 3},

		{name: "key twice at the top", in: heartbeat(`{"sequence":"1"}`, `,"clientId":"x"`), check: 4, at: `"clientId":"x"`},
		{name: "key twice below", in: heartbeat(`{"sequence":"1","sequence":"1"}`), check: 4, at: `"sequence":"1"}`},
		{name: "key twice after unescaping", in: heartbeat(`{"sequence":"1","sequ\u0065nce":"1"}`), check: 4, at: `"sequ\u`},
		{name: "key twice after a solidus", in: `{"a/b":1,"a\/b":2}`, check: 4, at: `"a\/b"`},
		{name: "key twice after a pair", in: `{"` + "\U0001F600" + `":1,"\ud83d\ude00":2}`, check: 4, at: `"\ud83d`},
		{name: "key twice in an unknown field", in: heartbeat(`{"sequence":"1"}`, `,"new":{"a":1,"a":2}`), check: 4, at: `"a":2`, ahead: true},
		{name: "key twice in an array", in: heartbeat(`{"sequence":"1"}`, `,"new":[[{"a":1,"a":2}]]`), check: 4, at: `"a":2`, ahead: true},
		{name: "empty key twice", in: `{"":1,"":2}`, check: 4, at: `"":2`},
		{name: "long key twice", in: `{"` + strings.Repeat("k", 40) + `":1,"` + strings.Repeat("k", 40) + `":2}`, check: 4},
		{name: "long escaped key twice", in: `{"` + strings.Repeat("\\u006b", 40) + `":1,"a":2,"` + strings.Repeat("k", 40) + `":3}`, check: 4, at: `"kkkk`},
		{name: "escaped keys", in: heartbeat(`{"sequence":"1"}`, `,"\"\\\/\b\f\n\r\t":1,"\b":2,"\u00e9":3,"\uD83D\uDE00":4`), ahead: true},
		{name: "every escape twice", in: `{"\"\\\/\b\f\n\r\t":1,"\u0022\u005C\u002f\u0008\u000C\u000a\u000D\u0009":2}`, check: 4},
		{name: "escaped among many", in: heartbeat(`{"sequence":"1"}`, `,"new":`+strings.Replace(manyKeys(500, -1), `{`, `{"\u006bey`+validtest.UUID(400)+`":0,`, 1)), check: 4, ahead: true},
		{name: "keys alike at both ends", in: heartbeat(`{"sequence":"1"}`, `,"aaaaaaaa1bbbbbbbb":1,"aaaaaaaa2bbbbbbbb":2`), ahead: true},
		{name: "same key in two objects", in: heartbeat(`{"sequence":"1"}`, `,"new":[{"a":1},{"a":{"a":2}}]`), ahead: true},
		{name: "key twice among many", in: heartbeat(`{"sequence":"1"}`, `,"new":`+manyKeys(500, 77)), check: 4, ahead: true},
		{name: "many keys", in: heartbeat(`{"sequence":"1"}`, `,"new":`+manyKeys(500, -1)), ahead: true},
		{name: "syntax goes before a key twice", in: `{"a":1,"a":2`, check: 3},

		{name: "unknown field", in: heartbeat(`{"sequence":"1"}`, `,"new":1`), check: 5, at: `"new"`},
		{name: "unknown field below", in: heartbeat(`{"sequence":"1","new":1}`), check: 5, at: `"new"`},
		{name: "unknown field, peer ahead", in: heartbeat(`{"sequence":"1","new":{"deep":[1]}}`, `,"new":1`), ahead: true},
		{name: "extension", in: heartbeat(`{"sequence":"1","[archive_control.v1.x]":1}`), check: 5, at: `"[arch`},
		{name: "text for a number", in: heartbeat(`{"sequence":"one"}`), check: 5, at: `"one"`},
		{name: "negative", in: heartbeat(`{"sequence":"-1"}`), check: 5, at: `"-1"`},
		{name: "too large", in: heartbeat(`{"sequence":"18446744073709551616"}`), check: 5, at: `"1844`},
		{name: "fraction", in: heartbeat(`{"sequence":1.5}`), check: 5, at: `1.5`},
		{name: "invalid timestamp", in: heartbeat(`{"sequence":"1","sentAt":"yesterday"}`), check: 5, at: `"yesterday"`},
		{name: "array for an object", in: heartbeat(`[]`), check: 5, at: `[]`},
		{name: "object for a text", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"`+validtest.Client+`"`, `{}`, 1), check: 5, at: `{},"conn`},
		{name: "position after other characters", in: heartbeat("{\"sequence\":\"é\U0001F600\",\n\"outboxDepth\":true}"), check: 5, at: "\"é"},
		{name: "unknown field, peer ahead, and a wrong value", in: heartbeat(`{"new":1,"sequence":true}`), check: 5, at: "true", ahead: true},

		{name: "both spellings", in: heartbeat(`{"sequence":"1","outboxDepth":1,"outbox_depth":1}`), check: 6, at: `"outbox_depth"`},
		{name: "both spellings, one null", in: heartbeat(`{"sequence":"1","outboxDepth":null,"outbox_depth":1}`), check: 6, at: `"outbox_depth"`},
		{name: "both spellings, escaped", in: heartbeat(`{"sequence":"1","outboxDepth":1,"outbox\u005fdepth":1}`), check: 6, at: `"outbox\u`},
		{name: "both spellings of a payload", in: heartbeat(`{"sequence":"1"}`, `,"job_event":null,"jobEvent":null`), check: 6, at: `"jobEvent"`},
		{name: "both spellings, peer ahead", in: heartbeat(`{"sequence":"1","new":1,"outboxDepth":1,"outbox_depth":1}`), check: 6, ahead: true},

		{name: "no payload", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"heartbeat":{"sequence":"1"}`, `"correlationId":""`, 1), check: 7},
		{name: "null payload", in: heartbeat(`null`), check: 7},
		{name: "second payload", in: heartbeat(`{"sequence":"1"}`, `,"jobEvent":{}`), check: 7, at: `"heartbeat"`},
		{name: "second payload null", in: heartbeat(`{"sequence":"1"}`, `,"protocolError":null`), check: 7, at: `"heartbeat"`},
		{name: "unknown payload alone", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"heartbeat"`, `"newPayload"`, 1), check: 5, at: `"newPayload"`},
		{name: "unknown payload alone, peer ahead", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"heartbeat"`, `"newPayload"`, 1), check: 7, ahead: true},

		{name: "message rule", in: heartbeat(`{"sequence":"0"}`), check: 8},
		{name: "envelope rule", in: strings.Replace(heartbeat(`{"sequence":"1"}`), validtest.UUID(1), strings.ToUpper(validtest.UUID(1)), 1), check: 8},
		{name: "no time", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"sentAt":"2026-01-02T03:04:05Z",`, "", 1), check: 8},
		{name: "time out of range", in: heartbeat(`{"sequence":"1","sentAt":"1999-12-31T23:59:59Z"}`), check: 8},
		{name: "another client", in: strings.Replace(heartbeat(`{"sequence":"1"}`), validtest.Client, validtest.Target, 1), check: 8},
		{name: "other direction", in: strings.Replace(heartbeat(`{"sequence":"1"}`), `"heartbeat"`, `"heartbeatAck"`, 1), check: 8, at: `"heartbeatAck"`},
	} {
		o := frame.Options{From: frame.FromClient, Registered: true, Client: validtest.Client}
		if c.ahead {
			o.PeerMinor = 1
			c.in = strings.Replace(c.in, `"major":2`, `"major":2,"minor":1`, 1)
		}
		_, v := frame.Decode([]byte(c.in), o)
		switch {
		case c.check == 0 && v != nil:
			t.Errorf("%s: %v", c.name, v)
		case c.check == 0:
		case v == nil:
			t.Errorf("%s: accepted, want check %d", c.name, c.check)
		case v.Check != c.check:
			t.Errorf("%s: %v, want check %d", c.name, v, c.check)
		case v.Code != pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION:
			t.Errorf("%s: code %v", c.name, v.Code)
		case c.at != "" && (v.Offset < 0 || !strings.HasPrefix(c.in[v.Offset:], c.at)):
			t.Errorf("%s: offset %d in %q, want that of %q", c.name, v.Offset, c.in, c.at)
		}
	}
}

// manyKeys returns an object with n keys, and one of them twice unless twice is below zero.
func manyKeys(n, twice int) string {
	m := make([]string, 0, n+1)
	for i := range n {
		m = append(m, `"key`+validtest.UUID(i)+`":`+`1`)
	}
	if twice >= 0 {
		m = append(m, m[twice])
	}
	return "{" + strings.Join(m, ",") + "}"
}

func TestVersionGoesFirst(t *testing.T) {
	for _, major := range []string{"1", "3", `"3"`, "4294967295"} {
		in := strings.Replace(heartbeat(`{"sequence":"1"}`, `,"new":1`), `"major":2`, `"major":`+major, 1)
		_, v := frame.Decode([]byte(in), frame.Options{From: frame.FromClient})
		if v == nil || v.Code != pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH || v.EnvelopeID != validtest.UUID(1) || v.ClientID != validtest.Client {
			t.Errorf("major %s: %v", major, v)
		}
	}
	missing := strings.Replace(heartbeat(`{"sequence":"1"}`), `"major":2`, ``, 1)
	if _, v := frame.Decode([]byte(missing), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.Code != pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH || v.EnvelopeID != validtest.UUID(1) {
		t.Errorf("no major: %v", v)
	}
	odd := strings.Replace(strings.Replace(heartbeat(`{"sequence":"1"}`, `,"new":1`), validtest.UUID(1), `\u0041`, 1), validtest.Client, strings.ToUpper(validtest.Client), 1)
	if _, v := frame.Decode([]byte(odd), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.EnvelopeID != "" || v.ClientID != "" {
		t.Errorf("IDs that are none: %+v", v)
	}
	minor := strings.Replace(heartbeat(`{"sequence":"1"}`), `"major":2`, `"major":2,"minor":1`, 1)
	if _, v := frame.Decode([]byte(minor), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.Check != 8 {
		t.Errorf("another minor than the registered one: %v", v)
	}
}

func TestDirectionsAndRegistration(t *testing.T) {
	for name, e := range validtest.Envelopes() {
		right := options(e)
		both := e.GetProtocolError() != nil
		for _, from := range []frame.Side{frame.FromClient, frame.FromControl} {
			for _, registered := range []bool{false, true} {
				o := frame.Options{From: from, Registered: registered}
				want := registered == right.Registered && (from == right.From || both)
				if _, v := frame.Decode(marshal(t, e), o); (v == nil) != want {
					t.Errorf("%s from %d, registered %v: %v", name, from, registered, v)
				} else if v != nil && v.Check != 8 {
					t.Errorf("%s from %d, registered %v: %v", name, from, registered, v)
				}
			}
		}
	}
}

func TestCommandsThatAreNotReadableAreRefused(t *testing.T) {
	e := validtest.Envelopes()["command_01"] // cancel_job
	valid := string(marshal(t, e))
	const enum = `"CLEANUP_POLICY_KEEP_ALL"`
	if !strings.Contains(valid, enum) {
		t.Fatal(valid)
	}
	for _, c := range []struct {
		name    string
		in      string
		ahead   bool
		check   int
		code    pb.ErrorCode
		partial bool
	}{
		{name: "unknown key", in: strings.Replace(valid, `"commandId"`, `"new":1,"commandId"`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown key below", in: strings.Replace(valid, `"cleanup"`, `"new":{"x":[]},"cleanup"`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown key, peer ahead", in: strings.Replace(valid, `"cleanup"`, `"new":{},"cleanup"`, 1), ahead: true},
		{name: "unknown operation", in: strings.Replace(valid, `"cancelJob"`, `"newOperation"`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown operation, peer ahead", in: strings.Replace(valid, `"cancelJob"`, `"newOperation"`, 1), ahead: true, code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown enum name", in: strings.Replace(valid, enum, `"CLEANUP_POLICY_NEW"`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown enum name, peer ahead", in: strings.Replace(valid, enum, `"CLEANUP_POLICY_NEW"`, 1), ahead: true, code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, partial: true},
		{name: "unknown enum number", in: strings.Replace(valid, enum, `77`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED},
		{name: "known enum number", in: strings.Replace(valid, enum, `2`, 1)},
		{name: "unset enum", in: strings.Replace(valid, enum, `"CLEANUP_POLICY_UNSPECIFIED"`, 1), code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED},
		{name: "value outside its rules", in: strings.Replace(valid, "by request", strings.Repeat("x", 513), 1), code: pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		{name: "another client's", in: strings.Replace(valid, `"clientId":"`+validtest.Client+`","issued`, `"clientId":"`+validtest.Target+`","issued`, 1)},

		{name: "unknown key in the command and outside", in: strings.Replace(strings.Replace(valid, `"cleanup"`, `"new":{},"cleanup"`, 1), `"command"`, `"new":1,"command"`, 1), check: 5},
		{name: "unknown key and a wrong value", in: strings.Replace(valid, enum, `[],"new":1`, 1), check: 5},
		{name: "unknown key and both spellings", in: strings.Replace(valid, `"commandId"`, `"new":1,"command_id":"","commandId"`, 1), check: 6},
		{name: "unknown enum name beside", in: strings.Replace(valid, `"command"`, `"protocolError":{"error":{"code":"NEW"}},"x"`, 1), check: 5},
		{name: "no command ID", in: strings.Replace(valid, `"commandId":"`+validtest.UUID(1), `"commandId":"`, 1), check: 8},
		{name: "no command ID and an unknown key", in: strings.Replace(valid, `"commandId":"`+validtest.UUID(1)+`"`, `"new":""`, 1), check: 8},
	} {
		in := []byte(compact(t, c.in))
		o := frame.Options{From: frame.FromControl, Registered: true, Client: validtest.Client}
		if c.ahead {
			o.PeerMinor = 1
			in = bytes.Replace(in, []byte(`"major":2`), []byte(`"major":2,"minor":1`), 1)
		}
		got, v := frame.Decode(in, o)
		switch {
		case (v != nil) != (c.check != 0):
			t.Errorf("%s: %v, want check %d", c.name, v, c.check)
		case v != nil:
			if v.Check != c.check {
				t.Errorf("%s: %v, want check %d", c.name, v, c.check)
			}
		case got.Refusal.GetCode() != c.code || got.Partial != c.partial:
			t.Errorf("%s: refusal %v, partial %v", c.name, got.Refusal, got.Partial)
		case got.Envelope.GetCommand().GetCommandId() != validtest.UUID(1):
			t.Errorf("%s: no command", c.name)
		}
	}
}

// compact drops the white space that the encoder adds at will, so that replacements find their text.
func compact(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(s)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestUnknownEnumNamesOutsideCommandsAreViolations(t *testing.T) {
	e := validtest.Envelopes()["route_update"]
	in := strings.Replace(compact(t, string(marshal(t, e))), `"ROUTE_STATE_READY"`, `"ROUTE_STATE_NEW"`, 1)
	for _, ahead := range []uint32{0, 1} {
		text := strings.Replace(in, `"major":2`, `"major":2,"minor":`+string(rune('0'+ahead)), 1)
		_, v := frame.Decode([]byte(text), frame.Options{From: frame.FromClient, Registered: true, PeerMinor: ahead})
		if v == nil || v.Check != 5 || !strings.HasPrefix(text[v.Offset:], `"ROUTE_STATE_NEW"`) {
			t.Errorf("peer's minor %d: %v", ahead, v)
		}
	}
	number := strings.Replace(in, `"ROUTE_STATE_NEW"`, `31`, 1)
	if _, v := frame.Decode([]byte(number), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.Check != 8 {
		t.Errorf("unknown number: %v", v)
	}
}

func TestNonFiniteFractions(t *testing.T) {
	in := compact(t, string(marshal(t, validtest.Envelopes()["job_event_20"])))
	for _, text := range []string{`"NaN"`, `"Infinity"`, `"-Infinity"`} {
		bad := strings.Replace(in, `"fractionComplete":0.5`, `"fractionComplete":`+text, 1)
		if bad == in {
			t.Fatal(in)
		}
		if _, v := frame.Decode([]byte(bad), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.Check != 8 || strings.Contains(v.Reason, "NaN") {
			t.Errorf("%s: %v", text, v)
		}
	}
	if _, v := frame.Decode([]byte(strings.Replace(in, `"fractionComplete":0.5`, `"fractionComplete":1e999`, 1)), frame.Options{From: frame.FromClient, Registered: true}); v == nil || v.Check != 5 {
		t.Errorf("1e999: %v", v)
	}
}

// TestCountsGoBeforeMessages counts what a frame would make the parser build.
func TestCountsGoBeforeMessages(t *testing.T) {
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`{"index":1},`, n), ",") + "]" }
	wrap := func(payload string) string {
		return strings.Replace(heartbeat(`{}`), `"heartbeat":{}`, payload, 1)
	}
	for _, c := range []struct {
		name, in string
		check    int
	}{
		{"as many entries as the limit", wrap(`"inventoryChunk":{"contentTree":{"files":` + list(50) + `}}`), 8},
		{"one entry more", wrap(`"inventoryChunk":{"contentTree":{"files":` + list(51) + `}}`), 4},
		{"original spellings", wrap(`"inventory_chunk":{"content_tree":{"files":` + list(51) + `}}`), 4},
		{"escaped", wrap(`"inventory\u0043hunk":{"c\u006fntentTree":{"f\u0069les":` + list(51) + `}}`), 4},
		{"in the header", wrap(`"inventoryChunk":{"contentTree":{"header":{"files":` + list(30) + `},"files":` + list(30) + `}}`), 4},
		{"over two lists", wrap(`"inventoryChunk":{"jobs":{"entries":` + list(30) + `},"routes":{"entries":` + list(30) + `}}`), 4},
		{"resources", wrap(`"inventoryChunk":{"resources":{"entries":` + list(51) + `}}`), 4},
		{"storage", wrap(`"inventoryChunk":{"storage":{"entries":` + list(51) + `}}`), 4},
		{"records of a snapshot", wrap(`"jobSnapshot":{"events":` + list(100) + `}`), 4},
		{"elements of any list", wrap(`"commandAck":{"x":[` + strings.TrimSuffix(strings.Repeat("{},", 1000), ",") + `]}`), 4},
		{"cursors", wrap(`"registerRequest":{"activeJobs":` + list(17) + `}`), 4},
	} {
		o := frame.Options{From: frame.FromClient, Registered: true, MaxChunkEntries: 50, MaxCursors: 16}
		if c.name == "cursors" {
			o.Registered = false
		}
		if _, v := frame.Decode([]byte(c.in), o); c.check == 8 {
			if v == nil || v.Check == 4 {
				t.Errorf("%s: %v", c.name, v)
			}
		} else if v == nil || v.Check != c.check {
			t.Errorf("%s: %v, want check %d", c.name, v, c.check)
		}
	}
}

// TestViolationsQuoteNothing puts a secret into every place of a registration that a parser or rule may complain about.
func TestViolationsQuoteNothing(t *testing.T) {
	const secret = "s3cr3t-NaN-Infinity"
	e := validtest.Envelopes()["register_request"]
	base := compact(t, string(marshal(t, e)))
	tried := 0
	for i := range base {
		if base[i] != '"' && base[i] != ':' && base[i] != ',' && base[i] != '{' {
			continue
		}
		for _, text := range []string{secret, `"` + secret + `"`, `"` + secret + `":`, `"` + secret + `":1,`} {
			in := base[:i+1] + text + base[i+1:]
			_, v := frame.Decode([]byte(in), frame.Options{From: frame.FromClient})
			if v == nil {
				continue // inside a string with room for it
			}
			tried++
			if strings.Contains(v.Error(), secret) || strings.Contains(v.Error(), validtest.Token) || strings.Contains(v.EnvelopeID, secret) {
				t.Fatalf("%q: %v", in, v)
			}
		}
	}
	if tried < 500 {
		t.Errorf("only %d violations", tried)
	}
}
