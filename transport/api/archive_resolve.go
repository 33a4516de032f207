package api

import (
	"context"
	"net/http"
	"strings"

	"signalbox/appliance/agent"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
)

const (
	// maxNamed is the longest name or id of the plane, in bytes.
	maxNamed = 512
	// maxJobsSearched bounds how many jobs a beginning of an id is compared with, newest first.
	maxJobsSearched = 5000
	jobSearchPage   = 500
)

// resolveArchive finds what a name, an id or a beginning of one stands for in the archive plane.
func (a *API) resolveArchive(w http.ResponseWriter, c *call) error {
	q := c.query()
	kind, text, daemon := q.oneOf("kind", "daemon", "route", "job", "command", "resource"), q.text("text", maxNamed), q.id("daemon")
	for _, name := range []string{"kind", "text"} {
		if !q.values.Has(name) {
			q.bad(name, "is required")
		}
	}
	if (kind == "resource") != q.values.Has("daemon") {
		q.bad("daemon", "is required for resources, and only there")
	}
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	m := newMatcher(text)
	ctx := c.Context()
	switch kind {
	case "daemon":
		daemons, err := s.Daemons.Daemons(ctx)
		if err != nil {
			return err
		}
		for i := range daemons {
			m.add(daemons[i].ID.String(), daemons[i].Name, daemons[i].Name)
		}
	case "route":
		routes, err := s.Routes.List(ctx, false)
		if err != nil {
			return err
		}
		for i := range routes {
			m.add(routes[i].ID.String(), routes[i].Name, routes[i].Name)
		}
	case "job":
		if err := matchJobs(ctx, s, m); err != nil {
			return err
		}
	case "command":
		if err := matchDaemonCommands(ctx, s, m); err != nil {
			return err
		}
	case "resource":
		d, err := s.Daemons.Daemon(ctx, daemon)
		if err != nil {
			return err
		}
		if err := matchResources(ctx, s, d.No, m); err != nil {
			return err
		}
	}
	return reply(w, c, http.StatusOK, struct {
		Matches []namedPublic `json:"matches"`
	}{m.matches()})
}

// matchJobs looks at jobs, newest first, by their ids alone: titles repeat.
func matchJobs(ctx context.Context, s *Archive, m *matcher) error {
	if m.hex == "" {
		return nil
	}
	cursor := ""
	for range maxJobsSearched / jobSearchPage {
		page, err := s.Jobs.List(ctx, job.Filter{}, cursor, jobSearchPage)
		if err != nil {
			return err
		}
		for i := range page.Jobs {
			m.add(page.Jobs[i].ID.String(), page.Jobs[i].Title)
		}
		if cursor = page.Next; cursor == "" || len(m.exact) > 0 || len(m.begins) >= maxMatches {
			return nil
		}
	}
	return nil
}

// matchDaemonCommands looks at the ids of commands to daemons, of whatever age.
func matchDaemonCommands(ctx context.Context, s *Archive, m *matcher) error {
	low, high, ok := agent.IDRange(m.text)
	if !ok {
		return nil
	}
	ids, err := s.Commands.Find(ctx, low, high)
	for _, id := range ids {
		m.add(id.String(), "")
	}
	return err
}

// matchResources looks at what is known of a daemon's resources: by id, name, part of the name, or beginning of a digest.
func matchResources(ctx context.Context, s *Archive, daemonNo int64, m *matcher) error {
	token := ""
	text := strings.ToLower(m.text)
	for {
		page, err := s.Inventory.Resources(ctx, inventory.Filter{DaemonNo: daemonNo}, token, inventory.MaxPage)
		if err != nil {
			return err
		}
		for i := range page.Resources {
			r := &page.Resources[i]
			ref := r.Summary.GetResource()
			id, name, identity := ref.GetResourceId(), inventory.NameOf(r.Summary), ref.GetIdentity()
			hit := namedPublic{id, name}
			switch {
			case id == m.text || name == m.text || text == identity.GetInfohashV1() || text == identity.GetInfohashV2():
				m.exact = append(m.exact, hit)
			case len(m.begins) < maxMatches && (strings.Contains(strings.ToLower(name), text) || strings.HasPrefix(id, m.text) ||
				m.hex != "" && (strings.HasPrefix(identity.GetInfohashV1(), m.hex) || strings.HasPrefix(identity.GetInfohashV2(), m.hex))):
				m.begins = append(m.begins, hit)
			}
		}
		if token = page.Next; token == "" || len(m.exact) >= maxMatches {
			return nil
		}
	}
}
