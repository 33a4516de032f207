package identity_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
)

func (r *rig) cookie(name string) string {
	r.t.Helper()
	s, err := r.login(name+"@example.org", name+"-password")
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Token.Reveal()
}

func TestLoginGivesACookie(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada := r.person("ada")
	s, err := r.login(" ADA@example.org", "ada-password")
	if err != nil || s.Person.ID != ada.ID || !s.ExpiresAt.Equal(start.Truncate(time.Second).Add(24*time.Hour)) {
		t.Fatalf("%+v, %v", s, err)
	}
	if strings.Contains(fmt.Sprintf("%+v", s), s.Token.Reveal()) {
		t.Error("the token prints itself")
	}
	part := strings.Split(s.Token.Reveal(), ".")
	head, claims := unpack(t, part[0]), unpack(t, part[1])
	if head["alg"] != "HS256" || claims["sub"] != ada.ID.String() || claims["email"] != "ada@example.org" ||
		claims["role"] != "user" || claims["exp"].(float64)-claims["iat"].(float64) != 86400 {
		t.Errorf("token %v %v", head, claims)
	}
	if p, err := r.AuthenticatePerson(t.Context(), s.Token.Reveal()); err != nil || p.ID != ada.ID {
		t.Errorf("%+v, %v", p, err)
	}
	r.clk.Advance(24*time.Hour - time.Second)
	if _, err := r.AuthenticatePerson(t.Context(), s.Token.Reveal()); err != nil {
		t.Errorf("a second before its end: %v", err)
	}
	again, err := r.Refresh(t.Context(), s.Token.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	r.clk.Advance(time.Second)
	_, err = r.AuthenticatePerson(t.Context(), s.Token.Reveal())
	r.wants("after its end", err, fault.Unauthenticated, "not signed in")
	_, err = r.Refresh(t.Context(), s.Token.Reveal())
	r.wants("refresh after its end", err, fault.Unauthenticated, "not signed in")
	if _, err := r.AuthenticatePerson(t.Context(), again.Token.Reveal()); err != nil {
		t.Errorf("the refreshed cookie: %v", err)
	}
}

func unpack(t *testing.T, part string) map[string]any {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(part)
	out := map[string]any{}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestForgedCookiesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada, bob := r.person("ada"), r.person("bob")
	good := r.cookie("ada")
	part := strings.Split(good, ".")
	pack := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	claims := unpack(t, part[1])
	key := secret.SessionKey(master("a").Reveal()).Reveal()
	with := func(method jwt.SigningMethod, key any, change func(jwt.MapClaims)) string {
		c := jwt.MapClaims{}
		for k, v := range claims {
			c[k] = v
		}
		change(c)
		text, err := jwt.NewWithClaims(method, c).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	same := func(jwt.MapClaims) {}
	if _, err := r.AuthenticatePerson(t.Context(), with(jwt.SigningMethodHS256, key, same)); err != nil {
		t.Fatalf("what the test signs itself is not accepted: %v", err)
	}
	other := map[string]any{}
	for k, v := range claims {
		other[k] = v
	}
	other["sub"] = bob.ID.String()
	for name, token := range map[string]string{
		"empty":             "",
		"no token":          "x.y.z",
		"other person":      part[0] + "." + pack(other) + "." + part[2],
		"cut signature":     part[0] + "." + part[1] + "." + part[2][:20],
		"no signature":      part[0] + "." + part[1] + ".",
		"alg none":          with(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, same),
		"alg HS512":         with(jwt.SigningMethodHS512, key, same),
		"another key":       with(jwt.SigningMethodHS256, secret.SessionKey(master("b").Reveal()).Reveal(), same),
		"the master itself": with(jwt.SigningMethodHS256, master("a").Reveal(), same),
		"no end":            with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { delete(c, "exp") }),
		"no start":          with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { delete(c, "iat") }),
		"no since":          with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { delete(c, "since") }),
		"unknown person":    with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { c["sub"] = "0190a000-0000-7000-8000-000000000000" }),
		"no person":         with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { c["sub"] = "ada" }),
		"too long":          good + strings.Repeat("A", 5000),
	} {
		_, err := r.AuthenticatePerson(t.Context(), token)
		r.wants(name, err, fault.Unauthenticated, "not signed in")
	}
	// What a token says of the role is not believed.
	p, err := r.AuthenticatePerson(t.Context(), with(jwt.SigningMethodHS256, key, func(c jwt.MapClaims) { c["role"] = "admin" }))
	if err != nil || p.ID != ada.ID || p.Actor().Admin {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestCookiesVoidedByChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada := r.person("ada")
	r.person("bob")
	bob := r.cookie("bob")
	// The clock stands still: what is void is told apart within one microsecond, too.
	first := r.cookie("ada")
	if err := r.SetPassword(t.Context(), ada.Actor(), ada.ID, secret.NewText("ada-password")); err != nil {
		t.Fatal(err)
	}
	second := r.cookie("ada")
	_, err := r.AuthenticatePerson(t.Context(), first)
	r.wants("cookie from before the password", err, fault.Unauthenticated, "not signed in")
	p, err := r.AuthenticatePerson(t.Context(), second)
	if err != nil {
		t.Fatalf("cookie from after it: %v", err)
	}
	if err := r.Logout(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	_, err = r.AuthenticatePerson(t.Context(), second)
	r.wants("cookie from before the logout", err, fault.Unauthenticated, "not signed in")
	if _, err := r.AuthenticatePerson(t.Context(), bob); err != nil {
		t.Errorf("somebody else's cookie: %v", err)
	}
	if rows := r.audits("person.password.set"); len(rows) != 1 || rows[0].user != ada.ID.String() {
		t.Errorf("audit %+v", rows)
	}
}

func TestCookiesOutliveTheMasterSecret(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.person("ada")
	old := r.cookie("ada")
	r.use(identity.Keys{Current: master("b"), Previous: []secret.Bytes{master("c"), master("a")}})
	if _, err := r.AuthenticatePerson(t.Context(), old); err != nil {
		t.Errorf("under a previous secret: %v", err)
	}
	renewed := r.cookie("ada")
	r.use(identity.Keys{Current: master("b")})
	_, err := r.AuthenticatePerson(t.Context(), old)
	r.wants("under a secret that is gone", err, fault.Unauthenticated, "not signed in")
	if _, err := r.AuthenticatePerson(t.Context(), renewed); err != nil {
		t.Errorf("under the current secret: %v", err)
	}
}

func TestFailedLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada := r.person("ada")
	r.person("bob")
	try := func(email, password, addr string) error {
		_, err := r.Login(t.Context(), email, secret.NewText(password), addr)
		return err
	}
	const here, there = "192.0.2.1", "192.0.2.2"
	for range 10 {
		r.wants("wrong password", try("ada@example.org", "hunter2-typed", here), fault.Unauthenticated, "wrong e-mail address or password")
	}
	err := try("ada@example.org", "ada-password", here)
	r.wants("the right one after ten wrong ones", err, fault.RateLimited, "too many failed")
	var f *fault.Error
	if f, _ = err.(*fault.Error); f == nil || f.Retry != 15*time.Minute {
		t.Errorf("retry %+v", err)
	}
	if err := try("ada@example.org", "ada-password", there); err != nil {
		t.Errorf("from elsewhere: %v", err)
	}
	if err := try("bob@example.org", "bob-password", here); err != nil {
		t.Errorf("somebody else: %v", err)
	}
	r.wants("nobody", try("my-secret-typed-here@x", "x", here), fault.Unauthenticated, "wrong e-mail address or password")
	r.wants("no address", try("hunter2", "x", here), fault.Unauthenticated, "wrong e-mail address or password")
	r.clk.Advance(15 * time.Minute)
	if err := try("ada@example.org", "ada-password", here); err != nil {
		t.Errorf("after the window: %v", err)
	}
	rows := r.audits("person.login.failed")
	if len(rows) != 3 || rows[0].target != ada.ID.String() || rows[0].result != "failed" || rows[1].target != "" {
		t.Errorf("audit %+v", rows)
	}
	for _, row := range rows {
		if s := fmt.Sprint(row); strings.Contains(s, "hunter2") || strings.Contains(s, "typed") {
			t.Errorf("what was typed is in the audit log: %s", s)
		}
	}
}

