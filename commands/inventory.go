package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

func newInventoryCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "See what a daemon holds: resources, the files of one, and its storage",
		Long: `See what a daemon holds: resources, the files of one, and its storage.

The server keeps what a daemon told last and shows that; --refresh asks the daemon now. What was never asked for is asked
for by itself.`,
		Example: `  signalbox inventory resources nas
  signalbox inventory resources nas ubuntu --refresh
  signalbox inventory tree nas ubuntu-24.04
  signalbox inventory storage nas`,
	}
	cmd.AddCommand(newInventoryResourcesCommand(opts), newInventoryTreeCommand(opts), newInventoryStorageCommand(opts))
	return cmd
}

// freshness says whether to ask the daemon, and how long to wait for it.
type freshness struct {
	refresh bool
	wait    time.Duration
}

func (f *freshness) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.refresh, "refresh", false, "ask the daemon now")
	durationVar(cmd.Flags(), &f.wait, "wait", time.Minute, "longest wait for the daemon's answer, up to 2m")
}

// ask asks the daemon when --refresh says so.
func (f *freshness) ask(ctx context.Context, o *options, c *client, daemon idName, body map[string]any) error {
	if !f.refresh {
		return nil
	}
	_, err := o.askInventory(ctx, c, daemon, body, f.wait)
	return err
}

// asOf tells on a terminal how old what is shown is.
func (o *options) asOf(at *time.Time) {
	if o.stdio.IsTerminal && at != nil {
		o.out.say("as of %s; --refresh asks the daemon", o.out.when(at))
	}
}

func newInventoryResourcesCommand(opts *options) *cobra.Command {
	var (
		fresh  freshness
		f      filters
		absent bool
	)
	cmd := &cobra.Command{
		Use:   "resources DAEMON [TEXT]",
		Short: "List the resources of a daemon, or those with a text in their name",
		Example: `  signalbox inventory resources nas
  signalbox inventory resources nas ubuntu --refresh
  signalbox inventory resources nas --absent --json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: opts.then(opts.completeDaemons()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			ctx := cmd.Context()
			c, daemon, err := opts.archiveClient(ctx, kindDaemon, args[0])
			if err != nil {
				return err
			}
			ask := map[string]any{"scope": "resources"}
			if err := fresh.ask(ctx, opts, c, daemon, ask); err != nil {
				return err
			}
			path := roomPath("daemons", daemon.ID, "resources")
			view, err := resourceView(ctx, c, path)
			if err != nil {
				return err
			}
			if view == nil && !fresh.refresh {
				if _, err := opts.askInventory(ctx, c, daemon, ask, fresh.wait); err != nil {
					return err
				}
				if view, err = resourceView(ctx, c, path); err != nil {
					return err
				}
			}
			query := url.Values{}
			if len(args) == 2 {
				query.Set("text", args[1])
			}
			if absent {
				query.Set("absent", "true")
			}
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[resourceRow](ctx, c, path, query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next}, field{"view", view})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.Name, sizeText(r.V.LogicalBytes), complete(&r.V), itoa(r.V.FileCount), resourceState(&r.V), r.V.Root, r.V.ResourceID})
			}
			if err := opts.out.table([]string{"NAME", "SIZE", "COMPLETE", "FILES", "STATE", "ROOT", "ID"}, table); err != nil {
				return err
			}
			if next != nil {
				opts.out.say("there are more; --limit shows more at once")
			}
			if len(rows) == 0 && f.cursor == "" {
				opts.out.say("hint: %s; then ask again with --refresh", hintReading)
			}
			if view != nil {
				opts.asOf(view.CommittedAt)
			}
			return nil
		},
	}
	fresh.add(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "go on after this cursor of an earlier list")
	cmd.Flags().BoolVar(&absent, "absent", false, "include those that are no longer there")
	return cmd
}

// resourceView tells how fresh a daemon's list of resources is; nil: it never gave one.
func resourceView(ctx context.Context, c *client, path string) (*viewRow, error) {
	var p struct {
		View *viewRow `json:"view"`
	}
	err := c.get(ctx, path, url.Values{"limit": {"1"}}, &p)
	return p.View, err
}

// complete says how much of what is selected is there.
func complete(r *resourceRow) string {
	switch {
	case r.CompletedSelectedBytes >= r.SelectedBytes:
		return "yes"
	case r.SelectedBytes == 0:
		return "-"
	}
	return percent(float64(r.CompletedSelectedBytes) / float64(r.SelectedBytes))
}

func resourceState(r *resourceRow) string {
	if r.Absent {
		return "absent"
	}
	return words(r.BackendState)
}

func newInventoryTreeCommand(opts *options) *cobra.Command {
	var (
		fresh freshness
		limit int
	)
	cmd := &cobra.Command{
		Use:   "tree DAEMON RESOURCE",
		Short: "List the files of a resource",
		Long: `List the files of a resource. RESOURCE is its id, its exact name, or a unique part of its name.

The number before a file is its index, which --indices of jobs takes.`,
		Example: `  signalbox inventory tree nas ubuntu-24.04
  signalbox inventory tree nas ubuntu-24.04 --refresh --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.then(opts.completeResources, opts.completeResources),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usagef("--limit: must be at least 1, got %d", limit)
			}
			ctx := cmd.Context()
			c, daemon, err := opts.archiveClient(ctx, kindDaemon, args[0])
			if err != nil {
				return err
			}
			resource, err := opts.resource(ctx, c, daemon, args[1], fresh.wait)
			if err != nil {
				return err
			}
			ask := map[string]any{"scope": "content_tree", "resource": resource.ID}
			if err := fresh.ask(ctx, opts, c, daemon, ask); err != nil {
				return err
			}
			tree, err := readTree(ctx, c, daemon, resource, limit)
			if fault.Is(err, fault.NotFound) && !fresh.refresh {
				if _, err := opts.askInventory(ctx, c, daemon, ask, fresh.wait); err != nil {
					return err
				}
				tree, err = readTree(ctx, c, daemon, resource, limit)
			}
			if err != nil {
				return err
			}
			if opts.json {
				doc, err := tree.shown()
				if err != nil {
					return err
				}
				return opts.out.object("tree", doc)
			}
			return opts.showContent(tree)
		},
	}
	fresh.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 1000, "most files to show; pages are fetched as needed")
	return cmd
}

