package explain

import (
	"strings"
	"testing"

	"signalbox/appliance/room"
)

func TestDeaf(t *testing.T) {
	t.Parallel()
	plaza := &room.Room{Name: "plaza"}
	open := &room.Agent{Name: "bot", OwnerName: "olga"}
	closed := &room.Agent{Name: "bot", OwnerName: "olga", Policy: room.OwnerOnly()}
	some := &room.Agent{Name: "bot", Policy: &room.Policy{Rules: []room.Rule{{Users: room.Selector{IDs: []string{"x"}}}}}}
	passive := &room.Agent{Name: "bot", Profile: room.Profile{ConnectionModel: room.SessionPassive}}
	live := Connection{Attached: true, Covers: true}
	for _, tt := range []struct {
		name     string
		h        Hearing
		codes    string
		reactsTo string
		says     string
	}{
		{"hears all", Hearing{open, plaza, true, []Connection{live}}, "", ByEverybody, ""},
		{"owner-only", Hearing{closed, plaza, true, []Connection{live}}, DeafOwnerOnly, ByOwner,
			"only olga can address it; open it to everybody with: signalbox roomagents policy bot --open"},
		{"a policy", Hearing{some, plaza, true, []Connection{live}}, DeafPolicy, BySome, "signalbox roomagents policy bot"},
		{"not in the room", Hearing{open, plaza, false, []Connection{live}}, DeafNotMember, ByNobody, "signalbox rooms invite plaza bot"},
		{"in no room", Hearing{open, nil, false, []Connection{{Attached: true}}}, DeafNotMember, ByNobody, "in no room"},
		{"not connected", Hearing{closed, plaza, true, nil}, DeafNotConnected + " " + DeafOwnerOnly, ByNobody, "no live connection"},
		{"detached", Hearing{open, plaza, true, []Connection{{Covers: true}}}, DeafDetached, ByNobody, "stream attached"},
		{"no claim", Hearing{open, plaza, true, []Connection{{Attached: true}}}, DeafNoClaim, ByNobody, "have not claimed room plaza"},
		{"no claim anywhere", Hearing{open, nil, true, []Connection{{Attached: true}}}, DeafNoClaim, ByNobody, "have not claimed any room"},
		{"a detached sibling covers", Hearing{open, plaza, true, []Connection{{Attached: true}, {Covers: true}}}, DeafNoClaim, ByNobody, ""},
		{"filtered", Hearing{open, plaza, true, []Connection{{Attached: true, Covers: true, Addressed: true}}}, DeafFilter, ByEverybody, "!reset"},
		{"one of two filtered", Hearing{open, plaza, true, []Connection{{Attached: true, Covers: true, Addressed: true}, live}}, "", ByEverybody, ""},
		{"polls by hand", Hearing{passive, plaza, true, nil}, DeafManualPoll, ByNobody, "asks"},
		{"a passive one that listens after all", Hearing{passive, plaza, true, []Connection{live}}, "", ByEverybody, ""},
	} {
		reasons, to := Deaf(tt.h)
		var codes, texts []string
		for _, r := range reasons {
			codes, texts = append(codes, r.Code), append(texts, r.Text)
		}
		if got := strings.Join(codes, " "); got != tt.codes || to != tt.reactsTo || !strings.Contains(strings.Join(texts, "\n"), tt.says) {
			t.Errorf("%s: %q reacting to %s: %q, want %q reacting to %s", tt.name, got, to, texts, tt.codes, tt.reactsTo)
		}
	}
}
