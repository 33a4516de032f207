package agentconn

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("f%d", i)
	}
	return names
}

func headerOf(name string, values []string) http.Header {
	h := http.Header{}
	for _, v := range values {
		h.Add(name, v)
	}
	return h
}

// Agent protocol F.1, X-Z4J-Runtime-Features.
func TestRuntimeFeatures(t *testing.T) {
	long := strings.Repeat("x", 65)
	for _, c := range []struct {
		name    string
		values  []string
		want    []string
		present bool
	}{
		{"absent", nil, nil, false},
		{"empty", []string{""}, []string{}, true},
		{"blanks", []string{" , ,"}, []string{}, true},
		{"one", []string{"a"}, []string{"a"}, true},
		{"trimmed", []string{" a ,\tb "}, []string{"a", "b"}, true},
		{"each once", []string{"a,b,a"}, []string{"a", "b"}, true},
		{"two headers", []string{"a,b", "c"}, []string{"a", "b", "c"}, true},
		{"64 characters", []string{long[:64]}, []string{long[:64]}, true},
		{"65 characters are skipped", []string{"a," + long + ",b"}, []string{"a", "b"}, true},
		{"64 names", []string{strings.Join(numbered(64), ",")}, numbered(64), true},
		{"the 65th is left out", []string{strings.Join(numbered(65), ",")}, numbered(64), true},
		{"skipped names do not count", []string{long + ",," + strings.Join(numbered(64), ",")}, numbered(64), true},
	} {
		got, present := runtimeFeatures(headerOf(headerFeatures, c.values))
		if present != c.present || !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %q, %v, want %q, %v", c.name, got, present, c.want, c.present)
		}
	}
}

// Agent protocol F.1, X-Z4J-Retry-Contracts: one malformed pair voids the header.
func TestRetryContracts(t *testing.T) {
	pairs := func(n int) string { return strings.Join(numbered(n), "=1,") + "=1" }
	for _, c := range []struct {
		name   string
		values []string
		want   []string
	}{
		{"absent", nil, nil},
		{"empty", []string{""}, nil},
		{"blank", []string{"  "}, nil},
		{"one", []string{"celery=1"}, []string{"celery"}},
		{"blanks around", []string{" celery = 1 , rq=1"}, []string{"celery", "rq"}},
		{"each once", []string{"celery=1,celery=1"}, []string{"celery"}},
		{"two headers", []string{"celery=1", "rq=1"}, []string{"celery", "rq"}},
		{"no version", []string{"celery"}, nil},
		{"empty version", []string{"celery="}, nil},
		{"version 2", []string{"celery=2"}, nil},
		{"version 01", []string{"celery=01"}, nil},
		{"version 1=1", []string{"celery=1=1"}, nil},
		{"no engine", []string{"=1"}, nil},
		{"one bad pair", []string{"celery=1,rq=2"}, nil},
		{"trailing comma", []string{"celery=1,"}, nil},
		{"bad pair in a second header", []string{"celery=1", "x"}, nil},
		{"64 characters", []string{strings.Repeat("x", 64) + "=1"}, []string{strings.Repeat("x", 64)}},
		{"65 characters", []string{"celery=1," + strings.Repeat("x", 65) + "=1"}, nil},
		{"64 pairs", []string{pairs(64)}, numbered(64)},
		{"65 pairs", []string{pairs(65)}, nil},
	} {
		if got := retryContracts(headerOf(headerRetry, c.values)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func FuzzRetryContracts(f *testing.F) {
	f.Add("celery=1,rq=1")
	f.Add("=1,")
	f.Fuzz(func(t *testing.T, text string) {
		engines := retryContracts(http.Header{headerCanonical(headerRetry): {text}})
		if len(engines) > maxHeaderNames {
			t.Fatalf("%d engines", len(engines))
		}
		for _, e := range engines {
			if e == "" || strings.TrimSpace(e) != e || !strings.Contains(text, e) {
				t.Fatalf("engine %q of %q", e, text)
			}
		}
	})
}

func headerCanonical(name string) string { return http.CanonicalHeaderKey(name) }

func TestQueryInt(t *testing.T) {
	for query, want := range map[string]int{"": 30, "wait=0": 0, "wait=60": 60, "wait=1&wait=2": 2, "other=7": 30, "wait=+5": -1,
		"wait=": -1, "wait=x": -1, "wait=-1": -1, "wait=61": -1, "wait=1.0": -1, "wait=1e1": -1, "wait=99999999999999999999": -1} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := queryInt(q, "wait", 30, 0, 60)
		if (err != nil) != (want < 0) || (err == nil && got != want) {
			t.Errorf("%q: %d, %v, want %d", query, got, err, want)
		}
	}
}

func TestSkew(t *testing.T) {
	for version, want := range map[string]bool{"1.13.0": false, "1.13": false, "1.12.9": false, "1.13.0-rc1": false, "0.0.0": false,
		"1.11.0": true, "1.14.0": true, "2.13.0": true, "0.13.0": true, "": true, "x": true, "1": true, "1.x": true} {
		if got := skewed(version, "1.13.0"); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}

func TestCutText(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"äöüß", 3, "äöü"}, {"abc", 0, ""}} {
		if got := cutText(c.text, c.n); got != c.want {
			t.Errorf("%q cut to %d: %q", c.text, c.n, got)
		}
	}
	if clip("", 3) != nil || *clip("abcd", 3) != "abc" {
		t.Error("clip")
	}
}
