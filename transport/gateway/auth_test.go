package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/secret"
	"signalbox/transport/gateway"
)

func login(email, password string) map[string]string {
	return map[string]string{"email": email, "password": password}
}

func cookieIn(t *testing.T, a reply) *http.Cookie {
	t.Helper()
	found, err := http.ParseSetCookie(a.header.Get("Set-Cookie"))
	if err != nil || found.Name != gateway.Cookie {
		t.Fatalf("cookie %q: %v", a.header.Get("Set-Cookie"), err)
	}
	return found
}

func TestLogin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.password(r.ann)
	var got struct {
		ID                uuid.UUID
		Name, Email, Role string
		CreatedAt         time.Time `json:"created_at"`
		Server            struct {
			Version   string
			Contracts map[string]struct{ Speaks, Accepts int }
		}
	}
	a := r.request("POST", "/auth/login", login("ann@example.org", "ann-password")).wants(200).into(&got)
	if got.ID != r.ann.ID || got.Name != "ann" || got.Email != "ann@example.org" || got.Role != "user" ||
		!got.CreatedAt.Equal(r.ann.CreatedAt) || got.Server.Version != "9.9" || got.Server.Contracts["gateway-api"].Speaks != 1 {
		t.Errorf("answer %s", a.body)
	}
	c := cookieIn(t, a)
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Secure || c.MaxAge != 86400 {
		t.Errorf("cookie %+v", c)
	}
	if strings.Contains(a.body, c.Value) {
		t.Error("the token is in the body, where scripts read it")
	}
	r.request("GET", "/auth/me", nil, with(c.Value)).wants(200, r.ann.ID.String())
	r.clk.Advance(time.Hour)
	renewed := cookieIn(t, r.request("POST", "/auth/refresh", nil, with(c.Value)).wants(200, r.ann.ID.String()))
	if renewed.Value == c.Value {
		t.Error("refresh gave the same cookie")
	}
	out := r.request("POST", "/auth/logout", nil, with(renewed.Value)).wants(200)
	if c := cookieIn(t, out); c.MaxAge >= 0 || c.Value != "" {
		t.Errorf("logout leaves %+v", c)
	}
	for _, old := range []string{c.Value, renewed.Value} {
		r.request("GET", "/auth/me", nil, with(old)).wants(401, "not signed in")
	}
	r.request("GET", "/auth/config", nil).wants(200, `"password_login":true`)
}

func TestCookieIsSecureOverTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.BehindProxy = true })
	r.password(r.ann)
	for proto, want := range map[string]bool{"": true, "https": true, "http": false} {
		a := r.request("POST", "/auth/login", login("ann@example.org", "ann-password"), header("X-Forwarded-Proto", proto)).wants(200)
		if c := cookieIn(t, a); c.Secure != want {
			t.Errorf("proxy asked over %q: Secure %v", proto, c.Secure)
		}
	}
}

func TestLoginRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.password(r.ann, r.bob)
	r.request("POST", "/auth/login", login("ann@example.org", "bob-password")).wants(401, "wrong e-mail address or password")
	r.request("POST", "/auth/login", login("nobody@example.org", "x")).wants(401, "wrong e-mail address or password")
	r.request("POST", "/auth/login", map[string]string{"email": "ann@example.org"}).wants(422, "body.password: is required")
	r.request("POST", "/auth/login", `{"email":"ann@example.org","password":hunter2}`).wants(422, "body: must be a JSON object")
	r.request("POST", "/auth/login", `{"email":1,"password":"x"}`).wants(422, "body.email")
	_, err := r.people.SetDisabled(t.Context(), r.admin.Actor(), r.ann.ID, true)
	r.ok("disable", err)
	r.request("POST", "/auth/login", login("ann@example.org", "ann-password")).wants(403, "disabled")
	for range 10 {
		r.request("POST", "/auth/login", login("bob@example.org", "guess"))
	}
	a := r.request("POST", "/auth/login", login("bob@example.org", "bob-password")).wants(429, "too many")
	if a.header.Get("Retry-After") != "900" || a.header.Get("Set-Cookie") != "" {
		t.Errorf("headers %v", a.header)
	}
	if s := r.logged.String(); strings.Contains(s, "guess") || strings.Contains(s, "hunter2") || strings.Contains(s, "password\":\"") {
		t.Errorf("a password is in the log: %s", s)
	}
}

func TestCookiesThatProveNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := r.cookie(r.ann)
	me := func(cookie string) reply { return r.request("GET", "/auth/me", nil, with(cookie)) }
	part := strings.Split(good, ".")
	bad := []string{"", "x", good + "x", good[:len(good)-2], part[0] + "." + part[1] + ".", part[0] + "." + part[1] + "x." + part[2],
		"eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + part[1] + "."}
	for _, cookie := range bad {
		me(cookie).wants(401, "not signed in")
	}
	me(good).wants(200)
	r.ok("password", r.people.SetPassword(t.Context(), r.ann.Actor(), r.ann.ID, secret.NewText("another password")))
	me(good).wants(401, "not signed in")
	delete(r.cookies, "ann")
	bob := r.cookie(r.bob)
	_, err := r.people.SetDisabled(t.Context(), r.admin.Actor(), r.bob.ID, true)
	r.ok("disable", err)
	me(bob).wants(403, "disabled")
}

// routes are all that need a session.
var routes = []string{"POST /auth/refresh", "POST /auth/logout", "GET /auth/me", "GET /users", "POST /users", "GET /api-keys",
	"POST /api-keys", "DELETE /api-keys/ID", "GET /agents", "POST /agents/register", "POST /agents/register-other", "GET /agents/ID",
	"DELETE /agents/ID", "PUT /agents/ID/addressing-policy", "GET /rooms", "POST /rooms", "GET /rooms/ID", "PATCH /rooms/ID",
	"DELETE /rooms/ID", "POST /rooms/ID/archive", "POST /rooms/ID/unarchive", "POST /rooms/ID/agents", "PATCH /rooms/ID/agents/ID",
	"DELETE /rooms/ID/agents/ID", "GET /rooms/ID/roles", "POST /rooms/ID/roles", "GET /rooms/ID/roles/x", "PATCH /rooms/ID/roles/x",
	"DELETE /rooms/ID/roles/x", "GET /rooms/ID/media?mxc=x", "POST /rooms/ID/media", "GET /chats", "POST /chats", "GET /chats/events",
	"GET /chats/ID/messages", "POST /chats/ID/messages", "POST /chats/ID/members"}

func TestEveryRouteNeedsASession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.chat(r.ann, "one", r.fox)
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if path == "/auth/logout" || path == "/auth/refresh" {
			r.request(method, path, nil).wants(401, "not signed in")
			continue
		}
		known := made.String()
		if strings.HasPrefix(path, "/agents/ID") {
			known = r.fox.ID.String()
		}
		r.request(method, strings.Replace(path, "ID", known, 1), `{}`).wants(401, "not signed in")
		if strings.Contains(path, "ID") {
			bad := strings.Replace(path, "ID", "nonsense", 1)
			if a := r.as(r.ann, method, bad, `{"label":"x"}`); a.status != 404 {
				t.Errorf("%s with an id that is none: %d %s", route, a.status, a.body)
			}
			if a := r.as(r.ann, method, strings.ReplaceAll(path, "ID", uuid.NewString()), body(path)); a.status != 404 {
				t.Errorf("%s with an id of nothing: %d %s", route, a.status, a.body)
			}
		}
	}
	if rooms := r.as(r.ann, "GET", "/rooms", nil).wants(200).body; !strings.Contains(rooms, made.String()) {
		t.Errorf("rooms %s", rooms)
	}
}

// body is one that the route takes.
func body(path string) any {
	switch {
	case strings.HasSuffix(path, "/addressing-policy"):
		return `{"policy":null}`
	case strings.HasSuffix(path, "/members"):
		return `{"userId":"` + uuid.NewString() + `"}`
	case strings.HasSuffix(path, "/messages"):
		return `{"requestId":"1","body":"x"}`
	case strings.HasSuffix(path, "/agents/ID"):
		return `{"receives_join_events":true}`
	case strings.HasSuffix(path, "/agents"):
		return `{"agent_ids":["` + uuid.NewString() + `"]}`
	}
	return `{"name":"x"}`
}

func TestOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	host := strings.TrimPrefix(r.url, "http://")
	for _, c := range []struct {
		name    string
		headers [][2]string
		status  int
	}{
		{"no browser", nil, 200},
		{"the same site", [][2]string{{"Sec-Fetch-Site", "same-origin"}, {"Origin", "http://" + host}}, 200},
		{"typed", [][2]string{{"Sec-Fetch-Site", "none"}}, 200},
		{"old browser, same", [][2]string{{"Origin", "http://" + host}}, 200},
		{"another site", [][2]string{{"Sec-Fetch-Site", "cross-site"}}, 403},
		{"a sibling", [][2]string{{"Sec-Fetch-Site", "same-site"}}, 403},
		{"old browser, other", [][2]string{{"Origin", "https://evil.example"}}, 403},
		{"sandboxed", [][2]string{{"Origin", "null"}}, 403},
	} {
		set := func(req *http.Request) {
			for _, h := range c.headers {
				req.Header.Set(h[0], h[1])
			}
		}
		for _, a := range []reply{r.as(r.ann, "POST", "/api-keys", map[string]string{"label": c.name}, set),
			r.request("POST", "/auth/login", login("ann@example.org", "ann-password"), set)} {
			if a.status != c.status {
				t.Errorf("%s: %d %s", c.name, a.status, a.body)
			}
		}
		r.as(r.ann, "GET", "/api-keys", nil, set).wants(200)
	}
	var keys []struct{ Label string }
	if r.as(r.ann, "GET", "/api-keys", nil).into(&keys); len(keys) != 4 {
		t.Errorf("%d keys were made", len(keys))
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.as(r.ann, "GET", "/users", nil).wants(403, "only an admin")
	r.as(r.ann, "POST", "/users", map[string]string{"name": "x", "email": "x@y", "password": "long enough"}).wants(403, "only an admin")
	made := r.as(r.admin, "POST", "/users", map[string]string{"name": "cy", "email": "cy@example.org", "password": "cy-password"}).wants(200, `"role":"user"`)
	if strings.Contains(made.body, "password") {
		t.Errorf("answer %s", made.body)
	}
	r.request("POST", "/auth/login", login("cy@example.org", "cy-password")).wants(200)
	r.as(r.admin, "POST", "/users", map[string]string{"name": "cy", "email": "CY@example.org", "password": "cy-password"}).wants(409, "email: ")
	r.as(r.admin, "POST", "/users", map[string]string{"name": "x", "email": "x@y", "password": ""}).wants(400, "password: ")
	r.as(r.admin, "POST", "/users", map[string]string{"name": "x", "email": "x@y", "password": "long enough", "role": "root"}).wants(400, "role: ")
	r.as(r.admin, "POST", "/users", map[string]string{"name": "x", "email": "x@y"}).wants(422, "body.password")
	var all []struct{ Name, Kind string }
	if r.as(r.admin, "GET", "/users", nil).wants(200).into(&all); len(all) != 5 || all[4].Name != "cy" || all[0].Kind != "operator" {
		t.Errorf("%+v", all)
	}
}

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var k struct {
		ID         uuid.UUID
		Label, Key string
		CreatedAt  time.Time `json:"created_at"`
	}
	r.as(r.ann, "POST", "/api-keys", map[string]string{"label": "laptop"}).wants(200).into(&k)
	if k.Label != "laptop" || len(k.Key) != 43 || k.CreatedAt.IsZero() {
		t.Errorf("%+v", k)
	}
	by, err := r.people.AuthenticateRegistrant(t.Context(), "Bearer "+k.Key)
	if err != nil || by.Owner.ID != r.ann.ID {
		t.Errorf("%+v, %v", by, err)
	}
	if list := r.as(r.ann, "GET", "/api-keys", nil).wants(200, k.ID.String()); strings.Contains(list.body, k.Key) {
		t.Error("the key is told twice")
	}
	if list := r.as(r.bob, "GET", "/api-keys", nil).wants(200); list.body != "[]\n" {
		t.Errorf("somebody else sees %s", list.body)
	}
	r.as(r.bob, "DELETE", "/api-keys/"+k.ID.String(), nil).wants(404, "not found")
	r.as(r.ann, "POST", "/api-keys", `{}`).wants(422, "body.label")
	r.as(r.ann, "POST", "/api-keys", map[string]string{"label": strings.Repeat("x", 201)}).wants(400, "label: ")
	r.as(r.ann, "DELETE", "/api-keys/"+k.ID.String(), nil).wants(200, `"ok":true`)
	if _, err := r.people.AuthenticateRegistrant(t.Context(), "Bearer "+k.Key); err == nil {
		t.Error("a deleted key still registers")
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var list []struct {
		ID, OwnerID uuid.UUID
		Name        string
		Note        *string
		Policy      *room.Policy `json:"addressing_policy"`
	}
	r.as(r.ann, "GET", "/agents", nil).wants(200).into(&list)
	if len(list) != 2 || list[0].Name != "fox" || list[0].Note == nil ||
		*list[0].Note != "only its owner can address it; open it with: signalbox roomagents policy fox --open" {
		t.Fatalf("%+v", list)
	}
	const profile = `"integration_profile":{"connection_model":"always_on"}`
	var made struct {
		ID       uuid.UUID
		APIKey   string `json:"api_key"`
		ClientID any    `json:"oauth_client_id"`
		Note     *string
	}
	a := r.as(r.ann, "POST", "/agents/register", `{"name":"hen",`+profile+`}`).wants(200, `"oauth_client_id":null`).into(&made)
	if got, err := r.people.AuthenticateAgent(t.Context(), "Bearer "+made.APIKey); err != nil || got.ID != made.ID || got.OwnerID != r.ann.ID || made.Note == nil {
		t.Errorf("%s: %+v, %v", a.body, got, err)
	}
	r.as(r.ann, "POST", "/agents/register", `{"name":"hen",`+profile+`}`).wants(409, "exists already")
	r.as(r.bob, "POST", "/agents/register", `{"name":"hen","overwrite":true,`+profile+`}`).wants(409, "exists already")
	r.as(r.ann, "POST", "/agents/register", `{"name":"Hen",`+profile+`}`).wants(400, "name: ")
	r.as(r.ann, "POST", "/agents/register", `{"name":"a","integration_profile":{"connection_model":"x"}}`).wants(422, "connection_model")
	r.as(r.ann, "POST", "/agents/register-other", `{"name":"cow","description":"moo"}`).wants(200, "api_key")
	cow, err := r.people.AgentNamed(t.Context(), "cow")
	r.ok("cow", err)
	if cow.Profile.ConnectionModel != room.SessionPassive {
		t.Errorf("%+v", cow.Profile)
	}
	path := "/agents/" + r.fox.ID.String()
	r.as(r.bob, "GET", path, nil).wants(200, `"integration_profile":{`, `"owner_name":"ann"`)
	open := `{"policy":{"rules":[{"users":"*"}]}}`
	r.as(r.bob, "PUT", path+"/addressing-policy", open).wants(403, "only the owner")
	r.as(r.ann, "PUT", path+"/addressing-policy", `{}`).wants(422, "body.policy: is required")
	r.as(r.ann, "PUT", path+"/addressing-policy", `{"policy":{"rules":[{"friends":"*"}]}}`).wants(400, "friends")
	r.as(r.ann, "PUT", path+"/addressing-policy", open).wants(200, `"note":null`, `"users":"*"`)
	r.as(r.admin, "PUT", path+"/addressing-policy", `{"policy":null}`).wants(200, `"addressing_policy":null`)
	r.as(r.bob, "DELETE", path, nil).wants(403, "only the owner")
	r.as(r.ann, "DELETE", path, nil).wants(200)
	r.as(r.ann, "GET", path, nil).wants(404, "agent not found")
}
