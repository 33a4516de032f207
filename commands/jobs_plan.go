package commands

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// jobPlan is what the flags ask for: a preview, and perhaps the job that it is for.
type jobPlan struct {
	route, indices, root, dir, category                   string
	verify, sparse, partfile, conflict, keepFree          string
	files, labels                                         []string
	evictAfter, acceptDrop, stopped, libraryLinks, copies bool
	parent                                                string
	retention, maxVerifyAge, wait                         time.Duration
	listFiles, watch                                      bool
	confirm                                               confirmation
}

// jobRequest is what is asked for, with the names a person knows.
type jobRequest struct {
	body           map[string]any
	source, target idName
	resource       idName
}

func newJobsPreviewCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Find out what a job would do, and whether it can be done, without doing anything",
		Long: `Find out what a job would do, and whether it can be done, without doing anything. The daemons are asked afresh. The exit code is
0 when the job can be started, 1 when it cannot, 8 when it cannot now. The server keeps the preview: show shows it again.`,
		Example: `  signalbox jobs preview transfer nas ubuntu-24.04 attic
  signalbox jobs preview adopt attic ubuntu-24.04 --list-files
  signalbox jobs preview show 8e3de780-fab3-41f0-ace4-82794e6d850b`,
	}
	cmd.AddCommand(newJobsTransferCommand(opts, true), newJobsAdoptCommand(opts, true), newJobsEvictCommand(opts, true),
		newJobsPreviewShowCommand(opts))
	return cmd
}

func (p *jobPlan) addCommon(cmd *cobra.Command, preview bool) {
	f := cmd.Flags()
	f.BoolVar(&p.listFiles, "list-files", false, "show what happens to every file")
	durationVar(f, &p.wait, "wait", 5*time.Minute, "longest wait for the preview: daemons may have to read large trees first")
	if !preview {
		p.confirm.add(cmd)
		f.BoolVar(&p.watch, "watch", false, "follow the job to its end; the exit code tells the outcome")
	}
}

func (p *jobPlan) addFiles(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&p.files, "files", nil, "only files whose path fits the pattern, as of a shell; ** stands for any directories; repeatable")
	f.StringVar(&p.indices, "indices", "", "only files of these indices, such as 0-3,7; inventory tree shows them")
	f.StringVar(&p.dir, "dir", "", "directory below the target's content root")
	f.StringVar(&p.category, "category", "", "category in the target's torrent client")
	f.StringArrayVar(&p.labels, "label", nil, "label in the target's torrent client; repeatable")
	f.BoolVar(&p.stopped, "leave-stopped", false, "do not start it in the target's torrent client")
	p.word(cmd, &p.verify, "verify", "how much a verification reads", "quick", "standard", "strict")
	p.word(cmd, &p.conflict, "on-conflict", "when a file's name is taken at the target", "fail", "adopt_identical")
	cmd.MarkFlagsMutuallyExclusive("files", "indices")
}

