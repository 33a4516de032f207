package rawjson

// AppendRedacted appends the bytes of v as they were sent, with the value of every member whose decoded key matches
// replaced by mask, a JSON literal such as "[REDACTED]" with its quotes. Members at every depth are looked at, also those
// that a later duplicate shadows; the inside of a replaced value is not. When nothing matches, dst comes back without any
// addition and changed is false: keep v.Raw().
//
// match is given keys that it must neither keep nor change.
func AppendRedacted(dst []byte, v Value, match func(key []byte) bool, mask string) (out []byte, changed bool) {
	return AppendEdited(dst, v, func(key []byte, _ Value) (string, bool) {
		return mask, key != nil && match(key)
	})
}

// AppendEdited appends the bytes of v as they were sent, with some of the values below it replaced. edit is asked about
// every member value (with its decoded key, shadowed duplicates included) and every array element (with a nil key), outer
// values before inner ones; what it replaces is not entered. The literal it returns must be valid JSON. When nothing was
// replaced, dst comes back without any addition and changed is false: keep v.Raw(). v itself is not offered.
//
// edit is given keys that it must neither keep nor change.
func AppendEdited(dst []byte, v Value, edit func(key []byte, v Value) (literal string, replace bool)) (out []byte, changed bool) {
	if v.doc == nil {
		return dst, false
	}
	d := v.doc
	self := d.nodes[v.idx]
	if self.kind() < Array {
		return dst, false
	}
	e := editor{doc: d, dst: dst, copied: self.start, edit: edit}
	e.container(v.idx)
	if !e.changed {
		return dst, false
	}
	return append(e.dst, d.b[e.copied:self.end]...), true
}

type editor struct {
	doc     *Doc
	dst     []byte
	copied  uint32 // everything before this offset is in dst
	changed bool
	scratch []byte
	edit    func([]byte, Value) (string, bool)
}

// container offers the children of the container at idx. Recursion is bounded by MaxDepth.
func (e *editor) container(idx uint32) {
	n := e.doc.nodes[idx]
	for k := idx + 1; k < n.next; {
		var key []byte
		if n.kind() == Object {
			key = e.key(&e.doc.nodes[k])
			k++
		}
		child := &e.doc.nodes[k]
		if literal, replace := e.edit(key, Value{doc: e.doc, idx: k}); replace {
			e.dst = append(e.dst, e.doc.b[e.copied:child.start]...)
			e.dst = append(e.dst, literal...)
			e.copied = child.end
			e.changed = true
		} else if child.kind() >= Array {
			e.container(k)
		}
		k = child.next
	}
}

// key decodes into scratch memory; the result is never nil.
func (e *editor) key(n *node) []byte {
	body := e.doc.b[n.start+1 : n.end-1]
	if !n.escaped() {
		return body
	}
	e.scratch = appendDecoded(e.scratch[:0], body)
	return e.scratch
}
