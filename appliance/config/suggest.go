package config

import (
	"fmt"
	"slices"
	"strings"
)

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// matches reports whether name is one of patterns, where a trailing * stands for any ending.
func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if prefix, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, prefix) || p == name {
			return true
		}
	}
	return false
}

// suggest returns "; did you mean X?" for the nearest candidate, or nothing when none is near.
func suggest(name string, candidates []string) string {
	best, at := "", len(name)/2+1
	for _, c := range candidates {
		if d := distance(name, c, at); d < at {
			best, at = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// suggestPath looks for a TOML path. A key that only lost its section, or got a wrong one, is found by its last part.
func suggestPath(path string, keys []binding) string {
	last := path[strings.LastIndexByte(path, '.')+1:]
	var paths []string
	for _, k := range keys {
		if k.Name() == last {
			return fmt.Sprintf("; did you mean %s?", k.Path)
		}
		if s := k.Section(); path == last && s != "" && !slices.Contains(paths, s) {
			paths = append(paths, s)
		}
		paths = append(paths, k.Path)
	}
	if s := suggest(path, paths); s != "" || path == last {
		return s
	}
	return suggest(last, paths)
}

// maxSuggestLen bounds the work spent on a stranger's name.
const maxSuggestLen = 128

// distance is the Levenshtein distance of a and b, or limit when it is at least that.
func distance(a, b string, limit int) int {
	if len(a) > maxSuggestLen || len(b) > maxSuggestLen || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return min(row[len(b)], limit)
}
