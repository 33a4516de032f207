package api

import (
	"encoding/json"
	"net/http"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
)

// auditPublic is one row of the audit log (agent protocol H.7).
type auditPublic struct {
	ID         string          `json:"id"`
	ProjectID  *string         `json:"project_id"`
	UserID     *string         `json:"user_id"`
	Action     string          `json:"action"`
	TargetType string          `json:"target_type"`
	TargetID   *string         `json:"target_id"`
	Result     string          `json:"result"`
	Outcome    string          `json:"outcome"`
	EventID    string          `json:"event_id"`
	Metadata   json.RawMessage `json:"metadata"`
	SourceIP   *string         `json:"source_ip"`
	UserAgent  *string         `json:"user_agent"`
	OccurredAt stamp           `json:"occurred_at"`
}

func showAudit(r *audit.Record) auditPublic {
	out := auditPublic{ID: r.ID().String(), UserID: r.UserID, Action: r.Action, TargetType: r.TargetType,
		TargetID: r.TargetID, Result: r.Result, Outcome: r.Outcome, EventID: r.EventID.String(),
		Metadata: raw(r.Metadata), SourceIP: r.SourceIP, UserAgent: r.UserAgent, OccurredAt: stamp(r.At)}
	if r.ProjectID != nil {
		id := r.ProjectID.String()
		out.ProjectID = &id
	}
	return out
}

// Bounds of the audit filter (agent protocol H.7).
const (
	maxActionPrefix = 80
	maxOutcomeLen   = 20
	maxUserLen      = 64
)

// listAudit serves one project's rows, or on the global route all of them and those without a project.
func (a *API) listAudit(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := audit.Filter{ProjectNo: c.project.No, ActionPrefix: q.text("action_prefix", maxActionPrefix),
		Outcome: q.text("outcome", maxOutcomeLen), UserID: q.text("user_id", maxUserLen), Since: q.time("since")}
	page, form := a.page(q), exportForm(q, auditColumns)
	if err := q.err(); err != nil {
		return err
	}
	rows := lister[audit.Record, auditPublic]{
		read: func(p agent.Page) ([]audit.Record, error) {
			before, _ := audit.NoOf(p.After.ID) // an id that is not of a row is the first page
			return a.Audit.List(c.Context(), f, before, p.Limit)
		},
		show:  showAudit,
		place: func(r *audit.Record) agent.Cursor { return agent.Cursor{At: r.At, ID: r.ID()} },
	}
	if form != nil {
		return a.export(w, c, "audit", form, rows.pages())
	}
	return serveList(a, w, c, page, rows)
}

type verdictPublic struct {
	OK       bool          `json:"ok"`
	Checked  int64         `json:"checked"`
	FirstSeq *int64        `json:"first_seq"`
	LastSeq  *int64        `json:"last_seq"`
	Broken   *brokenPublic `json:"broken"`
}

type brokenPublic struct {
	Seq    int64        `json:"seq"`
	Reason audit.Reason `json:"reason"`
}

// errVerifying answers while another verification reads the log.
var errVerifying = &fault.Error{Code: fault.Unavailable, Msg: "the audit log is being verified already",
	Retry: 5 * time.Second}

func (a *API) verifyAudit(w http.ResponseWriter, c *call) error {
	if !a.verify.TryLock() {
		return errVerifying
	}
	defer a.verify.Unlock()
	rep, err := a.Audit.Verify(c.Context())
	if err != nil {
		return err
	}
	out := verdictPublic{OK: rep.OK(), Checked: rep.Checked}
	if rep.FirstNo != 0 {
		out.FirstSeq, out.LastSeq = &rep.FirstNo, &rep.LastNo
	}
	if rep.Broken != nil {
		out.Broken = &brokenPublic{rep.Broken.No, rep.Broken.Reason}
	}
	return reply(w, c, http.StatusOK, out)
}