// word adds a flag that takes one of some words; without it the server's default counts.
func (p *jobPlan) word(cmd *cobra.Command, into *string, name, what string, words ...string) {
	cmd.Flags().Var(&oneOf{into: into, words: words}, name, what+": "+strings.Join(words, ", "))
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

const confirmLong = `

The preview is made and shown first; then the job is started, after a question on a terminal, with --yes elsewhere.`

func newJobsTransferCommand(opts *options, preview bool) *cobra.Command {
	p := &jobPlan{}
	cmd := &cobra.Command{
		Use:   "transfer SOURCE RESOURCE TARGET",
		Short: "Copy a resource from one daemon to another; the source stays as it is",
		Long: `Copy a resource from one daemon to another: staged at the source, carried over the route, put in its place without ever replacing
a file, read back and verified, and only then committed. The source stays as it is, unless --evict-after makes it a move: then
the source's copy is given up once the target's is verified and committed.` + confirmLong,
		Example: `  signalbox jobs transfer nas ubuntu-24.04 attic
  signalbox jobs transfer nas ubuntu-24.04 attic --files '*.iso' --dir linux --yes --watch
  signalbox jobs transfer nas 'holiday 2019' attic --root archive --evict-after --yes --json`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: opts.then(opts.completeResources, opts.completeResources, opts.completeDaemons()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.plan(cmd.Context(), p, preview, func(ctx context.Context, c *client) (*jobRequest, error) {
				return opts.transferRequest(ctx, c, p, args)
			})
		},
	}
	if preview {
		cmd.Short = "Preview a transfer"
		cmd.Example = `  signalbox jobs preview transfer nas ubuntu-24.04 attic
  signalbox jobs preview transfer nas ubuntu-24.04 attic --files '*.iso' --list-files --json`
		cmd.Long = "Find out what a transfer would do, and whether it can be done."
	}
	f := cmd.Flags()
	f.StringVar(&p.route, "route", "", "route: name, id or unique id prefix (default: the only one between the daemons)")
	f.StringVar(&p.root, "root", "", "content root at the target (default: its only one)")
	f.BoolVar(&p.evictAfter, "evict-after", false, "give up the source's copy afterwards")
	f.BoolVar(&p.copies, "copy", false, "copy the bytes also where source and target share a file system and links would do")
	f.BoolVar(&p.acceptDrop, "accept-drop", false, "accept pieces at the edges of the files that nobody can verify")
	f.StringVar(&p.keepFree, "keep-free", "", "space to leave free at the target, such as 10GiB (default 1GiB)")
	p.word(cmd, &p.sparse, "sparse", "what to do with holes in files", "prefer", "require", "dense")
	p.word(cmd, &p.partfile, "partfile", "what to do with pieces shared with files that are left out", "auto", "copy", "explode", "drop")
	p.addFiles(cmd)
	p.addCommon(cmd, preview)
	_ = cmd.RegisterFlagCompletionFunc("route", opts.completeRoutes())
	return cmd
}

func newJobsAdoptCommand(opts *options, preview bool) *cobra.Command {
	p := &jobPlan{}
	cmd := &cobra.Command{
		Use:   "adopt DAEMON RESOURCE",
		Short: "Take over content that a daemon has already: verify it, then commit it",
		Long: `Take over content that a daemon has already, moved there by hand or left by an older tool. Nothing is carried or changed: it is
read and verified, and then committed, so that another copy may be given up.` + confirmLong,
		Example: `  signalbox jobs adopt attic ubuntu-24.04
  signalbox jobs adopt attic ubuntu-24.04 --verify strict --yes --watch --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.then(opts.completeResources, opts.completeResources),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.plan(cmd.Context(), p, preview, func(ctx context.Context, c *client) (*jobRequest, error) {
				return opts.adoptRequest(ctx, c, p, args)
			})
		},
	}
	if preview {
		cmd.Short = "Preview an adoption"
		cmd.Example = `  signalbox jobs preview adopt attic ubuntu-24.04
  signalbox jobs preview adopt attic ubuntu-24.04 --list-files --json`
		cmd.Long = "Find out whether content that a daemon has already can be taken over."
	}
	cmd.Flags().StringVar(&p.root, "root", "", "content root (default: the one that holds the resource)")
	p.addFiles(cmd)
	p.addCommon(cmd, preview)
	return cmd
}

func newJobsEvictCommand(opts *options, preview bool) *cobra.Command {
	p := &jobPlan{}
	cmd := &cobra.Command{
		Use:   "evict JOB|SOURCE [RESOURCE]",
		Short: "Give up a source's copy of what a completed job has verified at its target",
		Long: `Give up a source's copy of what a completed job has verified at its target. The target's copy is verified again first; then the
source's files go to its trash, and are deleted when the retention is over. Files that changed meanwhile, or that other
content shares, stay.

Name the completed job, or the daemon and the resource: then the newest completed transfer of it is meant. For content that
was adopted elsewhere name all three: SOURCE RESOURCE --job JOB.` + confirmLong,
		Example: `  signalbox jobs evict 0193a2b4c5d6
  signalbox jobs evict nas ubuntu-24.04 --yes --watch
  signalbox jobs evict nas ubuntu-24.04 --job 0193a2b4c5d6 --retention 720h --yes --json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: opts.then(opts.completeResources, opts.completeResources),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.plan(cmd.Context(), p, preview, func(ctx context.Context, c *client) (*jobRequest, error) {
				return opts.evictRequest(ctx, c, p, args)
			})
		},
	}
	if preview {
		cmd.Short = "Preview an eviction"
		cmd.Example = `  signalbox jobs preview evict 0193a2b4c5d6
  signalbox jobs preview evict nas ubuntu-24.04 --list-files --json`
		cmd.Long = "Find out what giving up a source's copy would do, and whether it can be done."
	}
	f := cmd.Flags()
	f.StringVar(&p.parent, "job", "", "the completed job that made the copy which stays")
	durationVar(f, &p.retention, "retention", 0, "how long the files stay in the source's trash, up to 90d (default 7d)")
	durationVar(f, &p.maxVerifyAge, "max-verify-age", 0, "oldest verification of the target's copy that counts, up to 24h (default 24h)")
	f.BoolVar(&p.libraryLinks, "allow-library-links", false, "also give up files that have further names elsewhere; those names stay")
	p.addCommon(cmd, preview)
	_ = cmd.RegisterFlagCompletionFunc("job", opts.completeJobs("state=completed"))
	return cmd
}

