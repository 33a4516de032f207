package commands

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// plan makes the preview, shows it, and starts the job that it is for unless only the preview is wanted.
func (o *options) plan(ctx context.Context, p *jobPlan, only bool, request func(context.Context, *client) (*jobRequest, error)) error {
	if p.wait < time.Second {
		return usagef("--wait: must be at least 1s, got %s", p.wait)
	}
	c, err := o.newClient()
	if err != nil {
		return err
	}
	r, err := request(ctx, c)
	if err != nil {
		return err
	}
	preview, err := o.preview(ctx, c, r.body, p.wait)
	if err != nil {
		return err
	}
	fields := []field{{"preview", preview}}
	if p.listFiles && preview.V.State == "passed" {
		files, _, err := list[plannedFile](ctx, c, roomPath("job-previews", preview.V.ID, "files"), url.Values{}, 1_000_000)
		if err != nil {
			return err
		}
		fields = append(fields, field{"files", files})
		if !o.json {
			if err := o.plannedTable(files); err != nil {
				return err
			}
			o.out.text("")
		}
	}
	if !o.json {
		if err := o.showPreview(r, &preview.V); err != nil {
			return err
		}
	}
	if preview.V.State != "passed" {
		if o.json {
			if err := o.out.document(fields...); err != nil {
				return err
			}
		}
		return faultExit(preview.V.Error, "the %s cannot be done", preview.V.Operation)
	}
	if only {
		if o.json {
			return o.out.document(fields...)
		}
		return nil
	}
	if err := p.confirm.ask(o, question(r, p, &preview.V)); err != nil {
		return err
	}
	var j record[jobDetail]
	if err := c.post(ctx, "/jobs", map[string]any{"preview_id": preview.V.ID}, &j); err != nil {
		return err
	}
	if p.watch {
		if !o.json {
			o.out.say("job %s", j.V.ID)
		}
		return o.watchJob(ctx, c, j.V.ID, "0", true)
	}
	if o.json {
		return o.out.document(append(fields, field{"job", j})...)
	}
	o.out.text("job %s started", j.V.ID)
	o.out.say("follow it with `signalbox jobs watch %s`", j.V.ID)
	return nil
}

// previewPatience is the longest wait of one request for a preview.
const previewPatience = 60 * time.Second

