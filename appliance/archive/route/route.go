package route

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Commands is what routes need of the command queue.
type Commands interface {
	// Enqueue stores the command for the daemon and sets its command_id unless it has one.
	Enqueue(tx Tx, daemon archive.DaemonRef, c *pb.Command) (commandNo int64, err error)
	// Close ends a command that a newer one replaces: it is not sent again.
	Close(tx Tx, commandNo int64) error
	// Grant lets a command that was sent as often as it may be go out again.
	Grant(tx Tx, commandNo int64) error
}

// Options of Routes.
type Options struct {
	Commands Commands
	// Fence refuses the write of a link that no longer owns its generation.
	Fence func(tx Tx, link archive.Link) error
	// Ask makes a ROUTES request for reconciliation. It is refused with Unavailable when the daemon has too many open.
	Ask func(tx Tx, daemon archive.DaemonRef) (requestNo int64, err error)
	// OnChange is told, in its transaction, when a route becomes ready or stops being so. May be nil.
	OnChange func(tx Tx, routeNo int64, ready bool) error
	// Alert is told why updates of a daemon are in quarantine, or a route of it is broken; an empty detail: none is any
	// more. May be nil.
	Alert func(tx Tx, daemonNo int64, detail string) error
	Hub   *wake.Hub // woken with archive.RouteKey
}

// Routes are the routes of the archive plane. Safe for concurrent use.
type Routes struct {
	store Store
	o     Options
}

// NewRoutes makes them.
func NewRoutes(store Store, o Options) *Routes { return &Routes{store: store, o: o} }

// New is what an operator asks for.
type New struct {
	Name   string // 1-128 bytes, unique
	Kind   pb.RouteKind
	Source uuid.UUID // daemon
	Target uuid.UUID // daemon
	// SourceRoot is the outbox root, TargetRoot the receive root. Empty: the only one that the daemon's storage shows.
	SourceRoot string
	TargetRoot string
	// SharedMarker is the name under which the target knows the source's outbox directory; empty: the outbox root's ID.
	SharedMarker string
	Options      *pb.RouteOptions // may be nil
}

// Create makes a route and asks the source for its probe. It returns before anything is probed. Invalid names the field
// that breaks a rule; NotFound: no such daemon; Conflict: the name is taken, or a daemon lacks a capability (UNSUPPORTED).
func (r *Routes) Create(ctx context.Context, n New) (uuid.UUID, error) {
	k, ok := kinds[n.Kind]
	if !ok {
		return uuid.Nil, fault.Field("kind", "%s is not offered; offered is SHARED_DIRECTORY", kindName(n.Kind))
	}
	if err := validNew(n); err != nil {
		return uuid.Nil, err
	}
	id := uuid.New()
	err := r.store.Update(ctx, "create route", func(tx Tx) error {
		s, err := daemonFor(tx, "source", n.Source, pb.ClientRole_CLIENT_ROLE_TARGET, k)
		if err != nil {
			return err
		}
		t, err := daemonFor(tx, "target", n.Target, pb.ClientRole_CLIENT_ROLE_SOURCE, k)
		if err != nil {
			return err
		}
		sourceRoot, err := rootFor(tx, "source_root", s, n.SourceRoot, pb.RootKind_ROOT_KIND_OUTBOX)
		if err != nil {
			return err
		}
		targetRoot, err := rootFor(tx, "target_root", t, n.TargetRoot, pb.RootKind_ROOT_KIND_RECEIVE)
		if err != nil {
			return err
		}
		m := &pb.Route{RouteId: id.String(), Kind: n.Kind, SourceClientId: n.Source.String(), TargetClientId: n.Target.String(),
			Options: n.Options, DisplayName: n.Name}
		if m.Source, m.Target, err = k.endpoints(n, sourceRoot, targetRoot); err != nil {
			return err
		}
		if _, taken, err := tx.RouteByName(n.Name); err != nil || taken {
			if taken {
				return fault.New(fault.Conflict, "a route named %q exists", n.Name)
			}
			return err
		}
		row := Route{ID: id, Name: n.Name, Message: m, State: pb.RouteState_ROUTE_STATE_PROVISIONING, CreatedAt: tx.Now(),
			UpdatedAt: tx.Now(), Source: s, Target: t}
		if err := tx.RouteInsert(&row); err != nil {
			return err
		}
		nonce, err := newNonce()
		if err != nil {
			return err
		}
		if err := r.ask(tx, &row, source, nonce); err != nil {
			return err
		}
		return r.settle(tx, row.No)
	})
	if err != nil {
		return uuid.Nil, err
	}
	return id, nil
}