// fill adds what all operations share to a request.
func (p *jobPlan) fill(body map[string]any) error {
	set := func(m map[string]any, key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	policies := map[string]any{}
	set(policies, "verify_level", p.verify)
	set(policies, "sparse", p.sparse)
	set(policies, "partfile", p.partfile)
	set(policies, "conflict", p.conflict)
	if p.copies {
		policies["stage_methods"] = []string{"copy_sparse"}
	}
	if p.stopped {
		policies["activation"] = "leave_stopped"
	}
	if p.keepFree != "" {
		n, err := parseSize(p.keepFree)
		if err != nil {
			return usagef("--keep-free: %w", err)
		}
		policies["keep_free_bytes"] = n
	}
	if p.retention != 0 {
		policies["trash_retention_seconds"] = int64(p.retention / time.Second)
	}
	if len(policies) > 0 {
		body["policies"] = policies
	}
	if len(p.files) > 0 {
		body["files"] = p.files
	}
	set(body, "indices", p.indices)
	for key, on := range map[string]bool{"evict_after": p.evictAfter, "accept_drop": p.acceptDrop, "allow_library_links": p.libraryLinks} {
		if on {
			body[key] = true
		}
	}
	if p.maxVerifyAge != 0 {
		body["max_verify_age_seconds"] = int64(p.maxVerifyAge / time.Second)
	}
	return nil
}

// destination is where content goes at the target.
func (p *jobPlan) destination(root, dir string) map[string]any {
	d := map[string]any{"root": root}
	if dir != "" {
		d["dir"] = dir
	}
	if p.category != "" {
		d["category"] = p.category
	}
	if len(p.labels) > 0 {
		d["labels"] = p.labels
	}
	return d
}

func (o *options) transferRequest(ctx context.Context, c *client, p *jobPlan, args []string) (*jobRequest, error) {
	r := &jobRequest{}
	var err error
	if r.source, err = c.named(ctx, kindDaemon, args[0], nil); err != nil {
		return nil, err
	}
	if r.target, err = c.named(ctx, kindDaemon, args[2], nil); err != nil {
		return nil, err
	}
	route, err := c.theRoute(ctx, p.route, r.source, r.target)
	if err != nil {
		return nil, err
	}
	if r.resource, err = o.resource(ctx, c, r.source, args[1], p.wait); err != nil {
		return nil, err
	}
	root, err := o.contentRoot(ctx, c, r.target, p)
	if err != nil {
		return nil, err
	}
	r.body = map[string]any{"operation": "transfer", "source": daemonResource(r.source, r.resource), "target": map[string]any{"daemon": r.target.ID},
		"route": route.ID, "destination": p.destination(root, p.dir)}
	return r, p.fill(r.body)
}

func daemonResource(daemon, resource idName) map[string]any {
	return map[string]any{"daemon": daemon.ID, "resource": resource.ID}
}

// contentRoot is the root that --root names. Without it, the only content root of the daemon is meant.
func (o *options) contentRoot(ctx context.Context, c *client, daemon idName, p *jobPlan) (string, error) {
	if p.root != "" {
		return p.root, nil
	}
	rows, err := o.storage(ctx, c, daemon, &freshness{wait: p.wait})
	if err != nil {
		return "", err
	}
	var roots, shown []string
	for _, s := range rows {
		if s.V.Kind == "content" {
			roots = append(roots, s.V.RootID)
			shown = append(shown, fmt.Sprintf("%s, %s free", oneLine(s.V.RootID), sizeText(s.V.FreeBytes)))
		}
	}
	switch len(roots) {
	case 0:
		return "", notFound("daemon %s has no content root", daemon.Name)
	case 1:
		return roots[0], nil
	}
	return "", usagef("--root: daemon %s has %d content roots, name one of\n  %s", daemon.Name, len(roots), strings.Join(shown, "\n  "))
}

func (o *options) adoptRequest(ctx context.Context, c *client, p *jobPlan, args []string) (*jobRequest, error) {
	r := &jobRequest{}
	var err error
	if r.target, err = c.named(ctx, kindDaemon, args[0], nil); err != nil {
		return nil, err
	}
	r.source = r.target
	if r.resource, err = o.resource(ctx, c, r.target, args[1], p.wait); err != nil {
		return nil, err
	}
	root, dir := p.root, p.dir
	if root == "" {
		known, err := c.resourceRow(ctx, r.target, r.resource)
		if err != nil {
			return nil, err
		}
		if root = known.Root; dir == "" {
			dir = known.RelativeDir
		}
	}
	if root == "" {
		if root, err = o.contentRoot(ctx, c, r.target, p); err != nil {
			return nil, err
		}
	}
	r.body = map[string]any{"operation": "adopt", "source": daemonResource(r.target, r.resource), "target": map[string]any{"daemon": r.target.ID},
		"destination": p.destination(root, dir)}
	return r, p.fill(r.body)
}

// resourceRow reads what is known of a resource; zero when it is not in the list.
func (c *client) resourceRow(ctx context.Context, daemon, resource idName) (resourceRow, error) {
	query := url.Values{}
	setNonEmpty(query, "text", resource.Name)
	rows, _, err := list[resourceRow](ctx, c, roomPath("daemons", daemon.ID, "resources"), query, 1000)
	for _, r := range rows {
		if r.V.ResourceID == resource.ID {
			return r.V, nil
		}
	}
	return resourceRow{}, err
}

func (o *options) evictRequest(ctx context.Context, c *client, p *jobPlan, args []string) (*jobRequest, error) {
	r := &jobRequest{}
	parent, err := o.evictParent(ctx, c, p, r, args)
	if err != nil {
		return nil, err
	}
	if parent.Target == nil {
		return nil, usagef("job %s has no target", parent.ID)
	}
	r.target = idName{parent.Target.DaemonID, parent.Target.Name}
	r.body = map[string]any{"operation": "evict", "source": daemonResource(r.source, r.resource), "target": map[string]any{"daemon": r.target.ID},
		"parent_job": parent.ID}
	return r, p.fill(r.body)
}

// evictParent finds the completed job that an eviction rests on, and sets what is given up.
func (o *options) evictParent(ctx context.Context, c *client, p *jobPlan, r *jobRequest, args []string) (parent jobRow, err error) {
	read := func(arg string) error {
		id, err := c.jobID(ctx, arg)
		if err != nil {
			return err
		}
		return c.get(ctx, roomPath("jobs", id), nil, &parent)
	}
	if len(args) == 1 {
		if p.parent != "" {
			return parent, usagef("--job: name the resource, too: evict SOURCE RESOURCE --job JOB")
		}
		if err := read(args[0]); err != nil {
			return parent, err
		}
		if parent.Operation != "transfer" || parent.Source == nil {
			return parent, usagef("job %s is no transfer: name what is given up: evict SOURCE RESOURCE --job %s", parent.ID, shortID(parent.ID))
		}
		r.source, r.resource = idName{parent.Source.DaemonID, parent.Source.Name}, idName{parent.ResourceID, parent.Title}
		return parent, nil
	}
	if r.source, err = c.named(ctx, kindDaemon, args[0], nil); err != nil {
		return parent, err
	}
	if r.resource, err = o.resource(ctx, c, r.source, args[1], p.wait); err != nil {
		return parent, err
	}
	if p.parent != "" {
		return parent, read(p.parent)
	}
	query := url.Values{"state": {"completed"}, "operation": {"transfer"}, "daemon": {r.source.ID}}
	rows, _, err := list[jobRow](ctx, c, "/jobs", query, 1_000_000)
	if err != nil {
		return parent, err
	}
	unproven := ""
	for _, j := range rows { // newest first
		if j.V.Source != nil && j.V.Source.DaemonID == r.source.ID && j.V.ResourceID == r.resource.ID {
			if j.V.Committed {
				return j.V, nil
			}
			unproven = j.V.ID
		}
	}
	return parent, noParent(r, unproven)
}

// noParent says why nothing of a resource can be given up.
func noParent(r *jobRequest, unproven string) error {
	why := "no transfer of it is completed"
	if unproven != "" {
		why = fmt.Sprintf("job %s was taken as completed by a person, and its target has not reported that the copy is in effect", unproven)
	}
	return &apiError{fault: fault.New(fault.NotFound, "%s cannot be given up at %s: %s; a copy is given up only when another one was verified",
		r.resource.Name, r.source.Name, why), wireCode: string(fault.NotFound),
		hint: fmt.Sprintf("copy it with `signalbox jobs transfer %s %s TARGET`, or take over what is elsewhere with `signalbox jobs adopt MACHINE RESOURCE` and name that job with --job",
			shellQuote(oneLine(r.source.Name)), shellQuote(oneLine(r.resource.Name)))}
}

// jobID resolves a job.
func (c *client) jobID(ctx context.Context, arg string) (string, error) {
	if id, ok := fullID(arg); ok {
		return id, nil
	}
	n, err := c.named(ctx, kindJob, arg, nil)
	return n.ID, err
}
