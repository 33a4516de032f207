package media

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"signalbox/appliance/fault"
)

// What one slice of Sweep looks at.
const (
	sweepRows  = 100
	sweepItems = 2000
	shards     = 256
)

// Swept is what one slice of Sweep removed.
type Swept struct {
	Rows, Files int
	Bytes       int64
}

// Sweep does one bounded slice of the upkeep: rows older than a day that no message names, and files older than an hour
// without a row. more tells that the pass over all of them has not ended. Uploads go on meanwhile.
func (m *Media) Sweep(ctx context.Context) (done Swept, more bool, err error) {
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	if m.shard == 0 {
		m.looked = false
	}
	if !m.looked {
		moreRows, err := m.sweepRows(ctx, &done)
		if err != nil {
			return done, false, err
		}
		m.looked = !moreRows
	}
	if err := m.sweepShard(ctx, &done); err != nil {
		return done, false, err
	}
	m.shard = (m.shard + 1) % shards
	if m.shard == 0 {
		m.placing.Lock()
		err = m.recount(ctx)
		m.placing.Unlock()
	}
	return done, !m.looked || m.shard != 0, err
}

// sweepRows looks at the next rows, each once in the life of the process.
func (m *Media) sweepRows(ctx context.Context, done *Swept) (more bool, err error) {
	var page, suspects []Record
	err = m.st.View(ctx, func(tx ReadTx) error {
		if page, err = tx.MediaRecords(m.rows, sweepRows); err != nil {
			return err
		}
		for i, r := range page {
			if tx.Now().Sub(r.CreatedAt) < UnusedAge {
				page = page[:i]
				break
			}
			named, err := tx.MediaNamedSoon(r)
			if err != nil {
				return err
			}
			if !named {
				suspects = append(suspects, r)
			}
		}
		return nil
	})
	if err != nil || len(page) == 0 {
		return false, err
	}
	for _, r := range suspects {
		named, err := m.named(ctx, r)
		if err != nil {
			return false, err
		}
		if named {
			continue
		}
		err = m.st.Update(ctx, "media_sweep", func(tx Tx) error { return tx.MediaDelete(r.No) })
		if fault.Is(err, fault.NotFound) { // taken back, or gone with its room
			continue
		}
		if err != nil {
			return false, err
		}
		done.Rows++
	}
	m.rows = page[len(page)-1].No
	return len(page) == sweepRows, nil
}

// named searches the whole room, in pages. Nothing can name the row meanwhile: it is too old (see Attachments).
func (m *Media) named(ctx context.Context, r Record) (found bool, err error) {
	for after, first := int64(0), true; first || after > 0; first = false {
		err = m.st.View(ctx, func(tx ReadTx) error {
			found, after, err = tx.MediaNamed(r, after, sweepItems)
			return err
		})
		if err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// sweepShard looks at the files of one directory.
func (m *Media) sweepShard(ctx context.Context, done *Swept) error {
	prefix := fmt.Sprintf("%02x", m.shard)
	dir := filepath.Join(m.o.Dir, prefix)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("media: read a directory: %w", err)
	}
	for _, e := range entries {
		var digest [32]byte
		raw, err := hex.DecodeString(prefix + e.Name())
		if err != nil || copy(digest[:], raw) != len(digest) || len(raw) != len(digest) {
			continue // not ours
		}
		info, err := e.Info()
		if err != nil || m.o.Clock.Now().Sub(info.ModTime()) < fileGrace {
			continue
		}
		if err := m.removeOrphan(ctx, digest, done); err != nil {
			return err
		}
	}
	return nil
}

// removeOrphan removes the file of the digest unless a row has it.
func (m *Media) removeOrphan(ctx context.Context, digest [32]byte, done *Swept) error {
	m.placing.Lock()
	defer m.placing.Unlock()
	path := m.path(digest)
	info, err := os.Stat(path)
	if err != nil || m.o.Clock.Now().Sub(info.ModTime()) < fileGrace { // gone, or wanted again just now
		return nil
	}
	var has bool
	err = m.st.View(ctx, func(tx ReadTx) error {
		has, err = tx.MediaHasContent(digest)
		return err
	})
	if err != nil || has {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("media: remove a file: %w", err)
	}
	done.Files++
	done.Bytes += info.Size()
	return nil
}