// tree is a content tree of all pages that were asked for.
type tree struct {
	first record[treeDoc]
	files []record[treeEntry]
	next  *string
}

// shown is the tree as one document: the fields of its first page and all files.
func (t *tree) shown() (map[string]any, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(t.first.raw, &fields); err != nil {
		return nil, fmt.Errorf("read tree: %w", err)
	}
	doc := make(map[string]any, len(fields))
	for name, value := range fields {
		doc[name] = value
	}
	doc["files"], doc["next_cursor"] = nonNil(t.files), t.next
	return doc, nil
}

var errTreeMoved = errors.New("the content changes while it is read; try again")

func readTree(ctx context.Context, c *client, daemon, resource idName, limit int) (*tree, error) {
	path := roomPath("daemons", daemon.ID, "tree")
	for range 3 { // a tree that is replaced between two pages is read from its beginning
		t := &tree{}
		query := url.Values{"resource": {resource.ID}}
		again := false
		for {
			query.Set("limit", itoa(min(limit-len(t.files), 500)))
			var p record[treeDoc]
			if err := c.get(ctx, path, query, &p); err != nil {
				if again = len(t.files) > 0 && (fault.Is(err, fault.Conflict) || fault.Is(err, fault.Stale)); again {
					break
				}
				return nil, err
			}
			if len(t.files) == 0 {
				t.first = p
			}
			t.files, t.next = append(t.files, p.V.Files...), p.V.NextCursor
			if t.next == nil || len(p.V.Files) == 0 || len(t.files) >= limit {
				return t, nil
			}
			query.Set("cursor", *t.next)
		}
	}
	return nil, errTreeMoved
}

