package inventory

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Page is a page of stored resources.
type Page struct {
	Resources []Resource
	Next      string // token of the next page; empty at the end
}

// MaxPage is the most entries of one page that a reader gives.
const MaxPage = 1000

func pageLimit(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, MaxPage)
}

// Resources reads what is stored, in the order of names. token is from an earlier page; limit 0 means 100. Invalid: the
// token is none of ours.
func (i *Inventory) Resources(ctx context.Context, f Filter, token string, limit int) (Page, error) {
	after, err := parsePlace(token)
	if err != nil {
		return Page{}, err
	}
	limit = pageLimit(limit)
	var p Page
	err = i.store.View(ctx, func(tx ReadTx) (err error) {
		p.Resources, err = tx.InventoryResources(f, after, limit+1)
		return err
	})
	if err == nil && len(p.Resources) > limit {
		p.Resources = p.Resources[:limit]
		last := p.Resources[limit-1]
		p.Next = Place{Name: nameOf(last.Summary), No: last.No}.token()
	}
	return p, err
}

// nameOf is the name of a resource in lists.
func nameOf(s *pb.ResourceSummary) string {
	if n := s.GetResource().GetIdentity().GetDisplayName(); n != "" {
		return n
	}
	return s.GetResource().GetResourceId()
}

// NameOf is the name under which a resource is listed.
func NameOf(s *pb.ResourceSummary) string { return nameOf(s) }

func (p Place) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.No, 10) + "\n" + p.Name))
}

func parsePlace(token string) (Place, error) {
	if token == "" {
		return Place{}, nil
	}
	b, _ := base64.RawURLEncoding.DecodeString(token)
	no, name, _ := strings.Cut(string(b), "\n")
	n, _ := strconv.ParseInt(no, 10, 64)
	p := Place{Name: name, No: n}
	if p.token() != token {
		return Place{}, fault.Field("page_token", "is none that was given out")
	}
	return p, nil
}

// Resource reads one stored resource; NotFound when it is not known.
func (i *Inventory) Resource(ctx context.Context, daemon uuid.UUID, resourceID string) (Resource, error) {
	var r Resource
	err := i.store.View(ctx, func(tx ReadTx) error {
		d, err := daemonOf(tx, daemon)
		if err != nil {
			return err
		}
		ok := false
		if r, ok, err = tx.InventoryResource(d.Ref.No, resourceID); err == nil && !ok {
			err = fault.New(fault.NotFound, "no resource %q is known at daemon %s", resourceID, d.Name)
		}
		return err
	})
	return r, err
}

func daemonOf(tx ReadTx, id uuid.UUID) (Daemon, error) {
	d, ok, err := tx.InventoryDaemon(id)
	if err == nil && !ok {
		err = fault.New(fault.NotFound, "there is no daemon %s", id)
	}
	return d, err
}

// FilePage is a page of a content tree.
type FilePage struct {
	Tree  Tree
	Files []*pb.FileEntry
	// Next is the index that the next page begins at; -1 at the end.
	Next int64
}

// Files reads a page of a stored tree, from the file index. revision is the content_revision of the pages before, so that
// no two trees are mixed: Stale when the tree is another one by now; empty for the first page. NotFound: no tree is
// stored.
func (i *Inventory) Files(ctx context.Context, daemon uuid.UUID, resourceID, revision string, from int64, limit int) (FilePage, error) {
	limit = pageLimit(limit)
	p := FilePage{Next: -1}
	err := i.store.View(ctx, func(tx ReadTx) error {
		d, err := daemonOf(tx, daemon)
		if err != nil {
			return err
		}
		if p.Tree, err = treeOf(tx, d, resourceID, revision); err != nil {
			return err
		}
		for {
			chunks, err := tx.InventoryTreeChunks(p.Tree.RequestNo, from, 1)
			if err != nil || len(chunks) == 0 {
				return err
			}
			files, err := filesOf(chunks[0])
			if err != nil {
				return err
			}
			for _, f := range files {
				if int64(f.GetIndex()) < from {
					continue
				}
				if len(p.Files) == limit {
					p.Next = int64(f.GetIndex())
					return nil
				}
				p.Files = append(p.Files, f)
			}
			from = int64(files[len(files)-1].GetIndex()) + 1
		}
	})
	return p, err
}

