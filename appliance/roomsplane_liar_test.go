package appliance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/roomclient/conformance"
)

// fields is a frame, or the data of one.
type fields = map[string]any

// lie is how a server breaks the protocol. What is nil is passed on as it is.
type lie struct {
	query  func(url.Values)
	frame  func(event string, f, data fields) []fields // the frames that go out instead
	close  func(code int) int
	before func(code int) fields // a frame that goes out before the close
	answer func(path string, status int, body []byte) (int, []byte)
}

// liar stands in front of an appliance and lies about it, on the socket and in answers.
type liar struct {
	lie
	upstream *url.URL
	sockets  sync.WaitGroup
}

func newLiar(t *testing.T, s *appliancetest.Server, l lie) *httptest.Server {
	t.Helper()
	upstream, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	v := &liar{lie: l, upstream: upstream}
	srv := httptest.NewServer(v)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		v.sockets.Wait()
	})
	return srv
}

func (v *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v.query != nil {
		q := r.URL.Query()
		v.query(q)
		r.URL.RawQuery = q.Encode()
	}
	if websocket.IsWebSocketUpgrade(r) {
		v.socket(w, r)
		return
	}
	proxy := httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(v.upstream) },
		ModifyResponse: v.respond}
	proxy.ServeHTTP(w, r)
}

func (v *liar) respond(resp *http.Response) error {
	if v.answer == nil || resp.Header.Get("Content-Type") == "text/event-stream" {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return err
	}
	resp.StatusCode, body = v.answer(resp.Request.URL.Path, resp.StatusCode, body)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
	return nil
}

func (v *liar) socket(w http.ResponseWriter, r *http.Request) {
	target := *v.upstream
	target.Scheme, target.Path, target.RawQuery = "ws", r.URL.Path, r.URL.RawQuery
	h := http.Header{}
	if auth := r.Header.Get("Authorization"); auth != "" {
		h.Set("Authorization", auth)
	}
	up, resp, err := websocket.DefaultDialer.DialContext(r.Context(), target.String(), h)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_ = resp.Body.Close()
	down, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		_ = up.Close()
		return
	}
	v.sockets.Go(func() { // what clients say
		defer up.Close()
		for {
			typ, data, err := down.ReadMessage()
			if err != nil || up.WriteMessage(typ, data) != nil {
				return
			}
		}
	})
	v.sockets.Go(func() {
		defer down.Close()
		for {
			_, data, err := up.ReadMessage()
			if err != nil {
				v.end(down, err)
				return
			}
			for _, out := range v.tell(data) {
				if down.WriteMessage(websocket.TextMessage, out) != nil {
					return
				}
			}
		}
	})
}

func (v *liar) tell(data []byte) [][]byte {
	if v.frame == nil {
		return [][]byte{data}
	}
	var f fields
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if dec.Decode(&f) != nil {
		return [][]byte{data}
	}
	d, _ := f["data"].(fields)
	var out [][]byte
	for _, told := range v.frame(f["event"].(string), f, d) {
		b, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		out = append(out, b)
	}
	return out
}

func (v *liar) end(down *websocket.Conn, err error) {
	ce, ok := err.(*websocket.CloseError) //nolint:errorlint // it is not wrapped
	if !ok {
		return
	}
	code := ce.Code
	if v.before != nil {
		if f := v.before(code); f != nil {
			_ = down.WriteJSON(f)
		}
	}
	if v.close != nil {
		code = v.close(code)
	}
	_ = down.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ce.Text), time.Now().Add(time.Second))
}

// on changes frames of one name.
func on(name string, change func(f, data fields) []fields) func(string, fields, fields) []fields {
	return func(event string, f, data fields) []fields {
		if event != name {
			return []fields{f}
		}
		return change(f, data)
	}
}

// with is on for a change within the data.
func with(name string, change func(data fields)) func(string, fields, fields) []fields {
	return on(name, func(f, data fields) []fields {
		change(data)
		return []fields{f}
	})
}

func without(name string) func(string, fields, fields) []fields {
	return on(name, func(fields, fields) []fields { return nil })
}

