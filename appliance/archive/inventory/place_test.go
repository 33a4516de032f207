package inventory

import "testing"

func FuzzPageToken(f *testing.F) {
	for _, s := range []string{"", "x", "NQphIG5hbWU", "NQ", "MDA1CmE", "KzUKYQ", "LTUKYQ", "NQphCmI", "////", Place{Name: "\xff", No: -1}.token()} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		p, err := parsePlace(token)
		if err != nil || token == "" {
			return
		}
		if p.token() != token {
			t.Errorf("%q reads as %+v, which is %q", token, p, p.token())
		}
	})
}

func TestPageTokenHoldsAnyName(t *testing.T) {
	t.Parallel()
	for _, want := range []Place{{Name: "a", No: 1}, {Name: "", No: 7}, {Name: "two\nlines", No: 1 << 40}, {Name: "\xff\x00", No: 3}} {
		if got, err := parsePlace(want.token()); err != nil || got != want {
			t.Errorf("%+v comes back as %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"x", "!", "MDA1CmE", "KzUKYQ"} { // "005\na" and "+5\na" were never given out
		if _, err := parsePlace(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
