package commands

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestStrangers(t *testing.T) {
	t.Parallel()
	alias := "rb"
	r := roomRow{Members: []roomMember{{Name: "build-bot"}, {Name: "review-bot", Alias: &alias}},
		People: []roomPersonMember{{Name: "Ben Ash", Email: "benny@example.com"}}, Roles: []roomRole{{Name: "release captain"}}}
	for text, want := range map[string][]string{
		"hello": nil, "hello @": nil, "@everyone": nil, "@Build-Bot @RB @ben @benny @release": nil,
		"@nobody hello": {"@nobody"}, "@build-bot. hello": {"@build-bot."}, "(@zed), *@Zed* and @yan": {"@zed", "@yan"},
		"mail ann@example.com": nil, "@1 @2 @3 @4 @5 @6": {"@1", "@2", "@3", "@4", "@5"},
	} {
		if got := strangers(text, r); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestHeard(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]addressedAgent{
		"no_session": {Status: "no_session"}, "heard by 1 connection": {Status: "no_session", Covering: 1},
		"heard by 3 connections": {Status: "no_session", Covering: 3}, "live": {Status: "live", Covering: 1}, "disconnected": {Status: "disconnected"},
	} {
		if got := s.heard(); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}

func TestTheFileOfARegistrationKeyIsItsOwners(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "registration.key")
	opts, _, talk := newRun(t).options("", false)
	if got := opts.execute(t.Context(), []string{"roomagents", "keys", "mint", "--out", path}); got != ExitOK {
		t.Fatalf("exit code %d: %s", got, talk)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Errorf("%v, %v", info, err)
	}
}
