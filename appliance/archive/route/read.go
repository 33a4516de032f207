package route

import (
	"context"
	"strings"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// View is a route as operators see it.
type View struct {
	Route
	Verdict    Verdict
	SourceSide *Side // nil until its daemon was asked
	TargetSide *Side
}

// ReadyState is the state of the route as a word of the protocol.
func (v View) ReadyState() string { return stateName(v.Verdict.State) }

func view(tx ReadTx, row Route) (View, error) {
	f, err := facts(tx, &row)
	return View{Route: row, Verdict: Judge(f), SourceSide: f.Source.Side, TargetSide: f.Target.Side}, err
}

// List reads the routes in the order of their creation, removed ones only when asked.
func (r *Routes) List(ctx context.Context, removed bool) ([]View, error) {
	var out []View
	for after := int64(0); ; {
		n := 0
		err := r.store.View(ctx, func(tx ReadTx) error {
			rows, err := tx.Routes(removed, after, 100)
			if err != nil {
				return err
			}
			for _, row := range rows {
				v, err := view(tx, row)
				if err != nil {
					return err
				}
				out = append(out, v)
				after = row.No
			}
			n = len(rows)
			return nil
		})
		if err != nil || n < 100 {
			return out, err
		}
	}
}

// Show reads one route, by its ID or its name, with the newest updates of both sides; NotFound without it.
func (r *Routes) Show(ctx context.Context, name string) (View, []Update, error) {
	var (
		v       View
		updates []Update
	)
	err := r.store.View(ctx, func(tx ReadTx) error {
		row, ok, err := tx.RouteByName(name)
		if id, parseErr := uuid.Parse(name); err == nil && !ok && parseErr == nil {
			row, ok, err = tx.RouteByID(id)
		}
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.NotFound, "there is no route %q", name)
		}
		if v, err = view(tx, row); err != nil {
			return err
		}
		updates = nil
		for _, role := range []pb.ParticipantRole{source, target} {
			list, err := tx.RouteUpdates(row.No, role, 20)
			if err != nil {
				return err
			}
			updates = append(updates, list...)
		}
		return nil
	})
	return v, updates, err
}

// Ready judges a route within the caller's transaction; why tells, when it is not, what to look at. NotFound without it.
func (r *Routes) Ready(tx ReadTx, routeNo int64) (ready bool, why string, err error) {
	row, ok, err := tx.RouteByNo(routeNo)
	if err != nil {
		return false, "", err
	}
	if !ok {
		return false, "", fault.New(fault.NotFound, "the route does not exist")
	}
	v, err := view(tx, row)
	return v.Verdict.Ready, strings.Join(v.Verdict.Why, "; "), err
}

// Reconciled reports whether both daemons have their side of the route and none is in quarantine: normal delivery of the
// jobs that use it waits for that (daemon protocol 4.5).
func (r *Routes) Reconciled(tx ReadTx, routeNo int64) (bool, error) {
	for _, role := range []pb.ParticipantRole{source, target} {
		s, ok, err := tx.RouteSide(routeNo, role)
		if err != nil || ok && (s.Quarantined || s.missing()) {
			return false, err
		}
	}
	return true, nil
}
