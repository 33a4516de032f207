package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// itemLine is what these tests read of a record of a room.
type itemLine struct {
	Type, Cursor, Reason string
	Item                 itemPublic
}

func (g *rig) items(path string) (bodies string, all []itemLine) {
	g.t.Helper()
	a := g.ok(http.StatusOK, "GET", path, "", nil)
	var words []string
	for text := range strings.Lines(a.body) {
		var l itemLine
		g.must(json.Unmarshal([]byte(text), &l))
		all = append(all, l)
		switch {
		case l.Type == "gap":
			words = append(words, "gap:"+l.Reason)
		default:
			words = append(words, l.Item.Body)
		}
	}
	return strings.Join(words, " "), all
}

func TestRoomStream(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	var want []string
	for i := range 2*streamPage + 3 {
		want = append(want, fmt.Sprint("m-", i))
		g.said(p, want[i], fmt.Sprint("r-", i))
	}
	base := "/rooms/" + p.room.ID + "/messages/stream?follow=false"
	got, all := g.items(base + "&cursor=0")
	if got != strings.Join(want, " ") || all[0].Type != "item" || all[0].Cursor != fmt.Sprint("01234567.", all[0].Item.Position) {
		t.Fatalf("oldest first: %s; first %+v", got, all[0])
	}
	for query, wanted := range map[string]string{
		"":                                  "",
		"&cursor=" + all[streamPage].Cursor: strings.Join(want[streamPage+1:], " "),
		"&last=2":                           strings.Join(want[len(want)-2:], " "),
		"&last=100000":                      strings.Join(want, " "),
		"&last=1&cursor=" + all[len(all)-3].Cursor: strings.Join(want[len(want)-2:], " "),
		"&cursor=fedcba98.7":                       "gap:epoch " + strings.Join(want, " "),
		"&cursor=01234567.99999":                   "gap:ahead",
	} {
		if got, _ := g.items(base + query); got != wanted {
			t.Errorf("%q: %.80s…, want %.80s…", query, got, wanted)
		}
	}
	a := g.ok(http.StatusOK, "GET", base, "", nil)
	if head := a.header.Get("X-Signalbox-Cursor"); head != all[len(all)-1].Cursor {
		t.Errorf("from now on begins at %q, want %q", head, all[len(all)-1].Cursor)
	}
	var page struct {
		Items []itemPublic
		Head  int64
		More  bool
	}
	g.ok(http.StatusOK, "GET", "/rooms/"+p.room.ID+"/messages?after=3&limit=2", "", &page)
	if len(page.Items) != 2 || page.Items[0].Position != 4 || !page.More || page.Head != all[len(all)-1].Item.Position {
		t.Errorf("page after 3: %+v", page)
	}
	g.ok(http.StatusOK, "GET", "/rooms/"+p.room.ID+"/messages?before=3", "", &page)
	if len(page.Items) != 2 || page.Items[1].Position != 2 || page.More {
		t.Errorf("page before 3: %+v", page)
	}
}

// TestRoomFollow follows a room: each post arrives by the wake of its commit, silence brings a heartbeat, and the stream
// of a room that is deleted is cut off.
func TestRoomFollow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	s := g.serve()
	f := g.followStream(t, s.URL, "/rooms/"+p.room.ID+"/messages/stream")
	for _, text := range []string{"one", "two"} {
		g.said(p, text, text)
		var l itemLine
		g.must(json.Unmarshal([]byte(f.next()), &l))
		if l.Item.Body != text {
			t.Errorf("woken by %+v", l)
		}
	}
	g.clock.BlockUntil(1)
	g.clock.Advance(heartbeat)
	if f.next() != "" {
		t.Error("no heartbeat")
	}
	g.ok(http.StatusNoContent, "DELETE", "/rooms/"+p.room.ID, "", nil)
	if _, err := f.read.ReadString('\n'); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream of a deleted room: %v", err)
	}
	if a := g.do(g.admin, "GET", "/rooms/"+p.room.ID+"/messages/stream?follow=false", ""); a.status != http.StatusNotFound {
		t.Errorf("a deleted room: %d", a.status)
	}
}