func (o *options) showContent(t *tree) error {
	d := &t.first.V
	torrent := "none"
	if d.MetaVersion != nil {
		torrent = "version " + itoa(*d.MetaVersion)
		if d.PieceBytes != nil {
			torrent += ", pieces of " + sizeText(*d.PieceBytes)
		}
		if !d.MetainfoAvailable {
			torrent += ", its file is not available"
		}
	}
	err := o.out.facts([2]string{"name", d.Name}, [2]string{"id", d.ResourceID}, [2]string{"state", words(d.BackendState)},
		[2]string{"size", sizeText(d.LogicalBytes)}, [2]string{"on disk", sizeText(d.AllocatedBytes)}, [2]string{"files", itoa(d.FileCount)},
		[2]string{"torrent", torrent}, [2]string{"infohash v1", text(d.Identity.InfohashV1)}, [2]string{"infohash v2", text(d.Identity.InfohashV2)},
		[2]string{"tree fingerprint", text(d.Identity.TreeFingerprint)}, [2]string{"revision", d.ContentRevision},
		[2]string{"shares files with", strings.Join(d.SharedWith, ", ")}, [2]string{"as of", o.out.when(d.FetchedAt)})
	if err != nil {
		return err
	}
	o.out.text("")
	rows := make([][]string, 0, len(t.files))
	for _, f := range t.files {
		rows = append(rows, []string{itoa(f.V.Index), sizeText(f.V.LogicalBytes), fileState(&f.V), f.V.Path})
	}
	if err := o.out.table([]string{"INDEX", "SIZE", "STATE", "PATH"}, rows); err != nil {
		return err
	}
	if t.next != nil {
		o.out.say("there are more files; --limit shows more")
	}
	return nil
}

func fileState(f *treeEntry) string {
	state := "complete"
	switch {
	case f.Kind != "regular":
		state = f.Kind
	case f.CompletedBytes < f.LogicalBytes:
		state = percent(float64(f.CompletedBytes)/float64(f.LogicalBytes)) + " there"
	}
	if !f.Selected {
		state += ", not selected"
	}
	if f.Sparse {
		state += ", sparse"
	}
	return state
}

func newInventoryStorageCommand(opts *options) *cobra.Command {
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "storage DAEMON",
		Short: "List the directories that a daemon works in, with their free space",
		Example: `  signalbox inventory storage nas
  signalbox inventory storage nas --refresh --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.then(opts.completeDaemons()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, daemon, err := opts.archiveClient(cmd.Context(), kindDaemon, args[0])
			if err != nil {
				return err
			}
			rows, err := opts.storage(cmd.Context(), c, daemon, &fresh)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			return opts.storageTable(values(rows))
		},
	}
	fresh.add(cmd)
	return cmd
}

// storage reads the roots of a daemon, and asks it when none are known.
func (o *options) storage(ctx context.Context, c *client, daemon idName, fresh *freshness) (rows []record[storageRow], err error) {
	ask := map[string]any{"scope": "storage"}
	if err := fresh.ask(ctx, o, c, daemon, ask); err != nil {
		return nil, err
	}
	path := roomPath("daemons", daemon.ID, "storage")
	if err := c.get(ctx, path, nil, &rows); err != nil || len(rows) > 0 || fresh.refresh {
		return rows, err
	}
	if _, err := o.askInventory(ctx, c, daemon, ask, fresh.wait); err != nil {
		return nil, err
	}
	return rows, c.get(ctx, path, nil, &rows)
}

func (o *options) storageTable(rows []storageRow) error {
	table := make([][]string, 0, len(rows))
	for _, s := range rows {
		state := "writable"
		switch {
		case s.Error != nil:
			state = s.Error.String()
		case !s.Writable:
			state = "read only"
		}
		table = append(table, []string{s.RootID, s.Kind, sizeText(s.FreeBytes), sizeText(s.TotalBytes), dash(strings.Join(s.SameFilesystemAs, ", ")), state,
			o.out.when(s.SeenAt)})
	}
	return o.out.table([]string{"ROOT", "FOR", "FREE", "TOTAL", "SAME FILE SYSTEM AS", "STATE", "AS OF"}, table)
}