// preview has a preview made and waits until it is done.
func (o *options) preview(ctx context.Context, c *client, body map[string]any, wait time.Duration) (v record[previewRow], err error) {
	deadline := time.Now().Add(wait)
	method, path := http.MethodPost, "/job-previews"
	if o.stdio.IsTerminal {
		o.out.say("asking the daemons")
	}
	for {
		seconds := max(int(min(time.Until(deadline), previewPatience)/time.Second), 1)
		patient := *c
		patient.timeout = max(c.timeout, time.Duration(seconds)*time.Second+c.timeout/2)
		if err := patient.do(ctx, method, path, url.Values{"wait": {itoa(seconds)}}, body, &v); err != nil {
			return v, err
		}
		if v.V.State != "running" {
			return v, nil
		}
		if !time.Now().Before(deadline) {
			exit := exitf(ExitTimeout, "the preview was not done within %s", wait)
			exit.hint = "the daemons may have to read much: try again with a longer --wait"
			return v, exit
		}
		method, path, body = http.MethodGet, roomPath("job-previews", v.V.ID), nil
		select {
		case <-time.After(o.retryDelay): // a server that does not wait is not asked without a pause
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// question names what is about to be done.
func question(r *jobRequest, p *jobPlan, v *previewRow) string {
	s := &v.Summary
	what := fmt.Sprintf("%s (%s, %s)", r.resource.Name, countOf(s.Requested, "file"), sizeText(s.RequestedBytes))
	switch v.Operation {
	case "adopt":
		return fmt.Sprintf("Verify and take over %s at %s?", what, r.target.Name)
	case "evict":
		retention := 7 * 24 * time.Hour
		if p.retention != 0 {
			retention = p.retention
		}
		return fmt.Sprintf("Give up the copy of %s at %s? The copy at %s is verified first and stays; the files at %s go to its trash and are deleted after %s.",
			what, r.source.Name, r.target.Name, r.source.Name, roughly(retention))
	}
	q := fmt.Sprintf("Copy %s from %s to %s?", what, r.source.Name, r.target.Name)
	if p.evictAfter {
		q = fmt.Sprintf("Move %s from %s to %s? The copy at %s is given up when the one at %s is verified and committed.", what, r.source.Name, r.target.Name,
			r.source.Name, r.target.Name)
	}
	return q
}

func countOf(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (o *options) plannedTable(files []record[plannedFile]) error {
	rows := make([][]string, 0, len(files))
	for _, f := range files {
		rows = append(rows, []string{itoa(f.V.Index), words(f.V.Action), dash(words(text(f.V.Method))), sizeText(f.V.Bytes), f.V.Path, text(f.V.Warning)})
	}
	return o.out.table([]string{"INDEX", "ACTION", "HOW", "SIZE", "PATH", "WARNING"}, rows)
}

func (o *options) showPreview(r *jobRequest, v *previewRow) error {
	way := r.target.Name
	switch v.Operation {
	case "transfer":
		way = r.source.Name + " → " + r.target.Name
	case "evict":
		way = r.source.Name + ", kept by " + r.target.Name
	}
	return o.previewFacts([][2]string{{"preview", v.ID}, {"operation", v.Operation}, {"resource", r.resource.Name}, {"daemons", way}}, v)
}

// previewFacts shows what a preview found, below what it is about.
func (o *options) previewFacts(facts [][2]string, v *previewRow) error {
	s := &v.Summary
	amount := func(files, bytes uint64) string {
		if files == 0 {
			return ""
		}
		return countOf(files, "file") + ", " + sizeText(bytes)
	}
	count := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return countOf(n, "file")
	}
	if v.State == "passed" {
		facts = append(facts, [2]string{"requested", amount(s.Requested, s.RequestedBytes)}, [2]string{"to carry", amount(s.Transfer, s.TransferBytes)},
			[2]string{"at the target already", amount(s.Present, s.PresentBytes)}, [2]string{"made anew", count(s.Synthesized)},
			[2]string{"left out", count(s.Omitted)}, [2]string{"staged by", words(s.StageMethod)}, [2]string{"put in place by", words(s.Materialize)})
		if s.DroppedPieces > 0 {
			facts = append(facts, [2]string{"pieces dropped", itoa(s.DroppedPieces)})
		}
	}
	if err := o.out.facts(facts...); err != nil {
		return err
	}
	if len(s.Needs) > 0 && v.State == "passed" {
		o.out.text("")
		rows := make([][]string, 0, len(s.Needs))
		for _, n := range s.Needs {
			root := n.RootID
			if n.With != "" {
				root += " (with " + n.With + ")"
			}
			rows = append(rows, []string{n.Daemon, root, n.Kind, sizeText(n.Bytes), sizeText(n.KeepFree), sizeText(n.FreeBytes)})
		}
		if err := o.out.table([]string{"DAEMON", "ROOT", "FOR", "NEEDS", "KEEPS FREE", "FREE"}, rows); err != nil {
			return err
		}
	}
	for _, w := range v.Warnings {
		o.out.text("warning: %s", printable(w))
	}
	if v.State == "passed" && len(v.Warnings) == 0 {
		o.out.text("nothing stands in the way")
	}
	return nil
}

// parseSize reads a number of bytes, with a unit of 1024 (KiB, MiB, GiB, TiB) or none.
func parseSize(text string) (int64, error) {
	number, shift := strings.TrimSpace(text), 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, ok := strings.CutSuffix(number, unit); ok {
			number, shift = strings.TrimSpace(rest), 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is no size such as 500MiB or 10GiB", text)
	}
	return n << shift, nil
}
