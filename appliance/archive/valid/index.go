package valid

import pb "signalbox/appliance/archive/archivepb"

// IndexSet checks a set of file indices: sorted ranges that do not overlap. An empty set is valid.
func IndexSet(m *pb.IndexSet) error { return run(m, (*checker).indices) }

func (c *checker) indices(m *pb.IndexSet) {
	each(c, "ranges", m.Ranges, (*checker).indexRange)
	for i, r := range m.Ranges {
		if c.err == nil && i > 0 && r.First <= m.Ranges[i-1].Last {
			c.fail("ranges["+itoa(i)+"]", "must begin after the range before it")
			return
		}
	}
}

// IndexRange checks one range.
func IndexRange(m *pb.IndexRange) error { return run(m, (*checker).indexRange) }

func (c *checker) indexRange(m *pb.IndexRange) {
	c.must(m.First <= m.Last, "last", "must be at least first")
}

// someIndices is indices for a set that must not be empty.
func (c *checker) someIndices(m *pb.IndexSet) {
	c.must(len(m.Ranges) > 0, "ranges", "must not be empty")
	c.indices(m)
}

// span is a range of indices wide enough to hold the end after the last index.
type span struct{ from, to uint64 } // [from, to)

// spans returns the ranges of a valid set with adjacent ones joined.
func spans(m *pb.IndexSet) []span {
	var out []span
	for _, r := range m.GetRanges() {
		s := span{uint64(r.First), uint64(r.Last) + 1}
		if n := len(out); n > 0 && out[n-1].to == s.from {
			out[n-1].to = s.to
			continue
		}
		out = append(out, s)
	}
	return out
}

// minus returns the indices of a that are not in b. Both are joined spans in order.
func minus(a, b []span) []span {
	var out []span
	for _, s := range a {
		for len(b) > 0 && b[0].to <= s.from {
			b = b[1:]
		}
		for _, cut := range b {
			if cut.from >= s.to {
				break
			}
			if cut.from > s.from {
				out = append(out, span{s.from, cut.from})
			}
			s.from = max(s.from, cut.to)
			if s.from >= s.to {
				break
			}
		}
		if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}