func treeOf(tx ReadTx, d Daemon, resourceID, revision string) (Tree, error) {
	t, ok, err := tx.InventoryTree(d.Ref.No, resourceID)
	switch {
	case err != nil:
		return t, err
	case !ok:
		return t, fault.New(fault.NotFound, "no content tree of resource %q of daemon %s is stored", resourceID, d.Name)
	case revision != "" && revision != t.ContentRevision:
		return t, fault.New(fault.Stale, "the content tree has been replaced; read it from the beginning")
	}
	return t, nil
}

func filesOf(chunk []byte) ([]*pb.FileEntry, error) {
	c := &pb.InventoryChunk{}
	if err := proto.Unmarshal(chunk, c); err != nil {
		return nil, fault.Wrap(fault.Corrupt, err, "a stored part of a content tree cannot be read")
	}
	return c.GetContentTree().GetFiles(), nil
}

// EachFile calls fn for every file of the tree that the request fetched, in order. It holds one part in memory and no
// snapshot while fn runs. Stale: the tree was replaced meanwhile.
func (i *Inventory) EachFile(ctx context.Context, t Tree, fn func(*pb.FileEntry) error) error {
	from, seen := int64(0), int64(0)
	for seen < t.Files {
		var chunks [][]byte
		err := i.store.View(ctx, func(tx ReadTx) (err error) {
			chunks, err = tx.InventoryTreeChunks(t.RequestNo, from, 1)
			return err
		})
		if err != nil {
			return err
		}
		if len(chunks) == 0 {
			return fault.New(fault.Stale, "the content tree has been replaced while it was read")
		}
		files, err := filesOf(chunks[0])
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := fn(f); err != nil {
				return err
			}
			from = int64(f.GetIndex()) + 1
		}
		seen += int64(len(files))
	}
	return nil
}

// Tree reads a stored tree without its files; NotFound when none is stored.
func (i *Inventory) Tree(ctx context.Context, daemon uuid.UUID, resourceID string) (Tree, error) {
	var t Tree
	err := i.store.View(ctx, func(tx ReadTx) error {
		d, err := daemonOf(tx, daemon)
		if err == nil {
			t, err = treeOf(tx, d, resourceID, "")
		}
		return err
	})
	return t, err
}

// Storage reads the stored roots of a daemon.
func (i *Inventory) Storage(ctx context.Context, daemon uuid.UUID) ([]Storage, error) {
	var out []Storage
	err := i.store.View(ctx, func(tx ReadTx) error {
		d, err := daemonOf(tx, daemon)
		if err == nil {
			out, err = tx.InventoryStorage(d.Ref.No)
		}
		return err
	})
	return out, err
}

// Views tells how fresh the stored inventory of a daemon is, by scope.
func (i *Inventory) Views(ctx context.Context, daemon uuid.UUID) ([]View, error) {
	var out []View
	err := i.store.View(ctx, func(tx ReadTx) error {
		d, err := daemonOf(tx, daemon)
		if err == nil {
			out, err = tx.InventoryViews(d.Ref.No)
		}
		return err
	})
	return out, err
}

// Jobs reads the cursors that a complete ACTIVE_JOBS request found.
func (i *Inventory) Jobs(ctx context.Context, requestNo int64) ([]*pb.JobCursor, error) {
	var out []*pb.JobCursor
	err := i.store.View(ctx, func(tx ReadTx) error {
		return staged(tx, requestNo, func(c *pb.InventoryChunk) error {
			out = append(out, c.GetJobs().GetEntries()...)
			return nil
		})
	})
	return out, err
}

// Routes reads the snapshots that a complete ROUTES request found.
func (i *Inventory) Routes(ctx context.Context, requestNo int64) ([]*pb.RouteSnapshot, error) {
	var out []*pb.RouteSnapshot
	err := i.store.View(ctx, func(tx ReadTx) error {
		return staged(tx, requestNo, func(c *pb.InventoryChunk) error {
			out = append(out, c.GetRoutes().GetEntries()...)
			return nil
		})
	})
	return out, err
}
