package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	ways "signalbox/appliance/archive/route"
)

func (a *API) listRoutes(w http.ResponseWriter, c *call) error {
	q := c.query()
	removed := q.flag("include_removed", false)
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	list, err := s.Routes.List(c.Context(), removed)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(list, showRoute))
}

// replyRoute answers with a route. With a wait, it waits as long for the verdict of the probe that is under way.
func (a *API) replyRoute(w http.ResponseWriter, c *call, status int, name string, wait time.Duration) error {
	s, err := a.archive()
	if err != nil {
		return err
	}
	v, updates, err := s.Routes.Show(c.Context(), name)
	if err != nil {
		return err
	}
	if wait > 0 && probing(&v) {
		watch := a.Hub.Watch(archive.RouteKey(v.No))
		defer watch.Stop()
		timer := a.opts.Clock.NewTimer(wait)
		defer timer.Stop()
		for over := false; probing(&v) && !over; {
			if v, updates, err = s.Routes.Show(c.Context(), v.ID.String()); err != nil {
				return err
			}
			if !probing(&v) {
				break
			}
			select {
			case <-watch.C():
			case <-timer.C():
				over = true
			case <-c.Context().Done():
				return context.Cause(c.Context())
			}
		}
	}
	return reply(w, c, status, struct {
		routePublic
		Updates []routeUpdatePublic `json:"updates"` // of the source, then of the target; newest first
	}{showRoute(&v), each(updates, showRouteUpdate)})
}

// probing tells whether a verdict is to come: a side that is online owes an answer.
func probing(v *ways.View) bool {
	owes := func(d *ways.Daemon, s *ways.Side) bool {
		switch {
		case !d.Online || s == nil:
			return false
		case !s.Accepted:
			return s.Error == nil // else it refused
		}
		return s.LastSequence <= s.FreshAfter || s.State == pb.RouteState_ROUTE_STATE_PROVISIONING || s.State == pb.RouteState_ROUTE_STATE_PROBING
	}
	return v.RemovedAt.IsZero() && !v.Broken && (owes(&v.Source, v.SourceSide) || owes(&v.Target, v.TargetSide))
}

func (a *API) getRoute(w http.ResponseWriter, c *call) error {
	q := c.query()
	wait := q.wait()
	if err := q.err(); err != nil {
		return err
	}
	return a.replyRoute(w, c, http.StatusOK, c.PathValue("id"), wait)
}

func (a *API) createRoute(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("name", "kind", "source", "target", "source_root", "target_root", "shared_marker")
	n := ways.New{Name: b.required("name"), Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, SourceRoot: orEmpty(b.text("source_root")),
		TargetRoot: orEmpty(b.text("target_root")), SharedMarker: orEmpty(b.text("shared_marker"))}
	if word := b.text("kind"); word != nil {
		if n.Kind = pb.RouteKind(enumValue(n.Kind.Descriptor(), *word)); n.Kind == 0 {
			b.bad("kind", "must be shared_directory")
		}
	}
	for _, end := range []struct {
		name string
		to   *uuid.UUID
	}{{"source", &n.Source}, {"target", &n.Target}} {
		if id := b.id(end.name); id != nil {
			*end.to = *id
		} else if !b.has(end.name) {
			b.bad(end.name, "is required")
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	id, err := s.Routes.Create(c.Context(), n)
	if err != nil {
		return err
	}
	a.recordAct(c, "route.create", "route", id.String(), map[string]any{"name": n.Name})
	return a.replyRoute(w, c, http.StatusCreated, id.String(), 0)
}

func (a *API) testRoute(w http.ResponseWriter, c *call) error {
	q := c.query()
	wait := q.wait()
	if err := q.err(); err != nil {
		return err
	}
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	if err := s.Routes.Test(c.Context(), id); err != nil {
		return err
	}
	return a.replyRoute(w, c, http.StatusAccepted, id.String(), wait)
}

func (a *API) removeRoute(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	if err := s.Routes.Remove(c.Context(), id, true); err != nil {
		return err
	}
	a.recordAct(c, "route.remove", "route", id.String(), nil)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
