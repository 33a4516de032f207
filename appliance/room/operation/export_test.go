package operation

import "time"

// OnRead has fn told of every argument that an operation looks at.
func (t *Table) OnRead(fn func(op, arg string)) { t.read = fn }

// Arguments are the names of an operation's arguments.
func Arguments(name string) (list []string) {
	for _, op := range operations {
		if op.name == name {
			for _, a := range op.args {
				list = append(list, a.name)
			}
		}
	}
	return list
}

// ParseInstant is what since and before are read with.
func ParseInstant(s string) (time.Time, bool) { return parseInstant(s) }

// SetLoadBytes sets how much content one call of load_internal_documents returns.
func (t *Table) SetLoadBytes(n int) { t.loadBytes = n }
