package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
)

func versionText(major, minor uint32) string {
	return strconv.FormatUint(uint64(major), 10) + "." + strconv.FormatUint(uint64(minor), 10)
}

func orNoID(id uuid.UUID) *string {
	if id == uuid.Nil {
		return nil
	}
	s := id.String()
	return &s
}

func (a *API) listDaemons(w http.ResponseWriter, c *call) error {
	s, err := a.archive()
	if err != nil {
		return err
	}
	list, err := s.Daemons.Daemons(c.Context())
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(list, showDaemon))
}

func (a *API) getDaemon(w http.ResponseWriter, c *call) error {
	s, err := a.archive()
	if err != nil {
		return err
	}
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	d, err := s.Daemons.Daemon(c.Context(), id)
	if err != nil {
		return err
	}
	alerts, err := s.Daemons.Alerts(c.Context(), registry.AlertFilter{DaemonNo: d.No})
	if err != nil {
		return err
	}
	views, err := s.Inventory.Views(c.Context(), id)
	if err != nil {
		return err
	}
	storage, err := s.Inventory.Storage(c.Context(), id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		daemonPublic
		Alerts  []alertPublic   `json:"alerts"`
		Views   []viewPublic    `json:"views"`
		Storage []storagePublic `json:"storage"`
	}{showDaemon(&d), each(alerts, showAlert), each(views, showView), each(storage, showStorage)})
}

func (a *API) forgetDaemon(w http.ResponseWriter, c *call) error {
	s, err := a.archive()
	if err != nil {
		return err
	}
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := s.Daemons.Forget(c.Context(), id); err != nil {
		return err
	}
	a.recordAct(c, "daemon.forget", "daemon", id.String(), nil)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listAlerts(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := registry.AlertFilter{Cleared: q.flag("cleared", false), Limit: int(q.count("limit", 1, 100))}
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	f.Limit = min(f.Limit, a.opts.MaxPage)
	list, err := s.Daemons.Alerts(c.Context(), f)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(list, showAlert))
}

