package directory

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"io/fs"
	"path"

	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
)

const tempPrefix = ".archive-control-tmp-"

// placeFile writes a file by the atomic procedure (daemon protocol 7.3): exclusive temporary file, flush, rename without
// replacement, flush of the directory, read back. A file that is there with the same bytes is success; with others it is
// RESOURCE_CONFLICT and stays.
func placeFile(dir *beneath.Root, name string, data []byte, mode fs.FileMode) error {
	same, err := sameFile(dir, name, data)
	if err != nil || same {
		return err
	}
	var random [8]byte
	rand.Read(random[:])
	temp := path.Join(path.Dir(name), tempPrefix+hex.EncodeToString(random[:]))
	if err := writeTemp(dir, temp, data, mode); err != nil {
		_ = dir.Unlink(temp) // made by us a moment ago; what cannot be removed is ignored by every scan
		return err
	}
	if err := dir.RenameNoReplace(temp, dir, name); err != nil {
		_ = dir.Unlink(temp)
		if beneath.CodeOf(err) != beneath.PathConflict {
			return err
		}
	}
	if _, err := dir.SyncDir(path.Dir(name)); err != nil {
		return err
	}
	if same, err = sameFile(dir, name, data); err == nil && !same {
		err = backend.Fail("WRITE_ERROR", "the file %s is gone right after it was written", name).With("path", name)
	}
	return err
}

// makeDir makes a directory of the backend's own and those above it, durably.
func makeDir(root *beneath.Root, dir string) error {
	created, err := root.MkdirAll(dir, 0o700)
	if err != nil {
		return err
	}
	for _, d := range created {
		if _, err := root.SyncDir(path.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

func writeTemp(dir *beneath.Root, temp string, data []byte, mode fs.FileMode) error {
	f, err := dir.Create(temp, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask is
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// sameFile tells whether the file is there with the data; with other data it is an error.
func sameFile(dir *beneath.Root, name string, data []byte) (bool, error) {
	old, err := dir.ReadFile(name, int64(len(data)))
	switch {
	case beneath.IsNotFound(err):
		return false, nil
	case beneath.CodeOf(err) == beneath.FilesystemLimit, err == nil && !bytes.Equal(old, data):
		return false, backend.Fail("RESOURCE_CONFLICT", "there is another file %s already", name).With("path", name)
	}
	return err == nil, err
}
