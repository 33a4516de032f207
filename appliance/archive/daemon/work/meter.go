package work

import (
	"time"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

// meter counts what a step has done and reports it. It belongs to one goroutine.
type meter struct {
	t         *daemon.Task
	files     uint32
	filesDone uint32
	logical   counter
	data      counter   // bytes without holes; its total is 0 where it is not known beforehand
	last      time.Time // of the last report
}

// counter counts bytes: those of finished files, and those of the file at work.
type counter struct{ total, done, inside uint64 }

func (c *counter) now() uint64 { return min(c.done+c.inside, c.total) }

// reportEvery bounds how often a report is made; the engine sends far fewer (daemon protocol 2.8).
const reportEvery = 200 * time.Millisecond

// newMeter begins a step over so many files with so many logical bytes, of which data are no holes.
func newMeter(t *daemon.Task, files int, total, data uint64) *meter {
	m := &meter{t: t, files: uint32(files), logical: counter{total: total}, data: counter{total: data}}
	m.report(true)
	return m
}

// counting is a meter for work that counts for itself: see at. It reports nothing before that.
func counting(t *daemon.Task) *meter { return &meter{t: t} }

// within says how far the file at work is: logical bytes, and bytes of data.
func (m *meter) within(logical, data int64) {
	m.logical.inside, m.data.inside = uint64(max(0, logical)), uint64(max(0, data))
	m.report(false)
}

// file ends a file.
func (m *meter) file(bytes, data uint64) {
	m.logical.done += bytes
	m.data.done += data
	m.logical.inside, m.data.inside = 0, 0
	m.filesDone++
	m.report(m.filesDone == m.files)
}

// at sets the counters of a step that counts for itself.
func (m *meter) at(done, total int64, files, allFiles int) {
	m.logical = counter{total: uint64(max(0, total)), done: uint64(max(0, done))}
	m.filesDone, m.files = uint32(files), uint32(allFiles)
	m.report(done == total)
}

func (m *meter) report(now bool) {
	at := time.Now() // of this process: only spaces the reports
	if !now && at.Sub(m.last) < reportEvery {
		return
	}
	m.last = at
	done := m.logical.now()
	p := &pb.Progress{FilesTotal: m.files, FilesDone: min(m.filesDone, m.files), Bytes: &pb.ByteCounters{Known: true,
		LogicalTotal: m.logical.total, LogicalDone: done, AllocatedTotal: m.data.total, AllocatedDone: m.data.now()}}
	switch {
	case m.logical.total > 0:
		p.FractionComplete = float64(done) / float64(m.logical.total)
	case m.files > 0:
		p.FractionComplete = float64(p.FilesDone) / float64(m.files)
	default:
		p.FractionComplete = 1
	}
	m.t.Progress(p)
}
