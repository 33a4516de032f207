package notify

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"signalbox/appliance/fault"
)

// Bounds of what one occurrence may bring along, in characters; the key is cut to bytes.
const (
	maxTitle  = 200
	maxDetail = 1000
	maxLinks  = 12
	maxLink   = 300
	maxKey    = 200
)

// maxGroups is how many groups a rule keeps; what comes after them is counted together. So a rule sends at most one
// message more than this in its group time.
const maxGroups = 50

// Due is woken when a group or a message may be due earlier than the dispatcher sleeps.
type Due struct{}

// sample is an occurrence as a group keeps it.
type sample struct {
	Name   string            `json:"name"`
	Title  string            `json:"title"`
	Detail string            `json:"detail,omitempty"`
	At     time.Time         `json:"at"`
	Links  map[string]string `json:"links,omitempty"`
}

// index finds the rules of an occurrence without reading the database.
type index struct {
	rules atomic.Pointer[map[indexKey][]IndexRow]
	stale atomic.Bool // the rules may have changed: nobody knows whether a COMMIT happened

	mu      sync.Mutex
	changes int // transactions that changed rules, or may have
}

type indexKey struct {
	project int64
	trigger Trigger
}

// doubt says that the rules may have changed.
func (x *index) doubt() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.changes++
	x.stale.Store(true)
}

// set gives the rules as they are stored.
func (x *index) set(rows []IndexRow) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(rows)
}

// reread gives the rules of a snapshot that was taken when so many changes had come; when another has come since, it is
// dropped.
func (x *index) reread(rows []IndexRow, changes int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.changes == changes {
		x.put(rows)
	}
}

func (x *index) put(rows []IndexRow) {
	m := map[indexKey][]IndexRow{}
	for _, r := range rows {
		k := indexKey{r.ProjectNo, r.Trigger}
		m[k] = append(m[k], r)
	}
	x.rules.Store(&m)
	x.stale.Store(false)
}

// seen is how many changes have come.
func (x *index) seen() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.changes
}

func (x *index) of(project int64, t Trigger) []IndexRow {
	if m := x.rules.Load(); m != nil {
		return (*m)[indexKey{project, t}]
	}
	return nil
}

// troubles are the rules about the appliance, of all projects.
func (x *index) troubles() []IndexRow {
	var out []IndexRow
	if m := x.rules.Load(); m != nil {
		for k, rows := range *m {
			if k.trigger == SystemTrouble {
				out = append(out, rows...)
			}
		}
	}
	return out
}

// rules are those of a project about the trigger: from memory, or as the transaction reads them while nobody knows whether
// the memory is right.
func (s *Service) rules(tx CollectTx, project int64, t Trigger) ([]IndexRow, error) {
	if !s.index.stale.Load() {
		return s.index.of(project, t), nil
	}
	rows, err := tx.NotifyIndex()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(r IndexRow) bool { return r.ProjectNo != project || r.Trigger != t }), nil
}

// told reports whether a rule may fit: without one an occurrence need not be composed.
func (s *Service) told(tx CollectTx, project int64, t Trigger) (bool, error) {
	rules, err := s.rules(tx, project, t)
	return len(rules) > 0, err
}

// follow reads the rules again after a COMMIT of unknown outcome. It does nothing, and costs nothing, at any other time.
func (s *Service) follow(ctx context.Context) error {
	for s.index.stale.Load() {
		changes := s.index.seen()
		var rows []IndexRow
		err := s.st.View(ctx, func(tx ReadTx) (err error) {
			rows, err = tx.NotifyIndex()
			return err
		})
		if err != nil {
			return err
		}
		s.index.reread(rows, changes)
	}
	return nil
}

// Collect counts an occurrence for every rule that it fits, inside the transaction that stores its cause. It costs one look
// into memory when no rule fits. It returns the store's errors only.
func (s *Service) Collect(tx CollectTx, o Occurrence) error {
	var text []byte
	sample := func() (_ []byte, err error) {
		if text == nil {
			text, err = o.sample()
		}
		return text, err
	}
	rules, err := s.rules(tx, o.ProjectNo, o.Trigger)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if !matches(r.Pattern, o.Name) {
			continue
		}
		if err := tx.NotifyCollect(Collected{RuleNo: r.RuleNo, Key: o.key(), Most: maxGroups, At: o.At, Sample: sample,
			Fresh: s.wakeDue}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) wakeDue() { s.hub.Wake(Due{}) }

// key is the group's; never "", which is the group of all others.
func (o *Occurrence) key() string {
	k := o.GroupKey
	if k == "" {
		k = o.Name
	}
	if k == "" {
		return "-"
	}
	return cutBytes(k, maxKey)
}

func (o *Occurrence) sample() ([]byte, error) {
	s := sample{Name: cut(o.Name, maxTitle), Title: oneLine(cut(o.Title, maxTitle)), Detail: cut(o.Detail, maxDetail), At: o.At.UTC()}
	for k, v := range o.Links {
		if len(s.Links) == maxLinks {
			break
		}
		if s.Links == nil {
			s.Links = map[string]string{}
		}
		s.Links[k] = oneLine(cut(v, maxLink))
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode an occurrence")
	}
	return text, nil
}

// cut keeps at most n characters, and makes the text valid UTF-8 without NUL.
func cut(s string, n int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	count := 0
	for i := range s {
		if count == n-1 && utf8.RuneCountInString(s[i:]) > 1 {
			return s[:i] + "…"
		}
		count++
	}
	return s
}

// cutBytes keeps at most n bytes of whole characters.
func cutBytes(s string, n int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// oneLine turns control characters into spaces, so that a text can stand in a header.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s))
}