func (a *API) dismissAlert(w http.ResponseWriter, c *call) error {
	s, err := a.archive()
	if err != nil {
		return err
	}
	no, err := strconv.ParseInt(c.PathValue("id"), 10, 64)
	if err != nil || no < 1 {
		return fault.New(fault.NotFound, "no alert %s", cut(c.PathValue("id"), 40))
	}
	if err := s.Daemons.Dismiss(c.Context(), no); err != nil {
		return err
	}
	a.recordAct(c, "alert.dismiss", "alert", strconv.FormatInt(no, 10), nil)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxQueryWait is how long a request for inventory may wait for the answer.
const maxQueryWait = 120

// queryInventory asks a daemon, and waits as long as the caller wants for the answer.
func (a *API) queryInventory(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("scope", "resource", "text", "wait")
	scope := enumValue(pb.InventoryScope(0).Descriptor(), b.required("scope"))
	if scope == 0 && len(b.items) == 0 {
		b.bad("scope", "must be one of %s", strings.Join(enumWords(pb.InventoryScope(0).Descriptor()), ", "))
	}
	query := &pb.InventoryQuery{Scope: pb.InventoryScope(scope)}
	resource := orEmpty(b.text("resource"))
	if (resource != "") != (query.Scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE) {
		b.bad("resource", "is required for content_tree, and only there")
	}
	if resource != "" {
		query.ResourceIds = []string{resource}
	}
	if text := orEmpty(b.text("text")); text != "" {
		if query.Scope != pb.InventoryScope_INVENTORY_SCOPE_RESOURCES {
			b.bad("text", "is for resources only")
		}
		query.Filter = &pb.ResourceFilter{Text: text}
	}
	seconds := 30
	if n := b.int("wait"); n != nil {
		if seconds = *n; seconds < 0 || seconds > maxQueryWait {
			b.bad("wait", "must be 0 to %d seconds", maxQueryWait)
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	queryID, wait, err := s.Inventory.Query(c.Context(), id, query, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
	if err != nil {
		return err
	}
	out := struct {
		QueryID  string        `json:"query_id"`
		State    string        `json:"state"` // open, complete or failed
		Revision uint64        `json:"revision"`
		Entries  int64         `json:"entries"`
		Error    *archiveError `json:"error"`
	}{QueryID: queryID.String(), State: string(inventory.Open)}
	ctx, cancel := context.WithTimeout(c.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	result, err := wait(ctx)
	var refused *inventory.QueryError
	switch {
	case err == nil:
		out.State, out.Revision, out.Entries = string(inventory.Complete), result.Revision, result.Entries
	case errors.As(err, &refused):
		out.State, out.Error = string(inventory.Failed), showArchiveError(refused.Detail)
	case ctx.Err() != nil && c.Context().Err() == nil: // still open: its answer will be stored all the same
	default:
		return err
	}
	return reply(w, c, http.StatusOK, out)
}

func (a *API) listResources(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	q := c.query()
	f := inventory.Filter{Text: q.text("text", 200), Absent: q.flag("absent", false)}
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	d, err := s.Daemons.Daemon(c.Context(), id)
	if err != nil {
		return err
	}
	f.DaemonNo = d.No
	page, err := s.Inventory.Resources(c.Context(), f, q.values.Get("cursor"), int(min(limit, int64(a.opts.MaxPage))))
	if err != nil {
		return inOurWords(err, "page_token", "cursor")
	}
	view, err := a.resourceView(c, s, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		list[resourcePublic]
		View *viewPublic `json:"view"`
	}{list[resourcePublic]{each(page.Resources, showResource), orNull(page.Next)}, view})
}

// resourceView tells how fresh the list of a daemon's resources is; nil: it was never told.
func (a *API) resourceView(c *call, s *Archive, daemon uuid.UUID) (*viewPublic, error) {
	views, err := s.Inventory.Views(c.Context(), daemon)
	for i := range views {
		if views[i].Scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES {
			v := showView(&views[i])
			return &v, err
		}
	}
	return nil, err
}

func (a *API) showTree(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	q := c.query()
	resource := q.text("resource", 160)
	if resource == "" {
		q.bad("resource", "is required")
	}
	limit := q.count("limit", 1, int64(a.opts.DefaultPage))
	revision, from, ok := strings.Cut(q.values.Get("cursor"), ".")
	var index int64
	if ok {
		n, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			q.bad("cursor", "must be one that a page gave")
		}
		index = int64(n)
	} else if revision != "" {
		q.bad("cursor", "must be one that a page gave")
	}
	if err := q.err(); err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	p, err := s.Inventory.Files(c.Context(), id, resource, revision, index, int(min(limit, int64(a.opts.MaxPage))))
	if err != nil {
		return err
	}
	var next *string
	if p.Next >= 0 {
		next = orNull(p.Tree.ContentRevision + "." + strconv.FormatInt(p.Next, 10))
	}
	h := p.Tree.Header
	return reply(w, c, http.StatusOK, struct {
		ResourceID        string         `json:"resource_id"`
		Name              string         `json:"name"`
		Identity          identityPublic `json:"identity"`
		ContentRevision   string         `json:"content_revision"`
		BackendState      string         `json:"backend_state"`
		LogicalBytes      uint64         `json:"logical_bytes"`
		AllocatedBytes    uint64         `json:"allocated_bytes"`
		FileCount         uint64         `json:"file_count"`
		MetaVersion       *uint32        `json:"meta_version"` // null: no torrent
		PieceBytes        *uint64        `json:"piece_bytes"`
		MetainfoAvailable bool           `json:"metainfo_available"`
		SharedWith        []string       `json:"shared_with"`
		FetchedAt         stamp          `json:"fetched_at"`
		Files             []filePublic   `json:"files"`
		NextCursor        *string        `json:"next_cursor"`
	}{ResourceID: h.GetResource().GetResourceId(), Name: h.GetResource().GetIdentity().GetDisplayName(), Identity: showIdentity(h.GetResource().GetIdentity()),
		ContentRevision: h.GetContentRevision(), BackendState: enumText(h.GetBackendState()), LogicalBytes: h.GetTotals().GetLogical(),
		AllocatedBytes: h.GetTotals().GetAllocated(), FileCount: h.GetTotals().GetFileCount(), MetaVersion: ofTorrent(h, h.GetTorrent().GetMetaVersion()),
		PieceBytes: ofTorrent(h, h.GetTorrent().GetPieceBytes()), MetainfoAvailable: h.GetMetainfoAvailable(), SharedWith: texts(h.GetSharedWith()),
		FetchedAt: stamp(p.Tree.FetchedAt), Files: each(p.Files, showFile), NextCursor: next})
}

// ofTorrent is a fact that only content with a torrent has.
func ofTorrent[T any](h *pb.ContentTree, v T) *T {
	if h.GetTorrent() == nil {
		return nil
	}
	return &v
}

func (a *API) listStorage(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, err := a.archive()
	if err != nil {
		return err
	}
	list, err := s.Inventory.Storage(c.Context(), id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(list, showStorage))
}
