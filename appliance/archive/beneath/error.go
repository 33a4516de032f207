package beneath

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"
)

// Error is a failed operation. Path is relative to the root, as the caller named it.
type Error struct {
	Code Code
	Op   Op
	Path string
	From string // for a link or rename: the old name
	Err  error  // the cause: a syscall.Errno or a rule in words

	// For PERMISSION_DENIED: who was refused, and the file or directory whose rights decided, as far as it could be seen.
	UID    int
	Denied string
	Mode   string // octal; empty when it could not be read
}

// Error names the operation, the file and the reason.
func (e *Error) Error() string {
	name := e.Path
	if name == "" {
		name = "."
	}
	if e.From != "" {
		name = e.From + " to " + name
	}
	text := fmt.Sprintf("%s %s: %v", e.Op, name, e.Err)
	if e.Code != PermissionDenied {
		return text
	}
	if e.Mode == "" {
		return fmt.Sprintf("%s (uid %d)", text, e.UID)
	}
	return fmt.Sprintf("%s (uid %d, mode %s of %s)", text, e.UID, e.Mode, e.Denied)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Details returns the facts for ErrorDetail.details: path, operation, and where known errno, uid and mode.
func (e *Error) Details() map[string]string {
	d := map[string]string{"path": e.Path, "operation": string(e.Op)}
	if e.From != "" {
		d["from"] = e.From
	}
	var errno syscall.Errno
	if errors.As(e.Err, &errno) {
		d["errno"] = strconv.Itoa(int(errno))
	}
	if e.Code == PermissionDenied {
		d["uid"] = strconv.Itoa(e.UID)
		if e.Mode != "" {
			d["mode"], d["denied"] = e.Mode, e.Denied
		}
	}
	return d
}

// CodeOf returns the code of the first *Error in the chain, 0 for nil, INTERNAL for any other error.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// IsUnsupported reports that the file system cannot do this kind of operation at all, so that another method may be
// tried: a link or rename across file systems, a clone where there are none, a rename that cannot promise not to replace.
func IsUnsupported(err error) bool { return CodeOf(err) == Unsupported }

// IsNotFound reports a name that does not exist.
func IsNotFound(err error) bool { return CodeOf(err) == NotFound }

// codeOf maps an answer of the kernel to the protocol's code.
func codeOf(op Op, err error) Code {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return Internal
	}
	if slices.Contains(optional[op], errno) {
		return Unsupported
	}
	if op == OpSync || op == OpSyncDir {
		return WriteError // whatever the reason: what was written may be lost, and asking again proves nothing
	}
	switch errno {
	case syscall.ENOENT:
		return NotFound
	case syscall.ENOTDIR:
		if makes[op] {
			return PathConflict
		}
		return NotFound
	case syscall.EEXIST, syscall.ENOTEMPTY, syscall.EISDIR:
		return PathConflict
	case syscall.ENOSPC, syscall.EDQUOT:
		return NoSpace
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return PermissionDenied
	case syscall.ELOOP, syscall.EXDEV, syscall.EILSEQ:
		return PathUnsafe
	case syscall.EINVAL:
		if makes[op] {
			return PathUnsafe // a name that this file system cannot hold
		}
	case syscall.EFBIG, syscall.ENAMETOOLONG, syscall.EOVERFLOW, syscall.EMLINK:
		return FilesystemLimit
	case syscall.ESTALE, syscall.ENODEV, syscall.ENXIO, syscall.ENOTCONN, syscall.EHOSTDOWN, syscall.ETIMEDOUT,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN:
		return Unavailable
	case syscall.EBUSY, syscall.ETXTBSY:
		return Busy
	}
	switch {
	case reads[op]:
		return ReadError
	case op == OpWrite || op == OpTruncate || op == OpAllocate || op == OpCopyRange || op == OpClose || errno == syscall.EIO:
		return WriteError
	}
	return Internal
}

// fail wraps an answer of the kernel. It returns nil for nil.
func (r *Root) fail(op Op, name string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Code: codeOf(op, err), Op: op, Path: name, Err: err}
	if e.Code == PermissionDenied {
		e.UID = os.Geteuid()
		e.Denied, e.Mode = r.refuser(op, name)
	}
	return e
}

// refuser finds the file or directory whose rights most likely refused the operation: the nearest one that can be seen.
func (r *Root) refuser(op Op, name string) (string, string) {
	if inParent[op] {
		name = path.Dir(name)
	}
	for name != "" {
		st, err := r.lstat(name)
		if err == nil {
			return name, fmt.Sprintf("%04o", st.Mode.Perm())
		}
		if name == "." {
			break
		}
		name = path.Dir(name)
	}
	return "", ""
}

func unsafePath(op Op, name, rule string) error {
	return &Error{Code: PathUnsafe, Op: op, Path: name, Err: errors.New(rule)}
}
