package agent

import (
	"slices"
	"strings"
	"testing"

	"signalbox/appliance/fault"
)

func TestProjectRules(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		field  string // in the error; "" when valid
		change func(*Project)
	}{
		{"", func(*Project) {}},
		{"slug", func(p *Project) { p.Slug = "ab" }},
		{"", func(p *Project) { p.Slug = "abc" }},
		{"", func(p *Project) { p.Slug = "0-9" }},
		{"", func(p *Project) { p.Slug = strings.Repeat("a", 50) }},
		{"slug", func(p *Project) { p.Slug = strings.Repeat("a", 51) }},
		{"slug", func(p *Project) { p.Slug = "-abc" }},
		{"slug", func(p *Project) { p.Slug = "abc-" }},
		{"slug", func(p *Project) { p.Slug = "Abc" }},
		{"slug", func(p *Project) { p.Slug = "a_c" }},
		{"slug", func(p *Project) { p.Slug = "abc\n" }},
		{"slug", func(p *Project) { p.Slug = "" }},
		{"name", func(p *Project) { p.Name = "" }},
		{"name", func(p *Project) { p.Name = "  " }},
		{"", func(p *Project) { p.Name = strings.Repeat("é", 200) }},
		{"name", func(p *Project) { p.Name = strings.Repeat("é", 201) }},
		{"name", func(p *Project) { p.Name = "a\x00b" }},
		{"name", func(p *Project) { p.Name = "a\nb" }},
		{"name", func(p *Project) { p.Name = "a\xff" }},
		{"", func(p *Project) { p.Description = text("") }},
		{"", func(p *Project) { p.Description = text("two\nlines\t" + strings.Repeat("é", 1990)) }},
		{"description", func(p *Project) { p.Description = text(strings.Repeat("é", 2001)) }},
		{"description", func(p *Project) { p.Description = text("\x00") }},
		{"environment", func(p *Project) { p.Environment = "" }},
		{"environment", func(p *Project) { p.Environment = "9a" }},
		{"environment", func(p *Project) { p.Environment = "Prod" }},
		{"", func(p *Project) { p.Environment = "a" + strings.Repeat("_", 39) }},
		{"environment", func(p *Project) { p.Environment = "a" + strings.Repeat("_", 40) }},
		{"", func(p *Project) { p.Timezone = "America/Argentina/Buenos_Aires" }},
		{"", func(p *Project) { p.Timezone = "Etc/GMT+5" }},
		{"timezone", func(p *Project) { p.Timezone = "" }},
		{"timezone", func(p *Project) { p.Timezone = "../etc/passwd" }},
		{"timezone", func(p *Project) { p.Timezone = "Europe/Berlin " }},
		{"timezone", func(p *Project) { p.Timezone = strings.Repeat("a", 65) }},
		{"retention_days", func(p *Project) { p.RetentionDays = 0 }},
		{"", func(p *Project) { p.RetentionDays = 1 }},
		{"", func(p *Project) { p.RetentionDays = 3650 }},
		{"retention_days", func(p *Project) { p.RetentionDays = 3651 }},
		{"default_scheduler_owner", func(p *Project) { p.DefaultSchedulerOwner = "-" }},
		{"", func(p *Project) { p.AllowedSchedulers = []string{} }},
		{"", func(p *Project) { p.AllowedSchedulers = slices.Repeat([]string{"a"}, 32) }},
		{"allowed_schedulers", func(p *Project) { p.AllowedSchedulers = slices.Repeat([]string{"a"}, 33) }},
		{"allowed_schedulers", func(p *Project) { p.AllowedSchedulers = []string{"ok", "No"} }},
	} {
		n := NewProject{Slug: "shop", Name: "Shop"}
		p := n.project()
		tc.change(&p)
		err := p.Validate()
		if tc.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", p, err)
			}
			continue
		}
		code := fault.Invalid
		if tc.field == "slug" {
			code = fault.Conflict
		}
		if !fault.Is(err, code) || !strings.HasPrefix(fault.Message(err), tc.field+": ") || fault.Details(err)["field"] != tc.field {
			t.Errorf("%s of %+v: got %v", tc.field, p, err)
		}
	}
}

func TestSlugPath(t *testing.T) {
	t.Parallel()
	for slug, want := range map[string]bool{"ab": true, "a-b": true, strings.Repeat("a", 50): true,
		strings.Repeat("a", 51): false, "a": false, "": false, "a/b": false, "A1": false, "ab-": false, "a%00": false} {
		if got := ValidSlugPath(slug); got != want {
			t.Errorf("%q: got %v", slug, got)
		}
	}
}

func TestPatchKeepsWhatItDoesNotSet(t *testing.T) {
	t.Parallel()
	d := "old"
	p := Project{Slug: "shop", Name: "Shop", Description: &d, AllowedSchedulers: []string{"a"}, RetentionDays: 3}
	patch := ProjectPatch{Description: SetTo[*string](nil), AllowedSchedulers: SetTo[[]string](nil), RetentionDays: SetTo(9)}
	got := patch.Apply(p)
	if got.Slug != "shop" || got.Name != "Shop" || got.Description != nil || got.AllowedSchedulers != nil || got.RetentionDays != 9 {
		t.Errorf("%+v", got)
	}
	if want := []string{"description", "retention_days", "allowed_schedulers"}; !slices.Equal(patch.fields(), want) {
		t.Errorf("fields %v", patch.fields())
	}
}

func TestParseBearer(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", " BEARER \t abc ": "abc", "Bearer a b": "a b",
		"": "", "Bearer": "", "Bearer ": "", "Bearerabc": "", "Basic abc": "", "abc": "",
		"Bearer " + strings.Repeat("x", maxCredential): strings.Repeat("x", maxCredential),
		"Bearer " + strings.Repeat("x", 513):           "",
	} {
		got, ok := ParseBearer(header)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %v", header, got, ok)
		}
	}
}

func TestIDRange(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ prefix, low, high string }{
		{"3f2b", "3f2b0000-0000-0000-0000-000000000000", "3f2bffff-ffff-ffff-ffff-ffffffffffff"},
		{"3F2b8", "3f2b8000-0000-0000-0000-000000000000", "3f2b8fff-ffff-ffff-ffff-ffffffffffff"},
		{"3f2b8c1e-6a", "3f2b8c1e-6a00-0000-0000-000000000000", "3f2b8c1e-6aff-ffff-ffff-ffffffffffff"},
		{"3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01", "3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01", "3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"},
	} {
		low, high, ok := IDRange(tc.prefix)
		if !ok || low.String() != tc.low || high.String() != tc.high {
			t.Errorf("%s: %s..%s, %v", tc.prefix, low, high, ok)
		}
	}
	for _, bad := range []string{"", "3f2", "3-f-2", "3f2g", "3f2b8c1e6a4d4e7f9b102c5d7e8f9a011", "3f2b "} {
		if _, _, ok := IDRange(bad); ok {
			t.Errorf("%q is a prefix", bad)
		}
	}
}
