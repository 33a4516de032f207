package commands

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// What of the archive plane can be named by name, id or a beginning of its id, as the server calls it.
const (
	kindDaemon   = "daemon"
	kindRoute    = "route"
	kindJob      = "job"
	kindCommand  = "command" // to a daemon
	kindResource = "resource"
)

// named asks what a text stands for. An exact name wins over beginnings of ids and parts of names.
func (c *client) named(ctx context.Context, kind, arg string, query url.Values) (idName, error) {
	if arg == "" {
		return idName{}, usagef("%s: name or id is empty", kind)
	}
	matches, err := c.matches(ctx, kind, arg, query)
	if err != nil {
		return idName{}, err
	}
	switch len(matches) {
	case 0:
		return idName{}, notFound("no %s %q", kind, arg)
	case 1:
		return matches[0], nil
	}
	candidates := make([]string, 0, len(matches))
	for _, m := range matches {
		candidates = append(candidates, strings.TrimSpace(m.ID+" "+oneLine(m.Name)))
	}
	return idName{}, ambiguous(kind, arg, candidates)
}

// matches asks what a text stands for in the archive plane.
func (c *client) matches(ctx context.Context, kind, text string, query url.Values) ([]idName, error) {
	var answer struct {
		Matches []idName `json:"matches"`
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("kind", kind)
	query.Set("text", text)
	err := c.get(ctx, "/archive/resolve", query, &answer)
	return answer.Matches, err
}

// archiveClient makes the client and resolves one argument.
func (o *options) archiveClient(ctx context.Context, kind, arg string) (*client, idName, error) {
	c, err := o.newClient()
	if err != nil {
		return nil, idName{}, err
	}
	if id, ok := fullID(arg); ok && kind == kindJob { // however old it is
		return c, idName{ID: id}, nil
	}
	n, err := c.named(ctx, kind, arg, nil)
	return c, n, err
}

// hintReading is for content that is not listed although it is there.
const hintReading = "content without a torrent is listed once its daemon has read it; `signalbox daemon status` on that machine shows what is being read"

// resource finds a resource of a daemon in what is known of it; a daemon that was never asked is asked first.
func (o *options) resource(ctx context.Context, c *client, daemon idName, arg string, wait time.Duration) (idName, error) {
	query := url.Values{"daemon": {daemon.ID}}
	found, err := c.named(ctx, kindResource, arg, query)
	if !fault.Is(err, fault.NotFound) {
		return found, err
	}
	if _, askErr := o.askInventory(ctx, c, daemon, map[string]any{"scope": "resources"}, wait); askErr != nil {
		o.out.say("the inventory of %s could not be renewed: %v", oneLine(daemon.Name), askErr)
		return found, err
	}
	if found, err = c.named(ctx, kindResource, arg, query); fault.Is(err, fault.NotFound) {
		api := &apiError{fault: fault.New(fault.NotFound, "daemon %s has no resource %q", daemon.Name, arg), wireCode: string(fault.NotFound)}
		api.hint = hintReading
		err = api
	}
	return found, err
}

// askInventory has a daemon asked, and waits for its answer.
func (o *options) askInventory(ctx context.Context, c *client, daemon idName, body map[string]any, wait time.Duration) (queryAnswer, error) {
	seconds := min(max(int(wait/time.Second), 1), 120)
	body["wait"] = seconds
	patient := *c
	patient.timeout = max(c.timeout, time.Duration(seconds)*time.Second+c.timeout/2)
	if o.stdio.IsTerminal {
		o.out.say("asking %s", oneLine(daemon.Name))
	}
	var a queryAnswer
	if err := patient.post(ctx, roomPath("daemons", daemon.ID, "inventory"), body, &a); err != nil {
		return a, err
	}
	switch a.State {
	case "complete":
		return a, nil
	case "failed":
		return a, faultExit(a.Error, "daemon %s could not answer", daemon.Name)
	}
	exit := exitf(ExitTimeout, "daemon %s has not answered within %ds", daemon.Name, seconds)
	exit.hint = "the question stays open, and the answer will be kept: try again without --refresh, or with a longer --wait"
	return a, exit
}

// faultExit is the exit of a work that ended with an error of the archive plane.
func faultExit(e *archiveFault, format string, args ...any) *exitError {
	code := ExitFailed
	if e != nil && e.Retryable {
		code = ExitDegraded
	}
	exit := exitf(code, format, args...)
	if text := e.String(); text != "" {
		exit.msg += ": " + text
	}
	return exit
}

func (o *options) completeDaemons() cobra.CompletionFunc {
	return o.completeFrom("/daemons", func(r record[completable]) (string, string) { return r.V.Name, r.V.State })
}

func (o *options) completeRoutes() cobra.CompletionFunc {
	return o.completeFrom("/routes", func(r record[completable]) (string, string) { return r.V.Name, r.V.State })
}

// completeJobs completes ids of jobs that have not ended.
func (o *options) completeJobs(query string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
		defer cancel()
		c, err := o.newClient()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		values, _ := url.ParseQuery(query)
		rows, _, err := list[jobRow](ctx, c, "/jobs", values, 100)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		for _, r := range rows {
			if strings.HasPrefix(r.V.ID, prefix) {
				ids = append(ids, r.V.ID+"\t"+oneLine(r.V.Operation+" "+r.V.Title+", "+r.V.State))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeResources completes names of resources of the daemon that the first argument names.
func (o *options) completeResources(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
	defer cancel()
	if len(args) == 0 {
		return o.completeDaemons()(cmd, args, prefix)
	}
	c, daemon, err := o.archiveClient(ctx, kindDaemon, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	query := url.Values{}
	setNonEmpty(query, "text", prefix)
	rows, _, err := list[resourceRow](ctx, c, roomPath("daemons", daemon.ID, "resources"), query, 100)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, r := range rows {
		if strings.HasPrefix(r.V.Name, prefix) {
			names = append(names, oneLine(r.V.Name)+"\t"+sizeText(r.V.LogicalBytes))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// then completes each argument by its own completion.
func (o *options) then(each ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) || each[len(args)] == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return each[len(args)](cmd, args, prefix)
	}
}
