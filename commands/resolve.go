package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"sort"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// scope is a client bound to one project.
type scope struct {
	*client
	slug string
}

// unknownProjectError is a "not found" whose reason is the project itself.
type unknownProjectError struct {
	slug string
	err  error
}

func (e *unknownProjectError) Error() string { return fmt.Sprintf("no project %q", e.slug) }
func (e *unknownProjectError) Unwrap() error { return e.err }

func isUnknownProject(err error) bool {
	var unknown *unknownProjectError
	return errors.As(err, &unknown)
}

// do is client.do, and tells a missing project from a missing record in it.
func (s *scope) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	return s.blameProject(ctx, s.client.do(ctx, method, path, query, body, out))
}

func (s *scope) get(ctx context.Context, path string, query url.Values, out any) error {
	return s.do(ctx, http.MethodGet, path, query, nil, out)
}

func (s *scope) post(ctx context.Context, path string, body, out any) error {
	return s.do(ctx, http.MethodPost, path, nil, body, out)
}

// blameProject asks for the project after a "not found": the answer does not say which part of the path was not.
func (s *scope) blameProject(ctx context.Context, err error) error {
	if fault.Is(err, fault.NotFound) && fault.Is(s.client.get(ctx, s.path(), nil, nil), fault.NotFound) {
		return &unknownProjectError{slug: s.slug, err: err}
	}
	return err
}

// path joins segments below the project, each escaped.
func (s *scope) path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/projects/" + url.PathEscape(s.slug))
	for _, seg := range segments {
		b.WriteString("/" + url.PathEscape(seg))
	}
	return b.String()
}

// newScope makes the client and settles the project: the flag, SIGNALBOX_PROJECT, else the only or oldest project.
func (o *options) newScope(ctx context.Context) (*scope, error) {
	c, err := o.newClient()
	if err != nil {
		return nil, err
	}
	slug := o.project
	if slug == "" {
		slug = o.stdio.env("SIGNALBOX_PROJECT")
	}
	if slug != "" {
		return &scope{client: c, slug: slug}, nil
	}
	projects, err := listProjects(ctx, c, false)
	if err != nil {
		return nil, err
	}
	if len(projects) == 0 {
		return nil, &apiError{
			fault:    fault.New(fault.NotFound, "there is no project yet; create one with `signalbox projects create SLUG`"),
			wireCode: string(fault.NotFound),
		}
	}
	sort.SliceStable(projects, func(i, j int) bool { return projects[i].V.CreatedAt.Before(projects[j].V.CreatedAt) })
	if len(projects) > 1 && o.stdio.IsTerminal {
		o.out.say("using project %s, the oldest of %d; choose with --project", projects[0].V.Slug, len(projects))
	}
	return &scope{client: c, slug: projects[0].V.Slug}, nil
}

func listProjects(ctx context.Context, c *client, archived bool) ([]record[project], error) {
	query := url.Values{}
	if archived {
		query.Set("include_archived", "true")
	}
	var projects []record[project]
	if err := c.get(ctx, "/projects", query, &projects); err != nil {
		return nil, err
	}
	return projects, nil
}

var hexPrefix = regexp.MustCompile(`^[0-9a-fA-F]{4,32}$`)

// fullID returns the canonical text of a complete UUID, with or without hyphens.
func fullID(arg string) (string, bool) {
	bare := strings.ReplaceAll(arg, "-", "")
	if len(bare) != 32 || !hexPrefix.MatchString(bare) {
		return "", false
	}
	id, err := uuid.Parse(bare)
	if err != nil {
		return "", false
	}
	return id.String(), true
}

// hasName are the kinds of things that have a name beside their id.
var hasName = map[string]bool{"agent": true, "schedule": true}

// kindWord is what people call a kind: what the API calls a failure is a group of them.
func kindWord(kind string) string {
	if kind == "failure" {
		return "group of failures"
	}
	return kind
}

// resolve turns a unique id prefix into the full id. Kind is agent, command, failure, schedule or apikey; agents and schedules
// may also be named.
func (s *scope) resolve(ctx context.Context, kind, arg string) (string, error) {
	return s.resolveAs(ctx, kind, kindWord(kind), arg)
}

