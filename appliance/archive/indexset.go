package archive

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// IndexSet is a set of file indices in its normal form: ranges sorted, apart from each other by at least one index.
// The zero value is the empty set. Operations return new sets and cost time by the number of ranges, never of indices.
type IndexSet struct{ ranges []indexRange }

type indexRange struct{ first, last uint32 }

// ReadIndexSet reads a set of the schema. Ranges must be sorted and must not overlap (daemon protocol 2.7); ranges that
// touch are joined. The error is an Invalid fault that names the field below name.
func ReadIndexSet(name string, m *pb.IndexSet) (IndexSet, error) {
	var s IndexSet
	for i, r := range m.GetRanges() {
		if r.GetFirst() > r.GetLast() {
			return IndexSet{}, fault.Field(name, "range %d: first must not be above last, got %d to %d", i, r.GetFirst(), r.GetLast())
		}
		if i > 0 && r.GetFirst() <= m.GetRanges()[i-1].GetLast() {
			return IndexSet{}, fault.Field(name, "range %d: ranges must be sorted and must not overlap", i)
		}
		s.push(r.GetFirst(), r.GetLast())
	}
	return s, nil
}

// Indices returns the set of the given indices, in any order.
func Indices(list ...uint32) IndexSet {
	sorted := slices.Sorted(slices.Values(list))
	var s IndexSet
	for _, i := range sorted {
		s.push(i, i)
	}
	return s
}

// Span returns the set of the n indices from first; n = 0 is the empty set.
func Span(first, n uint32) IndexSet {
	if n == 0 {
		return IndexSet{}
	}
	last := uint64(first) + uint64(n) - 1
	return IndexSet{ranges: []indexRange{{first, uint32(min(last, math.MaxUint32))}}}
}

// push adds a range whose first is not below that of the last one.
func (s *IndexSet) push(first, last uint32) {
	if n := len(s.ranges); n > 0 && uint64(first) <= uint64(s.ranges[n-1].last)+1 {
		s.ranges[n-1].last = max(s.ranges[n-1].last, last)
		return
	}
	s.ranges = append(s.ranges, indexRange{first, last})
}

// Message returns the set in the schema's form: a new message.
func (s IndexSet) Message() *pb.IndexSet {
	m := &pb.IndexSet{Ranges: make([]*pb.IndexRange, len(s.ranges))}
	for i, r := range s.ranges {
		m.Ranges[i] = &pb.IndexRange{First: r.first, Last: r.last}
	}
	return m
}

// Empty reports whether the set has no index.
func (s IndexSet) Empty() bool { return len(s.ranges) == 0 }

// Count returns the number of indices.
func (s IndexSet) Count() uint64 {
	var n uint64
	for _, r := range s.ranges {
		n += uint64(r.last) - uint64(r.first) + 1
	}
	return n
}

// Contains reports whether the set has the index.
func (s IndexSet) Contains(index uint32) bool {
	_, found := slices.BinarySearchFunc(s.ranges, index, func(r indexRange, i uint32) int {
		switch {
		case r.last < i:
			return -1
		case r.first > i:
			return 1
		}
		return 0
	})
	return found
}

// All yields the indices in ascending order.
func (s IndexSet) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, r := range s.ranges {
			for i := uint64(r.first); i <= uint64(r.last); i++ {
				if !yield(uint32(i)) {
					return
				}
			}
		}
	}
}

// Max returns the highest index; false for the empty set.
func (s IndexSet) Max() (uint32, bool) {
	if s.Empty() {
		return 0, false
	}
	return s.ranges[len(s.ranges)-1].last, true
}

// Equal reports whether two sets have the same indices.
func (s IndexSet) Equal(t IndexSet) bool { return slices.Equal(s.ranges, t.ranges) }

// Union returns the indices of either set.
func (s IndexSet) Union(t IndexSet) IndexSet {
	both := make([]indexRange, 0, len(s.ranges)+len(t.ranges))
	both = append(append(both, s.ranges...), t.ranges...)
	slices.SortFunc(both, func(a, b indexRange) int { return cmp.Compare(a.first, b.first) })
	var u IndexSet
	for _, r := range both {
		u.push(r.first, r.last)
	}
	return u
}

// Minus returns the indices of s that t does not have.
func (s IndexSet) Minus(t IndexSet) IndexSet {
	var d IndexSet
	j := 0
	for _, r := range s.ranges {
		next := uint64(r.first) // lowest index of r not yet decided
		for j < len(t.ranges) && t.ranges[j].last < r.first {
			j++
		}
		for k := j; k < len(t.ranges) && t.ranges[k].first <= r.last && next <= uint64(r.last); k++ {
			if cut := t.ranges[k]; uint64(cut.first) > next {
				d.push(uint32(next), cut.first-1)
			}
			next = max(next, uint64(t.ranges[k].last)+1)
		}
		if next <= uint64(r.last) {
			d.push(uint32(next), r.last)
		}
	}
	return d
}