func validNew(n New) error {
	switch {
	case len(n.Name) < 1 || len(n.Name) > 128:
		return fault.Field("name", "1 to 128 bytes, got %d", len(n.Name))
	case !utf8.ValidString(n.Name) || strings.ContainsFunc(n.Name, unicode.IsControl):
		return fault.Field("name", "no control characters, valid UTF-8")
	case n.Source == uuid.Nil:
		return fault.Field("source", "is required")
	case n.Target == uuid.Nil:
		return fault.Field("target", "is required")
	case n.Source == n.Target:
		return fault.Field("target", "must be another daemon than the source")
	case n.Options.GetInPlaceWrites():
		return fault.Field("options.in_place_writes", "only false is valid in this version")
	case len(n.SharedMarker) > 160 || strings.ContainsFunc(n.SharedMarker, unicode.IsControl):
		return fault.Field("shared_marker", "at most 160 bytes without control characters")
	}
	return nil
}

// daemonFor reads a daemon and checks that it can hold the side; wrong is the role that rules it out.
func daemonFor(tx Tx, field string, id uuid.UUID, wrong pb.ClientRole, k kind) (Daemon, error) {
	d, ok, err := tx.RouteDaemon(id)
	switch {
	case err != nil:
		return d, err
	case !ok:
		return d, fault.New(fault.NotFound, "%s: there is no daemon %s", field, id)
	case d.Role == wrong:
		return d, fault.Field(field, "daemon %s has the role %s only", d.Name, trimEnum(d.Role.String(), "CLIENT_ROLE_"))
	}
	for _, c := range []string{"route.provisioning", k.capability} {
		if !has(d.Capabilities, c) {
			return d, fault.New(fault.Conflict, "%s: daemon %s does not offer %s (UNSUPPORTED)", field, d.Name, c)
		}
	}
	return d, nil
}

func has(list []string, s string) bool {
	for _, have := range list {
		if have == s {
			return true
		}
	}
	return false
}

// rootFor checks a root against the daemon's storage as far as it is known, or finds the only one of the kind.
func rootFor(tx Tx, field string, d Daemon, root string, want pb.RootKind) (string, error) {
	entries, err := tx.RouteStorage(d.Ref.No)
	if err != nil {
		return "", err
	}
	kindText := strings.ToLower(trimEnum(want.String(), "ROOT_KIND_"))
	var fit []string
	for _, e := range entries {
		if e.GetRootKind() == want {
			fit = append(fit, e.GetRootId())
		}
	}
	switch {
	case root != "" && (len(root) > 160 || strings.ContainsFunc(root, unicode.IsControl)):
		return "", fault.Field(field, "at most 160 bytes without control characters")
	case root != "" && len(entries) > 0 && !has(fit, root):
		return "", fault.Field(field, "daemon %s has no %s root %q; it has %s", d.Name, kindText, root, quoted(fit))
	case root != "":
		return root, nil
	case len(entries) == 0:
		return "", fault.Field(field, "the storage of daemon %s is not known yet; name its %s root, or refresh its storage first", d.Name, kindText)
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0:
		return "", fault.Field(field, "daemon %s has no %s root", d.Name, kindText)
	}
	return "", fault.Field(field, "daemon %s has several %s roots, name one: %s", d.Name, kindText, quoted(fit))
}

func quoted(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func newNonce() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fault.Wrap(fault.Internal, err, "no random bytes")
	}
	return hex.EncodeToString(b[:]), nil
}

