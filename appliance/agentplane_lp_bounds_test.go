package appliance_test

import (
	"net/http"
	"strings"
	"testing"

	"signalbox/appliance/appliancetest"
)

// A HEAD has no room for commands, so it must not claim any.
func TestHeadClaimsNothing(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	cmd := s.Issue(m, "restart-worker", restartFields())
	before := s.State()
	r := request(t, s, "HEAD", commandsPath+"?wait=0", "", "Authorization", bearer(m), noncePath, lp.Nonce)
	if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "GET" {
		t.Errorf("answered %d, Allow %q", r.status, r.header.Get("Allow"))
	}
	s.Unchanged(before)
	got, err := lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, cmd.ID)
}

// A nonce stays in memory and in the ledger, so it has a limit.
func TestLongNonce(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	probe := commandsPath + "?wait=0&max_frames=0"
	wantValidation(t, request(t, s, "GET", probe, "", "Authorization", bearer(m), noncePath, strings.Repeat("n", 129)))
	if r := request(t, s, "GET", probe, "", "Authorization", bearer(m), noncePath, strings.Repeat("n", 128)); r.status != http.StatusOK {
		t.Errorf("128 bytes: answered %d %s", r.status, r.body)
	}
}

// Uploads of tiny values take many times their length in memory, so a body holds little beside its frames.
func TestUploadOfTinyValues(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	tiny := strings.Repeat("1,", 5000) + "1"
	for name, body := range map[string]string{"beside the frames": `{"frames":["x"],"more":[` + tiny + `]}`, "as frames": `{"frames":[` + tiny + `]}`} {
		t.Run(name, func(t *testing.T) {
			wantValidation(t, request(t, s, "POST", eventsPath, body, "Authorization", bearer(m), noncePath, "n"))
		})
	}
	ok := request(t, s, "POST", eventsPath, `{"frames":["x"],"more":[1,2,3]}`, "Authorization", bearer(m), noncePath, "n")
	if ok.status != http.StatusOK {
		t.Errorf("a few more values: answered %d %s", ok.status, ok.body)
	}
}
