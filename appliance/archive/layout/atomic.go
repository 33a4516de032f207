package layout

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path"

	"signalbox/appliance/archive/beneath"
)

// Sizes that are read and written, in bytes (daemon protocol 7.3).
const (
	MaxManifest = 256 << 20
	MaxMarker   = 64 << 10
)

// Written is a file that WriteAtomic put in its place.
type Written struct {
	SHA256  string // of the bytes read back
	Bytes   uint64
	Durable bool // false where the file system cannot flush a directory: the name may be lost with the power
}

// WriteAtomic writes content under a name so that at every moment, a power loss included, the name either does not exist
// or holds all of it (daemon protocol 7.3). A name that holds exactly this content already is accepted; one with other
// content is MANIFEST_INVALID and stays as it is. After WRITE_ERROR the directory must be given up: a second flush proves
// nothing about the first.
func WriteAtomic(root *beneath.Root, name string, content []byte) (Written, error) {
	if len(content) > MaxManifest {
		return Written{}, invalid(name, "%d bytes, at most %d can be written", len(content), MaxManifest)
	}
	temp := name + ".tmp-" + suffix()
	f, err := root.Create(temp, fileMode)
	if err != nil {
		return Written{}, err
	}
	if err := writeAndClose(f, content); err != nil {
		return Written{}, discard(root, temp, err)
	}
	err = root.RenameNoReplace(temp, root, name)
	if beneath.CodeOf(err) == beneath.PathConflict {
		same, found := holds(root, name, content)
		if found == nil && !same {
			found = invalid(name, "exists with other content")
		}
		if err = discard(root, temp, found); err != nil {
			return Written{}, err
		}
	} else if err != nil {
		return Written{}, discard(root, temp, err)
	}
	durable, err := syncDirs(root, path.Dir(name))
	if err != nil {
		return Written{}, err
	}
	back, err := readOwn(root, name, int64(len(content)))
	if err != nil {
		return Written{}, err
	}
	sum := sha256.Sum256(back)
	if sum != sha256.Sum256(content) {
		return Written{}, failure(beneath.WriteError, name, "reads back with other content than was written")
	}
	return Written{SHA256: hex.EncodeToString(sum[:]), Bytes: uint64(len(back)), Durable: durable}, nil
}

func writeAndClose(f *beneath.File, content []byte) error {
	_, err := f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// discard removes a temporary file after err, which it returns together with what went wrong then.
func discard(root *beneath.Root, temp string, err error) error {
	removed := root.Unlink(temp)
	if beneath.IsNotFound(removed) {
		removed = nil
	}
	if err == nil {
		return removed
	}
	return errors.Join(err, removed)
}

func holds(root *beneath.Root, name string, content []byte) (bool, error) {
	b, err := readOwn(root, name, int64(len(content)))
	if beneath.CodeOf(err) == beneath.FilesystemLimit || errors.Is(err, errNotOwn) {
		return false, nil
	}
	return bytes.Equal(b, content), err
}

var errNotOwn = errors.New("not a regular file with one name")

// readOwn reads a file of this layout: a regular file with one link, reached without following links, of at most limit
// bytes. Anything else is errNotOwn in the chain, or FILESYSTEM_LIMIT.
func readOwn(root *beneath.Root, name string, limit int64) ([]byte, error) {
	st, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode.IsRegular() || st.Nlink != 1 {
		return nil, &beneath.Error{Code: beneath.PathUnsafe, Op: Op, Path: name, Err: errNotOwn}
	}
	b, opened, err := root.ReadFileStat(name, limit)
	if err != nil {
		return nil, err
	}
	if !opened.SameFile(st) || opened.Nlink != 1 || int64(len(b)) != opened.Size {
		return nil, &beneath.Error{Code: beneath.PathUnsafe, Op: Op, Path: name, Err: errNotOwn}
	}
	return b, nil
}

func suffix() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
