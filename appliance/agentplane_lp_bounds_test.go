package appliance_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
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

// An upload whose parsed form would not fit into what one may hold goes to the router in parts, in its order.
func TestUploadInParts(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	tiny := strings.Repeat("1,", 400_000) + "1"
	var all []agentclient.Outgoing
	want := ""
	for i := range 6 {
		data := `"n":` + fmt.Sprint(i)
		if i%4 != 0 {
			data += `,"args":[` + tiny + `]`
		}
		all = append(all, agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: []byte(`{"events":[{"engine":"celery",` +
			`"kind":"task.sent","task_id":"t-` + fmt.Sprint(i) + `","data":{` + data + `}}]}`)})
		want += fmt.Sprint("t-", i, " ")
	}
	up, err := lp.Upload(t.Context(), all...)
	if err != nil || up.Accepted != len(all) || up.Rejected != 0 || len(up.Errors) != 0 {
		t.Fatalf("%+v, %v", up, err)
	}
	if got := s.Text(`SELECT group_concat(task_id || ' ', '') FROM (SELECT task_id FROM events ORDER BY event_no)`); got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
}
