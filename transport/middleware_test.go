package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"signalbox/appliance/fault"
)

// exchange serves one request and decodes the answer.
func exchange(t *testing.T, h http.Handler, r *http.Request) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	body := map[string]any{}
	if rec.Body.Len() > 0 && rec.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			t.Fatalf("body %q: %v", rec.Body, err)
		}
	}
	return rec, body
}

func get(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }

func testMetrics(t *testing.T) *Metrics {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// failing answers every request with err, under a request id of "rid".
func failing(err error) http.Handler {
	return RequestIDs(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { WriteError(w, r, err) }))
}

func TestErrorBodies(t *testing.T) {
	limited := fault.New(fault.RateLimited, "too many requests; retry in 7 seconds (agent-connect)")
	limited.Retry = 7 * time.Second
	for _, tc := range []struct {
		name   string
		err    error
		status int
		retry  string
		body   string
	}{
		{"plain error", errors.New("dial 10.0.0.1: secret"), 500, "",
			`{"error":"internal_error","message":"internal error","request_id":"rid","details":{},"detail":"internal error"}`},
		{"cause stays inside", fault.Wrap(fault.Conflict, errors.New("secret"), "slug taken"), 409, "",
			`{"error":"conflict","message":"slug taken","request_id":"rid","details":{},"detail":"slug taken"}`},
		{"agent token", fault.New(fault.Unauthenticated, "invalid agent token"), 401, "",
			`{"error":"unauthenticated","message":"invalid agent token","request_id":"rid","details":{},"detail":"invalid agent token"}`},
		{"address", fault.New(fault.IPDenied, "source address is not allowed for this surface").With("surface", "agent"), 403, "",
			`{"error":"ip_denied","message":"source address is not allowed for this surface","request_id":"rid",` +
				`"details":{"surface":"agent"},"detail":"source address is not allowed for this surface"}`},
		{"rate", limited, 429, "7",
			`{"error":"rate_limited","message":"too many requests; retry in 7 seconds (agent-connect)","request_id":"rid",` +
				`"details":{},"detail":"too many requests; retry in 7 seconds (agent-connect)"}`},
		{"retry rounds up", &fault.Error{Code: fault.Unavailable, Msg: "full", Retry: 1}, 503, "1",
			`{"error":"unavailable","message":"full","request_id":"rid","details":{},"detail":"full"}`},
		{"too large has no id", bodyError(reasonStreamed), 413, "",
			`{"error":"payload_too_large","message":"the request body is too large or its length is not valid",` +
				`"request_id":null,"details":{"reason":"streamed_body_exceeded"},` +
				`"detail":"the request body is too large or its length is not valid"}`},
		{"field", fault.Field("limit", "must be 1 to 5000, got 0"), 422, "",
			`{"error":"validation_error","message":"limit: must be 1 to 5000, got 0","request_id":"rid",` +
				`"details":{"field":"limit"},"detail":[{"type":"value_error","loc":["body","limit"],` +
				`"msg":"limit: must be 1 to 5000, got 0","input":null}]}`},
		{"validation items", Validation(ValidationItem{Type: "string_type", Loc: []any{"body", "frames", 3},
			Msg: "must be a string", Input: 7}), 422, "",
			`{"error":"validation_error","message":"must be a string","request_id":"rid","details":{},` +
				`"detail":[{"type":"string_type","loc":["body","frames",3],"msg":"must be a string","input":7}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := get("/")
			r.Header.Set(HeaderRequestID, "rid")
			rec, _ := exchange(t, failing(tc.err), r)
			if rec.Code != tc.status || rec.Header().Get("Retry-After") != tc.retry {
				t.Fatalf("status %d, Retry-After %q", rec.Code, rec.Header().Get("Retry-After"))
			}
			if got := strings.TrimSpace(rec.Body.String()); got != tc.body {
				t.Fatalf("body\n%s\nwant\n%s", got, tc.body)
			}
		})
	}
}

func TestErrorWithDetailThatIsNoJSON(t *testing.T) {
	rec, body := exchange(t, failing(fault.New(fault.Conflict, "taken").With("f", func() {})), get("/"))
	if rec.Code != 409 || body["message"] != "taken" {
		t.Fatalf("%d %v", rec.Code, body)
	}
}

func TestRequestIDs(t *testing.T) {
	for given, kept := range map[string]bool{"abc-1 2~": true, strings.Repeat("x", 64): true,
		strings.Repeat("x", 65): false, "": false, "tab\there": false, "ümlaut": false} {
		r := get("/")
		r.Header.Set(HeaderRequestID, given)
		var seen string
		rec, _ := exchange(t, RequestIDs(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			seen = RequestID(r.Context())
		})), r)
		echoed := rec.Header().Get(HeaderRequestID)
		if echoed != seen || (echoed == given) != kept {
			t.Errorf("%q: context %q, echoed %q", given, seen, echoed)
		}
		if !kept && (len(echoed) != 20 || !strings.HasPrefix(echoed, "req_")) {
			t.Errorf("made id %q", echoed)
		}
	}
}

func TestRecover(t *testing.T) {
	m := testMetrics(t)
	var log bytes.Buffer
	front := Front{Log: zerolog.New(&log), Metrics: m}
	rec, body := exchange(t, front.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })), get("/x"))
	if rec.Code != 500 || body["error"] != "internal_error" || body["request_id"] == nil {
		t.Fatalf("%d %v", rec.Code, body)
	}
	if strings.Contains(rec.Body.String(), "boom") || !strings.Contains(log.String(), "boom") {
		t.Fatal("the panic belongs into the log and nowhere else")
	}
	if testutil.ToFloat64(m.panics) != 1 || testutil.ToFloat64(m.requests.WithLabelValues("5xx")) != 1 {
		t.Fatal("not counted")
	}
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
			t.Fatalf("a begun response must be cut off, got %v", err)
		}
	}()
	exchange(t, front.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic("boom")
	})), get("/x"))
}

func TestHosts(t *testing.T) {
	h := Hosts([]string{"Box.example.com", "*.agents.example.com", "::1"})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	for host, ok := range map[string]bool{"box.example.com": true, "BOX.EXAMPLE.COM:7700": true, "box.example.com.": true,
		"a.agents.example.com": true, "agents.example.com": false, "evil.com": false, "": false,
		"box.example.com.evil.com": false, "[::1]:7700": true, "evilagents.example.com": false} {
		r := get("/")
		r.Host = host
		rec, body := exchange(t, h, r)
		if ok != (rec.Code == http.StatusNoContent) {
			t.Errorf("%q: %d", host, rec.Code)
		}
		if !ok && (rec.Code != 400 || body["error"] != "invalid_host") {
			t.Errorf("%q: %d %v", host, rec.Code, body)
		}
	}
}

func TestAllowlistMiddleware(t *testing.T) {
	m := testMetrics(t)
	networks := NewNetworks(prefixes(t, "192.0.2.0/24"))
	refused := 0
	h := ClientAddresses(&Networks{})(NewAllowlist("agent", networks, m).Middleware(func(*http.Request) { refused++ })(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	r := get("/")
	r.RemoteAddr = "203.0.113.5:1"
	rec, body := exchange(t, h, r)
	if rec.Code != 403 || body["error"] != "ip_denied" || refused != 1 {
		t.Fatalf("%d %v, %d refused", rec.Code, body, refused)
	}
	if strings.Contains(rec.Body.String(), "203.0.113.5") {
		t.Fatal("the address belongs into the audit row only")
	}
	if testutil.ToFloat64(m.denied.WithLabelValues("agent")) != 1 {
		t.Fatal("not counted")
	}
	r, info := withInfo(r)
	info.local = true
	if rec, _ := exchange(t, h, r); rec.Code != http.StatusNoContent {
		t.Fatalf("local admin: %d", rec.Code)
	}
	info.local = false
	r.RemoteAddr = "192.0.2.5:1"
	if rec, _ := exchange(t, h, r); rec.Code != http.StatusNoContent {
		t.Fatalf("inside the list: %d", rec.Code)
	}
}

func TestMuxAnswersInJSON(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/things/{id}", func(w http.ResponseWriter, r *http.Request) {
		WriteJSON(w, r, http.StatusOK, r.PathValue("id"))
	})
	mux.HandleFunc("POST /api/v1/things/{id}", func(http.ResponseWriter, *http.Request) {})
	h := Mux(mux)
	rec, body := exchange(t, h, get("/api/v1/nothing"))
	if rec.Code != 404 || body["error"] != "not_found" {
		t.Fatalf("%d %v", rec.Code, body)
	}
	rec, body = exchange(t, h, httptest.NewRequest(http.MethodDelete, "/api/v1/things/1", nil))
	if rec.Code != 405 || body["error"] != "method_not_allowed" || rec.Header().Get("Allow") != "GET, HEAD, POST" {
		t.Fatalf("%d %v Allow %q", rec.Code, body, rec.Header().Get("Allow"))
	}
	rec = httptest.NewRecorder()
	h.ServeHTTP(rec, get("/api/v1/things/42"))
	if rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != `"42"` {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
}

func TestRateMiddleware(t *testing.T) {
	b := NewRateBucket("agent-connect", 1, time.Minute, fakeClock())
	h := ClientAddresses(&Networks{})(b.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})))
	if rec, _ := exchange(t, h, get("/")); rec.Code != http.StatusNoContent {
		t.Fatalf("first: %d", rec.Code)
	}
	rec, body := exchange(t, h, get("/"))
	if rec.Code != 429 || rec.Header().Get("Retry-After") != "60" ||
		body["detail"] != "too many requests; retry in 60 seconds (agent-connect)" {
		t.Fatalf("%d %v", rec.Code, body)
	}
}

func TestHealth(t *testing.T) {
	broken := false
	ready := NewReadiness(func(context.Context) error {
		if broken {
			return errors.New("disk")
		}
		return nil
	})
	mux := http.NewServeMux()
	ready.Routes(mux)
	expect := func(status int, body string) {
		t.Helper()
		for _, path := range []string{"/readyz", "/api/v1/health/ready"} {
			rec, _ := exchange(t, mux, get(path))
			if rec.Code != status || strings.TrimSpace(rec.Body.String()) != body {
				t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
		for _, path := range []string{"/healthz", "/health", "/api/v1/health"} {
			rec, _ := exchange(t, mux, get(path))
			if rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != `{"status":"ok"}` {
				t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
	}
	expect(503, `{"status":"unready","reason":"starting"}`)
	ready.Ready()
	expect(200, `{"status":"ready"}`)
	broken = true
	expect(503, `{"status":"unready","reason":"database"}`)
	ready.Drain()
	ready.Ready()
	expect(503, `{"status":"unready","reason":"draining"}`)
}

func TestMetricsToken(t *testing.T) {
	h := NewMetricsHandler(prometheus.NewRegistry(), "sesame")
	for header, status := range map[string]int{"": 401, "Bearer wrong": 401, "Basic sesame": 401, "sesame": 401,
		"Bearer sesame": 200, "bearer sesame": 200, "Bearer sesame2": 401} {
		r := get("/metrics")
		r.Header.Set("Authorization", header)
		if rec, _ := exchange(t, h, r); rec.Code != status {
			t.Errorf("%q: %d", header, rec.Code)
		}
	}
	h.SetToken("")
	if rec, _ := exchange(t, h, get("/metrics")); rec.Code != 200 {
		t.Errorf("without a token: %d", rec.Code)
	}
}

func TestObserveCountsAndLogs(t *testing.T) {
	m := testMetrics(t)
	var log bytes.Buffer
	front := Front{Log: zerolog.New(&log).Level(zerolog.DebugLevel), Metrics: m}
	exchange(t, front.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), get("/silent?token=secret"))
	exchange(t, front.Wrap(failing(fault.New(fault.NotFound, "no"))), get("/missing"))
	for class, want := range map[string]float64{"2xx": 1, "4xx": 1, "none": 0} {
		if got := testutil.ToFloat64(m.requests.WithLabelValues(class)); got != want {
			t.Errorf("%s counted %v times, want %v", class, got, want)
		}
	}
	for _, want := range []string{`"path":"/silent"`, `"status":200`, `"status":404`, `"client":"192.0.2.1"`, `"request":"req_`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, &log)
		}
	}
	if strings.Contains(log.String(), "secret") {
		t.Error("the query went into the log")
	}
}
