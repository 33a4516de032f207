package agent

import (
	"context"

	"github.com/google/uuid"
)

const (
	minIDPrefix = 4  // hex digits: fewer would match too much to be meant
	maxResolved = 10 // ids in one answer
)

// IDRange returns the lowest and the highest UUID that start with the hex digits of the prefix, in which hyphens are
// ignored; ok is false for fewer than 4 digits, more than 32, or another character.
func IDRange(prefix string) (low, high uuid.UUID, ok bool) {
	n := 0
	for i := range len(high) {
		high[i] = 0xff
	}
	for _, c := range []byte(prefix) {
		var v byte
		switch {
		case c == '-':
			continue
		case '0' <= c && c <= '9':
			v = c - '0'
		case 'a' <= c && c <= 'f':
			v = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			v = c - 'A' + 10
		default:
			return uuid.Nil, uuid.Nil, false
		}
		if n == 2*len(low) {
			return uuid.Nil, uuid.Nil, false
		}
		if n%2 == 0 {
			low[n/2], high[n/2] = v<<4, v<<4|0x0f
		} else {
			low[n/2] |= v
			high[n/2] = low[n/2]
		}
		n++
	}
	return low, high, n >= minIDPrefix
}

// ResolveAgents returns the ids of live agents of the project whose name is the text or, when there is none, whose id
// starts with it; at most 10.
func (d *Directory) ResolveAgents(ctx context.Context, projectNo int64, text string) ([]uuid.UUID, error) {
	var out []uuid.UUID
	low, high, isPrefix := IDRange(text)
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		if out, err = tx.AgentIDsNamed(projectNo, text); err != nil || len(out) > 0 || !isPrefix {
			return err
		}
		out, err = tx.AgentIDsBetween(projectNo, low, high, maxResolved)
		return err
	})
	return out, err
}

// ResolveAPIKeys returns the ids of keys that the principal may see and that start with the prefix; at most 10.
func (d *Directory) ResolveAPIKeys(ctx context.Context, who Principal, prefix string) ([]uuid.UUID, error) {
	low, high, ok := IDRange(prefix)
	if !ok {
		return nil, nil
	}
	var out []uuid.UUID
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		out, err = tx.APIKeyIDsBetween(low, high, who.ProjectID, maxResolved)
		return err
	})
	return out, err
}