// replace changes answers of paths that end so.
func replace(suffix, from, to string) func(string, int, []byte) (int, []byte) {
	return func(path string, status int, body []byte) (int, []byte) {
		if strings.HasSuffix(path, suffix) {
			body = bytes.ReplaceAll(body, []byte(from), []byte(to))
		}
		return status, body
	}
}

// restatus changes the status of answers of paths that end so.
func restatus(suffix string, from, to int) func(string, int, []byte) (int, []byte) {
	return func(path string, status int, body []byte) (int, []byte) {
		if strings.HasSuffix(path, suffix) && status == from {
			status = to
		}
		return status, body
	}
}

func recode(from, to int) func(int) int {
	return func(code int) int {
		if code == from {
			return to
		}
		return code
	}
}

func number(v any) int64 {
	n, _ := v.(json.Number).Int64()
	return n
}

// The runner must find what a server does wrong, and name the rule: otherwise what it passes means nothing.
func TestConformanceFindsViolations(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	payload := func(data fields) fields { return data["payload"].(fields) }
	twice := func(f, _ fields) []fields { return []fields{f, f} }
	var third atomic.Int64
	pairs := 0
	for _, tc := range []struct {
		vector int
		name   string
		rule   string
		lie    lie
	}{
		{1, "another close code", "B.3", lie{close: recode(4400, 4404)}},
		{1, "no frame", "B.3", lie{frame: without("refused")}},
		{1, "another status", "B.2", lie{frame: with("refused", func(d fields) { d["status"] = 422 }), close: recode(4400, 4422)}},
		{1, "text without a reason", "B.2", lie{frame: with("refused", func(d fields) { d["detail"] = "no" })}},
		{2, "a frame before 4401", "A.1", lie{before: func(code int) fields {
			if code != 4401 {
				return nil
			}
			return fields{"event": "refused", "data": fields{"status": 401, "detail": "no"}}
		}}},
		{2, "4403", "A.1", lie{close: recode(4401, 4403)}},
		{3, "no list of rooms", "D.2", lie{frame: with("connection_state", func(d fields) { d["rooms"] = nil })}},
		{3, "a cursor that is an echo", "D.2", lie{frame: with("connection_state", func(d fields) { d["cursor"] = 0 })}},
		{3, "a generation that stands still", "C.2", lie{frame: with("connection_state", func(d fields) { d["generation"] = 7 })}},
		{4, "no pings", "C.3", lie{frame: without("ping")}},
		{5, "twice", "E.2", lie{frame: on("message", twice)}},
		{5, "addressed to nobody", "D.8", lie{frame: with("message", func(d fields) { payload(d)["addressed"] = false })}},
		{5, "an id that is not the sequence", "D.1", lie{frame: on("message", func(f, _ fields) []fields { f["id"] = int64(1) << 40; return []fields{f} })}},
		{6, "evicted", "C.6", lie{frame: on("ping", func(fields, fields) []fields {
			return []fields{{"event": "gap", "data": fields{}}, {"event": "ping", "data": fields{}}}
		})}},
		{7, "one of three lost", "E.4", lie{frame: on("message", func(f, d fields) []fields {
			if payload(d)["body"] == "2" {
				return nil
			}
			return []fields{f}
		})}},
		{7, "claims lost", "C.4", lie{frame: with("connection_state", func(d fields) { d["rooms"] = []string{} })}},
		{8, "another code", "C.7", lie{frame: with("evicted", func(d fields) { d["code"] = "closed" })}},
		{8, "another prefix", "D.3", lie{frame: with("evicted", func(d fields) { d["reason"] = "gone" })}},
		{8, "a holder that lapsed counts", "F.3", lie{answer: replace("/subscribe", `"warning":null`, `"warning":"x"`)}},
		{9, "the generation again", "C.2", lie{frame: with("connection_state", func(d fields) { d["generation"] = number(d["generation"]) >> 40 })}},
		{10, "no eviction", "B.5", lie{frame: without("evicted")}},
		{10, "another close code", "C.7", lie{close: recode(1000, 1001)}},
		{11, "no code", "B.2", lie{frame: with("refused", func(d fields) { d["detail"] = "taken over" })}},
		{12, "the room is not named", "B.3", lie{frame: with("refused", func(d fields) { d["detail"] = "Not a member" })}},
		{13, "the cursor stays", "E.4", lie{frame: with("connection_state", func(d fields) { d["cursor"] = max(number(d["cursor"])-1, 0) })}},
		{13, "the claim is not told", "D.3", lie{frame: without("subscription_changed")}},
		{14, "several rooms", "F.1", lie{answer: replace("/subscribe", `"rooms":[`, `"rooms":["x",`)}},
		{15, "covered rooms are told", "D.3", lie{frame: with("subscription_changed", func(d fields) { d["rooms"] = []string{"x"} })}},
		{16, "the holder is not named", "F.4", lie{answer: func(path string, status int, body []byte) (int, []byte) {
			if status == http.StatusConflict {
				body = []byte(`{"detail":"somebody has it"}`)
			}
			return status, body
		}}},
		{16, "the loser is not told", "D.3", lie{frame: without("room_released")}},
		{16, "an old client is told what it does not know", "D.3", lie{frame: on("subscription_changed", func(f, d fields) []fields {
			if third.Add(1) < 4 {
				return []fields{f}
			}
			return []fields{{"event": "room_released", "data": fields{"room_id": "x", "session_id": nil}}, f}
		})}},
		{17, "a room twice is another error", "F.6", lie{answer: restatus("/placements", http.StatusBadRequest, http.StatusConflict)}},
		{17, "a stranger's room is not found", "F.6", lie{answer: restatus("/placements", http.StatusForbidden, http.StatusNotFound)}},
		{20, "no gap", "E.5", lie{frame: without("gap")}},
		{20, "all rooms", "E.5", lie{frame: with("gap", func(d fields) { d["all_rooms"] = true })}},
		{20, "resumed elsewhere", "E.5", lie{frame: with("gap", func(d fields) { d["resumed_at"] = 0 })}},
		{21, "no filter", "D.9", lie{query: func(q url.Values) { q.Del("filter") }}},
		{22, "another remedy", "B.4", lie{frame: with("refused", func(d fields) { d["detail"].(fields)["remedy"] = "upgrade" })}},
		{22, "a code", "B.4", lie{frame: with("refused", func(d fields) { d["detail"].(fields)["code"] = "upgrade_required" })}},
		{23, "another status", "B.2", lie{frame: with("refused", func(d fields) { d["status"] = 429 }), close: recode(4409, 4429)}},
		{24, "a schema of another type", "H.1", lie{answer: replace("/ops", `"type":"object"`, `"type":"array"`)}},
		{24, "an incomplete room", "H.4", lie{answer: replace("/connect_to_room", `"packages"`, `"parcels"`)}},
		{26, "other words", "H.1", lie{answer: replace("", "is not open", "is closed")}},
		{27, "a full stop ends a name", "D.8", lie{frame: with("message", func(d fields) {
			if strings.HasSuffix(payload(d)["body"].(string), ".") {
				payload(d)["addressed"] = true
			}
		})}},
		{28, "an echo", "E.2", lie{frame: on("message", twice)}},
	} {
		pairs++
		t.Run(fmt.Sprintf("M%02d %s", tc.vector, tc.name), func(t *testing.T) {
			srv := newLiar(t, s, tc.lie)
			a, b := enlist(s, fmt.Sprint("a", pairs)), enlist(s, fmt.Sprint("b", pairs))
			o := conformance.Options{Endpoint: srv.URL, HTTP: srv.Client(), Clock: s.Clock, Pass: newKeepAlive(s.Clock).pass,
				Agents: []conformance.Agent{{ID: a.AgentID, Key: a.Token}, {ID: b.AgentID, Key: b.Token}}, Only: []int{tc.vector}, Timeout: 20 * time.Second}
			report, err := conformance.Run(limit(t), o)
			if err != nil {
				t.Fatal(err)
			}
			if r := report.Results[0]; r.Outcome != conformance.Failed || r.Rule != tc.rule || r.Detail == "" {
				t.Errorf("%s %q: %s; want FAIL %s", r.Outcome, r.Rule, r.Detail, tc.rule)
			}
		})
	}
}