func TestLoginLimitOfOneOrigin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.person("ada")
	login := func(email, addr string) error {
		_, err := r.Login(t.Context(), email, secret.NewText("ada-password"), addr)
		return err
	}
	// One peer has a whole /64.
	for i := range 100 {
		r.wants("spray", login(fmt.Sprintf("p%d@example.org", i), fmt.Sprintf("2001:db8::%x", i+1)), fault.Unauthenticated, "wrong")
	}
	r.wants("the same network", login("ada@example.org", "2001:db8::ffff"), fault.RateLimited, "too many")
	if err := login("ada@example.org", "2001:db8:0:1::1"); err != nil {
		t.Errorf("another network: %v", err)
	}
}

// A password hashed under other parameters is hashed anew when its owner signs in; that is no change of the password.
func TestHashesFollowTheParameters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.person("ada")
	cookie := r.cookie("ada")
	current := func() int {
		return r.count(`SELECT count(*) FROM people WHERE password_hash LIKE '$argon2id$v=19$m=19456,t=2,p=1$%'`)
	}
	identity.CurrentHashes(r.Identity)
	if _, err := r.login("ada@example.org", "wrong-password"); err == nil || current() != 0 {
		t.Fatalf("a wrong password: %v, %d hashed anew", err, current())
	}
	again := r.cookie("ada")
	if current() != 1 {
		t.Error("not hashed anew")
	}
	for _, c := range []string{cookie, again, r.cookie("ada")} {
		if _, err := r.AuthenticatePerson(t.Context(), c); err != nil {
			t.Errorf("cookie: %v", err)
		}
	}
}