// ask has one side created or probed anew with the nonce.
func (r *Routes) ask(tx Tx, row *Route, role pb.ParticipantRole, nonce string) error {
	s, known, err := tx.RouteSide(row.No, role)
	if err != nil {
		return err
	}
	id, former := uuid.New(), s.LatestNo
	c := &pb.Command{CommandId: id.String()}
	daemon := row.Source.Ref
	if role == target {
		daemon = row.Target.Ref
	}
	if known && (s.Creation != s.Latest || s.Accepted || s.LastSequence > 0) && !(s.unasked() && !s.Accepted) {
		c.Operation = &pb.Command_UpdateRoute{UpdateRoute: &pb.UpdateRoute{Route: row.Message, Side: role,
			ExpectedSequence: s.LastSequence, ProbeNonce: nonce}}
	} else {
		c.Operation = &pb.Command_CreateRoute{CreateRoute: &pb.CreateRoute{Route: row.Message, Side: role, ProbeNonce: nonce}}
		s = Side{RouteNo: row.No, Role: role, Daemon: daemon, Creation: id, State: pb.RouteState_ROUTE_STATE_PROVISIONING}
	}
	if former != 0 {
		if err := r.o.Commands.Close(tx, former); err != nil {
			return err
		}
	}
	s.Latest, s.Nonce, s.Accepted, s.FreshAfter, s.UpdatedAt = id, nonce, false, s.LastSequence, tx.Now()
	s.Error, s.Probe = nil, nil
	if s.LatestNo, err = r.o.Commands.Enqueue(tx, daemon, c); err != nil {
		return err
	}
	return tx.RoutePutSide(&s)
}

// Test starts a new probe over both sides. Conflict: the probe before has not been answered yet, or the route cannot be
// repaired.
func (r *Routes) Test(ctx context.Context, id uuid.UUID) error {
	return r.store.Update(ctx, "test route", func(tx Tx) error {
		row, err := find(tx, id)
		if err != nil {
			return err
		}
		if row.Broken {
			return fault.New(fault.Conflict, "route %s is broken: %s; remove it and create it again", row.Name, orText(row.Error, "its histories disagree"))
		}
		if !row.RemovedAt.IsZero() {
			return fault.New(fault.Conflict, "route %s is removed", row.Name)
		}
		for _, role := range []pb.ParticipantRole{source, target} {
			s, ok, err := tx.RouteSide(row.No, role)
			if err != nil {
				return err
			}
			if ok && !s.Accepted && s.Error.GetCode() == pb.ErrorCode_ERROR_CODE_TIMEOUT {
				// Nobody knows whether the daemon has the command: only the same one may go out again.
				s.Error = nil
				if err := r.o.Commands.Grant(tx, s.LatestNo); err != nil {
					return err
				}
				if err := tx.RoutePutSide(&s); err != nil {
					return err
				}
				return r.settle(tx, row.No)
			}
			if ok && !s.Accepted && !s.refused() && !s.unasked() {
				return fault.New(fault.Conflict, "%s has not answered the probe before yet", roleName(role))
			}
		}
		nonce, err := newNonce()
		if err != nil {
			return err
		}
		if err := r.ask(tx, &row, source, nonce); err != nil {
			return err
		}
		return r.settle(tx, row.No)
	})
}

func find(tx ReadTx, id uuid.UUID) (Route, error) {
	row, ok, err := tx.RouteByID(id)
	if err == nil && !ok {
		err = fault.New(fault.NotFound, "there is no route %s", id)
	}
	return row, err
}

// Remove ends a route: its name is free at once, and each daemon is told. provisioned has the daemons also remove what they
// set up for it. Conflict: an active job uses it.
func (r *Routes) Remove(ctx context.Context, id uuid.UUID, provisioned bool) error {
	return r.store.Update(ctx, "remove route", func(tx Tx) error {
		row, err := find(tx, id)
		if err != nil {
			return err
		}
		jobs, err := tx.RouteJobs(row.No, 3)
		if err != nil {
			return err
		}
		if len(jobs) > 0 {
			return fault.New(fault.Conflict, "route %s is used by active job %s; wait for it or cancel it first", row.Name, jobs[0])
		}
		if row.RemovedAt.IsZero() {
			row.RemovedAt = tx.Now()
			if err := tx.RouteUpdate(&row); err != nil {
				return err
			}
		}
		for _, role := range []pb.ParticipantRole{source, target} {
			s, ok, err := tx.RouteSide(row.No, role)
			if err != nil {
				return err
			}
			if ok && s.State != pb.RouteState_ROUTE_STATE_REMOVED {
				if err := r.askRemoval(tx, &s, row.ID, provisioned); err != nil {
					return err
				}
			}
			if ok {
				if err := r.calm(tx, s.Daemon.No); err != nil {
					return err
				}
			}
		}
		return r.settle(tx, row.No)
	})
}

