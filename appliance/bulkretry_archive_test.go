package appliance_test

import (
	"net/http"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
)

// An archived project takes no commands though its agents still have sessions for a moment: its bulk retries wait, say why
// and do not spin; once it is active again they go on.
func TestBulkRetryWaitsForAnArchivedProject(t *testing.T) {
	clock := appliancetest.NewJump(0)
	s := appliancetest.Start(t, appliancetest.WithClock(clock), configure(func(c *config.Config) {
		unlimited(c)
		c.Agent.BulkRetryMaxInFlight, c.Agent.LongPollSessionIdle = 1, config.Duration(time.Hour)
	}))
	s.NewProject("other")
	reporter, poller := s.MintIn("other", "reporter"), s.MintIn("other", "poller")
	ws := dial(t, s.With(reporter, retrier))
	failTasks(t, ws, "t", 3, s.Now())
	must(t, ws.Close())
	lp := openLP(t, s.With(poller, func(c *agentclient.Config) { c.RetryContracts = []string{"celery"} }))
	online(t, lp)
	if _, err := lp.Poll(t.Context(), 0, 1); err != nil { // states the contract
		t.Fatal(err)
	}
	path := "/projects/other/bulk-retry-requests"
	var b bulkRetry
	s.Do("POST", path, map[string]any{"filter": map[string]any{"engine": "celery"}}, http.StatusAccepted, &b)
	s.Eventually("the first child", func() bool { return s.Count("SELECT count(*) FROM commands WHERE parent_no IS NOT NULL") == 1 })
	s.Archive("other")
	clock.By(2 * time.Minute) // nobody took the child in its time: its task waits again
	s.Eventually("the reason", func() bool {
		return s.Count("SELECT count(*) FROM bulk_retries WHERE wait_reason = 'the project is archived'") == 1
	})
	s.Activate("other")
	s.Eventually("the next child", func() bool { return s.Count("SELECT count(*) FROM commands WHERE parent_no IS NOT NULL") > 1 })
}