// resolveAs is resolve with the word that people call the kind.
func (s *scope) resolveAs(ctx context.Context, kind, word, arg string) (string, error) {
	if id, ok := fullID(arg); ok {
		return id, nil
	}
	if !hasName[kind] && !hexPrefix.MatchString(strings.ReplaceAll(arg, "-", "")) {
		return "", usagef("%q is not an id: give a UUID or at least its first four hex digits", arg)
	}
	if arg == "" {
		return "", usagef("%s: name or id is empty", kind)
	}
	var answer struct {
		IDs []string `json:"ids"`
	}
	if err := s.get(ctx, s.path("resolve"), url.Values{"kind": {kind}, "prefix": {arg}}, &answer); err != nil {
		return "", err
	}
	switch len(answer.IDs) {
	case 0:
		return "", notFound("no %s %q in project %s", word, arg, s.slug)
	case 1:
		return answer.IDs[0], nil
	}
	if kind == "agent" {
		return s.pickAgent(ctx, arg, answer.IDs)
	}
	return "", ambiguous(word, arg, answer.IDs)
}

// pickAgent settles an argument that is a prefix of several ids, or a prefix of one and the name of another: the exact
// name wins.
func (s *scope) pickAgent(ctx context.Context, arg string, ids []string) (string, error) {
	var agents []record[agentRow]
	if err := s.get(ctx, s.path("agents"), nil, &agents); err != nil {
		return "", err
	}
	names := make(map[string]string, len(agents))
	for _, a := range agents {
		names[a.V.ID] = a.V.Name
	}
	candidates := make([]string, 0, len(ids))
	for _, id := range ids {
		if names[id] == arg {
			return id, nil
		}
		candidates = append(candidates, strings.TrimSpace(id+" "+names[id]))
	}
	return "", ambiguous("agent", arg, candidates)
}

func ambiguous(kind, arg string, candidates []string) error {
	return usagef("%s %q is ambiguous; it could be\n  %s", kind, arg, strings.Join(candidates, "\n  "))
}

func notFound(format string, args ...any) error {
	return &apiError{fault: fault.New(fault.NotFound, format, args...), wireCode: string(fault.NotFound)}
}

// theAgent resolves --agent. Without it, the only agent of the project is meant.
func (s *scope) theAgent(ctx context.Context, arg string) (string, error) {
	if arg != "" {
		return s.resolve(ctx, "agent", arg)
	}
	var agents []record[agentRow]
	if err := s.get(ctx, s.path("agents"), nil, &agents); err != nil {
		return "", err
	}
	switch len(agents) {
	case 0:
		return "", notFound("project %s has no agent; create one with `signalbox agents mint NAME`", s.slug)
	case 1:
		return agents[0].V.ID, nil
	}
	names := make([]string, 0, len(agents))
	for _, a := range agents {
		names = append(names, fmt.Sprintf("%s (%s)", a.V.Name, a.V.State))
	}
	return "", usagef("--agent: the project has %d agents, name one of\n  %s", len(agents), strings.Join(names, "\n  "))
}

// getter is a client, or one bound to a project.
type getter interface {
	get(ctx context.Context, path string, query url.Values, out any) error
}

// list pages through a route until limit rows are there or no more exist. It returns the cursor after the last page.
func list[T any](ctx context.Context, c getter, path string, query url.Values, limit int) ([]record[T], *string, error) {
	const largestPage = 500
	rows := []record[T]{}
	var cursor *string
	for len(rows) < limit {
		query.Set("limit", fmt.Sprint(min(limit-len(rows), largestPage)))
		if cursor != nil {
			query.Set("cursor", *cursor)
		}
		var p page[T]
		if err := c.get(ctx, path, query, &p); err != nil {
			return nil, nil, err
		}
		rows = append(rows, p.Items...)
		// A server that repeats its cursor, or sends one with an empty page, would keep us here for ever.
		repeated := cursor != nil && p.NextCursor != nil && *cursor == *p.NextCursor
		cursor = p.NextCursor
		if cursor == nil || repeated || len(p.Items) == 0 {
			break
		}
	}
	if len(rows) > limit {
		rows = rows[:limit]
	}
	return rows, cursor, nil
}
