package agent

import (
	"strings"
	"testing"

	"signalbox/appliance/rawjson"
)

func TestRedactKeys(t *testing.T) {
	r := newTestRedactor(t, "internal_.*", "^iban$")
	for key, want := range map[string]bool{
		"password": true, "PASSWORD": true, "db_password": true, "dbPassword": true, "passwd": true, "pass": true,
		"api_key": true, "api-key": true, "apiKey": true, "X-API-Key": true, "secret": true, "client_secret": true,
		"token": true, "accessToken": true, "authorization": true, "auth": true, "x-auth": true, "Cookie": true,
		"credentials": true, "private key": true, "ssn": true, "internal_note": true, "IBAN": true,
		"author": false, "authority": false, "className": false, "passenger": false, "bypass": false, "task_name": false,
		"queue": false, "worker": false, "args": false, "kwargs": false, "result": false, "exception": false,
		"traceback": false, "runtime_ms": false, "retry_count": false, "priority": false, "parent_task_id": false,
		"key": false, "compassion": false, "ibans": false, "": false,
	} {
		for range 2 { // the second time from the cache
			if got := r.Secret([]byte(key)); got != want {
				t.Errorf("%q: %v, want %v", key, got, want)
			}
		}
	}
	if !r.Secret([]byte(strings.Repeat("a", 200) + "_password")) {
		t.Error("a long key escapes")
	}
}

func TestRedactKeepsOtherBytes(t *testing.T) {
	r := newTestRedactor(t)
	for in, want := range map[string]string{
		`{"a": 1.50, "kwargs": {"password" : "x", "n":[{"token":{"deep":[1]}}, 2]}}`: `{"a": 1.50, "kwargs": {"password" : "[REDACTED]", "n":[{"token":"[REDACTED]"}, 2]}}`,
		`{"\u0070assword":null}`: `{"\u0070assword":"[REDACTED]"}`,
		`{"a": [1 , 2]}`:         `{"a": [1 , 2]}`,
	} {
		doc, err := rawjson.Parse([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Text(doc.Root()); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestRedactorReportsEveryBadPattern(t *testing.T) {
	_, err := NewRedactor([]string{"ok", "(", "["})
	if err == nil || !strings.Contains(err.Error(), "pattern 2") || !strings.Contains(err.Error(), "pattern 3") {
		t.Errorf("got %v", err)
	}
}

// FuzzRedact: nothing below a secret key survives, the result stays valid, and redacting twice changes nothing.
func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"password":"leak","b":[{"api_key":["leak"]}],"c":"leak"}`))
	f.Add([]byte(`{"\u0074oken":{"x":1},"token":2}`))
	r := newTestRedactor(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := rawjson.Parse(b)
		if err != nil {
			return
		}
		out, err := rawjson.Parse([]byte(r.Text(doc.Root())))
		if err != nil {
			t.Fatalf("redacted form is malformed: %v", err)
		}
		var check func(v rawjson.Value)
		check = func(v rawjson.Value) {
			for key, m := range v.EachRawMember() {
				if r.Secret(key) && string(m.Raw()) != RedactedMask {
					t.Errorf("%s survives under %q", m.Raw(), key)
				}
				check(m)
			}
			for _, m := range v.Each() {
				check(m)
			}
		}
		check(out.Root())
	})
}
