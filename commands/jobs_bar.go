package commands

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// percent shows a fraction; only what is whole is 100 %.
func percent(f float64) string {
	p := clamp(f) * 100
	if p > 99.9 && p < 100 {
		p = 99.9
	}
	return fmt.Sprintf("%.1f %%", p)
}

func clamp(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return min(max(f, 0), 1)
}

// bar draws a fraction on width cells.
func bar(f float64, width int, unicode bool) string {
	full, empty := "#", "."
	if unicode {
		full, empty = "█", "░"
	}
	n := int(clamp(f) * float64(width)) // rounded down: a full bar is whole
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

// eta words how long something takes at a rate; "" when nobody can tell.
func eta(left, perSecond uint64) string {
	if perSecond == 0 || left == 0 {
		return ""
	}
	seconds := left / perSecond
	if left%perSecond != 0 {
		seconds++
	}
	if seconds > uint64(100*24*time.Hour/time.Second) {
		return ""
	}
	return roughly(time.Duration(seconds) * time.Second)
}

// meter measures the rate of a step from its counters, where the daemon tells none.
type meter struct {
	step  string
	at    time.Time
	bytes uint64
	rate  float64 // per second, smoothed; 0: not known
}

// smoothing is how much the newest measurement counts.
const smoothing = 0.3

// add takes a new reading and returns the rate. A new step, or a counter that went back, begins anew.
func (m *meter) add(step string, done *uint64, now time.Time) uint64 {
	switch {
	case done == nil:
		*m = meter{}
		return 0
	case step != m.step || *done < m.bytes || m.at.IsZero():
		*m = meter{step: step, at: now, bytes: *done}
		return 0
	}
	// Readings of less than a second measure how records were bundled, not the work.
	if passed := now.Sub(m.at).Seconds(); passed >= 1 && *done > m.bytes {
		rate := float64(*done-m.bytes) / passed
		if m.rate == 0 {
			m.rate = rate
		} else {
			m.rate += smoothing * (rate - m.rate)
		}
		m.at, m.bytes = now, *done
	}
	return uint64(m.rate)
}

// panel is a job as a terminal shows it while it runs.
type panel struct {
	width   int
	unicode bool
	meter   meter
}

// lines draws the job: at most width cells each, so that they can be drawn over.
func (p *panel) lines(j *jobRow, now time.Time) []string {
	cells := min(max(p.width-45, 10), 40) // the rest of the line says percent and state
	step := ""
	if j.Step != nil {
		step = strings.ToUpper(*j.Step)
	}
	head := fmt.Sprintf("%s  %s %s  %s", j.ID, j.Operation, oneLine(j.Title), oneLine(j.way()))
	out := []string{head, fmt.Sprintf("%-12s [%s] %7s  %s", "overall", bar(j.Progress.OverallFraction, cells, p.unicode), percent(j.Progress.OverallFraction), j.stateText())}
	if step != "" && !j.ended() {
		out = append(out, fmt.Sprintf("%-12s [%s] %7s  step %d of %d", step, bar(j.Progress.Fraction, cells, p.unicode), percent(j.Progress.Fraction), j.StepNumber, j.Steps))
		if line := p.counters(j, now); line != "" {
			out = append(out, line)
		}
	}
	switch {
	case j.State == "stalled":
		line := "STALLED: no byte and no file has moved"
		if j.Progress.MovedAt != nil {
			line += " for " + roughly(max(now.Sub(*j.Progress.MovedAt), 0))
		}
		out = append(out, line)
	case j.Waiting != nil:
		line := "waits"
		if j.Waiting.Detail != "" {
			line += ": " + oneLine(j.Waiting.Detail)
		}
		if j.Waiting.RetryAt != nil {
			line += "; next look " + relative(j.Waiting.RetryAt.Sub(now))
		}
		out = append(out, line)
	}
	for i := range out {
		out[i] = fit(out[i], p.width)
	}
	return out
}

// counters words bytes, files, rate and what is left of the step.
func (p *panel) counters(j *jobRow, now time.Time) string {
	var parts []string
	g := &j.Progress
	step := ""
	if j.Step != nil {
		step = *j.Step
	}
	rate := p.meter.add(step, g.BytesDone, now)
	if g.BytesPerSecond > 0 {
		rate = g.BytesPerSecond
	}
	if g.BytesTotal != nil && g.BytesDone != nil {
		parts = append(parts, sizeText(*g.BytesDone)+" of "+sizeText(*g.BytesTotal))
	}
	if g.FilesTotal > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d files", g.FilesDone, g.FilesTotal))
	}
	if j.State == "running" && rate > 0 {
		parts = append(parts, sizeText(rate)+"/s")
		if g.BytesTotal != nil && *g.BytesTotal > *g.BytesDone {
			if left := eta(*g.BytesTotal-*g.BytesDone, rate); left != "" {
				parts = append(parts, "ETA "+left)
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Repeat(" ", 13) + strings.Join(parts, "   ")
}

// fit cuts a line to a width.
func fit(s string, width int) string {
	if width < 1 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return cut(s, width)
}

// progressLine is a job's state on one line, for logs.
func progressLine(j *jobRow) string {
	line := fmt.Sprintf("%s  %s", percent(j.Progress.OverallFraction), j.stateText())
	if j.Step != nil && !j.ended() {
		line += fmt.Sprintf("  %s %s", *j.Step, percent(j.Progress.Fraction))
		if g := &j.Progress; g.BytesTotal != nil && g.BytesDone != nil {
			line += fmt.Sprintf("  %s of %s", sizeText(*g.BytesDone), sizeText(*g.BytesTotal))
		}
	}
	return line
}