// askRemoval has the side's daemon remove it, unless it was asked and has not answered.
func (r *Routes) askRemoval(tx Tx, s *Side, routeID uuid.UUID, provisioned bool) error {
	asked, err := removalAsked(tx, s.Daemon.No, routeID)
	if err != nil || asked {
		return err
	}
	id := uuid.New()
	s.Remove, s.UpdatedAt = id, tx.Now()
	if _, err := r.o.Commands.Enqueue(tx, s.Daemon, &pb.Command{CommandId: id.String(), Operation: &pb.Command_RemoveRoute{
		RemoveRoute: &pb.RemoveRoute{RouteId: routeID.String(), Side: s.Role, ExpectedSequence: s.LastSequence,
			RemoveProvisioned: provisioned}}}); err != nil {
		return err
	}
	return tx.RoutePutSide(s)
}

func removalAsked(tx ReadTx, daemonNo int64, routeID uuid.UUID) (bool, error) {
	pending, err := tx.RouteRemovals(daemonNo)
	for _, c := range pending {
		if c.GetRemoveRoute().GetRouteId() == routeID.String() {
			return true, err
		}
	}
	return false, err
}

// alert raises the alert about a daemon's routes.
func (r *Routes) alert(tx Tx, daemonNo int64, route, why string) error {
	if r.o.Alert == nil {
		return nil
	}
	return r.o.Alert(tx, daemonNo, fmt.Sprintf("route %s: %s", route, why))
}

// calm clears the alert about a daemon's routes when none of them is in quarantine or broken any more.
func (r *Routes) calm(tx Tx, daemonNo int64) error {
	if r.o.Alert == nil {
		return nil
	}
	rows, err := tx.RoutesOf(daemonNo)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !row.RemovedAt.IsZero() {
			continue
		}
		if row.Broken {
			return nil
		}
		for _, role := range []pb.ParticipantRole{source, target} {
			s, ok, err := tx.RouteSide(row.No, role)
			if err != nil || ok && s.Daemon.No == daemonNo && s.Quarantined {
				return err
			}
		}
	}
	return r.o.Alert(tx, daemonNo, "")
}

// settle judges the route anew, stores what changed, asks the target when its turn has come, and wakes the watchers.
func (r *Routes) settle(tx Tx, routeNo int64) error {
	row, ok, err := tx.RouteByNo(routeNo)
	if err != nil || !ok {
		return err
	}
	f, err := facts(tx, &row)
	if err != nil {
		return err
	}
	if turn(f) {
		if err := r.ask(tx, &row, target, f.Source.Side.Nonce); err != nil {
			return err
		}
		if f, err = facts(tx, &row); err != nil {
			return err
		}
	}
	v := Judge(f)
	was := row.State == pb.RouteState_ROUTE_STATE_READY
	detail := v.Error
	if row.Broken {
		detail = row.Error
	}
	if row.State != v.State || !proto.Equal(row.Error, detail) {
		row.State, row.Error, row.UpdatedAt = v.State, detail, tx.Now()
		if err := tx.RouteUpdate(&row); err != nil {
			return err
		}
	}
	if was != v.Ready && r.o.OnChange != nil {
		if err := r.o.OnChange(tx, row.No, v.Ready); err != nil {
			return err
		}
	}
	tx.Hint(func() { r.o.Hub.Wake(archive.RouteKey(routeNo)) })
	return nil
}

// turn tells whether the source has left a probe file that the target has not been asked to read.
func turn(f Facts) bool {
	s, t := f.Source.Side, f.Target.Side
	return !f.Removing && !f.Broken && s != nil && s.Accepted && !s.Quarantined && s.LastSequence > s.FreshAfter &&
		s.State == pb.RouteState_ROUTE_STATE_READY && (t == nil || t.Nonce != s.Nonce && (t.Accepted || t.refused() || t.unasked()) && !t.Quarantined)
}

// facts reads what a route is judged from.
func facts(tx ReadTx, row *Route) (Facts, error) {
	f := Facts{Kind: row.Message.GetKind(), Broken: row.Broken, Removing: !row.RemovedAt.IsZero(),
		Source: SideFacts{Daemon: row.Source.Name, Online: row.Source.Online},
		Target: SideFacts{Daemon: row.Target.Name, Online: row.Target.Online}}
	if row.Broken {
		f.Error = row.Error
	}
	for role, side := range map[pb.ParticipantRole]*SideFacts{source: &f.Source, target: &f.Target} {
		s, ok, err := tx.RouteSide(row.No, role)
		if err != nil {
			return f, err
		}
		if ok {
			side.Side = &s
		}
	}
	return f, nil
}
