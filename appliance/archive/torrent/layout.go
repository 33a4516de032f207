package torrent

import (
	"path"
	"strings"
)

// Span is the range of pieces that hold bytes of a file, both ends included. A file without bytes has Count 0; its
// First and Last then name the piece at its offset.
type Span struct {
	First, Last, Count int
}

// Span returns the pieces of the file at index.
func (m *Metainfo) Span(index int) Span {
	f := &m.Files[index]
	first := min(f.Offset/m.PieceBytes, int64(max(m.Pieces-1, 0)))
	if f.Bytes == 0 {
		return Span{First: int(first), Last: int(first)}
	}
	last := (f.Offset + f.Bytes - 1) / m.PieceBytes
	return Span{First: int(first), Last: int(last), Count: int(last - first + 1)}
}

// GoodBytes counts the bytes of the file at index that lie in good pieces: completed_bytes of a file entry (daemon
// protocol 2.10).
func (m *Metainfo) GoodBytes(index int, states []PieceState) int64 {
	f, s := &m.Files[index], m.Span(index)
	var good int64
	for p := s.First; p < s.First+s.Count; p++ {
		if states[p] != Good {
			continue
		}
		from := max(int64(p)*m.PieceBytes, f.Offset)
		to := min(int64(p+1)*m.PieceBytes, f.Offset+f.Bytes)
		good += to - from
	}
	return good
}

// PieceSpan is what the coverage rule needs to know about one entry of a file list.
type PieceSpan struct {
	Bytes       uint64
	First, Last uint32
	Padding     bool
	Requested   bool
}

// Spans makes the input of Coverage from the torrent.
func (m *Metainfo) Spans(requested func(index int) bool) []PieceSpan {
	out := make([]PieceSpan, len(m.Files))
	for i := range m.Files {
		s := m.Span(i)
		out[i] = PieceSpan{Bytes: uint64(m.Files[i].Bytes), First: uint32(s.First), Last: uint32(s.Last),
			Padding: m.Files[i].Kind == Padding, Requested: requested(i)}
	}
	return out
}

// Gap is a piece that holds requested bytes and cannot be obtained in full.
type Gap struct {
	Piece uint32
	File  int // first entry whose bytes are missing, by its place in the list
	For   int // first requested entry that shares the piece
}

// Coverage applies the piece coverage rule (daemon protocol 3.3 check 11) to a file list in the torrent's order: every
// piece with requested bytes must be obtainable from requested files, padding, or fragments that stored knows. It
// returns the pieces that are not, in ascending order; none means the rule holds. stored may be nil. Entries whose spans
// are not in ascending order make the answer meaningless, so check the tree first.
func Coverage(files []PieceSpan, stored func(piece uint32) bool) []Gap {
	var gaps []Gap
	// Neighbours in the list share at most the last piece of the one before, so one piece is open at a time.
	piece, requested, missing := uint32(0), -1, -1
	move := func(to uint32) {
		if to == piece {
			return
		}
		if requested >= 0 && missing >= 0 && (stored == nil || !stored(piece)) {
			gaps = append(gaps, Gap{Piece: piece, File: missing, For: requested})
		}
		piece, requested, missing = to, -1, -1
	}
	for i, f := range files {
		if f.Bytes == 0 || f.Padding {
			continue
		}
		for _, at := range [2]uint32{f.First, f.Last} {
			move(at)
			if f.Requested && requested < 0 {
				requested = i
			}
			if !f.Requested && missing < 0 {
				missing = i
			}
		}
	}
	move(piece + 1)
	return gaps
}

// LinkText is the text of the symbolic link at link that leads to target, both relative to the save directory: the form
// that symlink(2) takes.
func LinkText(link, target string) string {
	from := strings.Split(path.Dir(link), "/")
	to := strings.Split(target, "/")
	same := 0
	for same < len(from) && same < len(to)-1 && from[same] == to[same] {
		same++
	}
	return strings.Repeat("../", len(from)-same) + strings.Join(to[same:], "/")
}
