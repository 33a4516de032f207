package beneath

import "syscall"

// Op names one call to the operating system, in errors and at the hook.
type Op string

// The operations. Each is one system call, so that a hook can stand in for the kernel's answer.
const (
	OpResolve   Op = "openat2" // only at Open: whether the kernel has it
	OpOpen      Op = "open"
	OpCreate    Op = "create"
	OpMkdir     Op = "mkdir"
	OpReadDir   Op = "readdir"
	OpStat      Op = "stat"
	OpRename    Op = "rename" // renameat2 with RENAME_NOREPLACE; renameat for the owner file
	OpLink      Op = "link"
	OpReflink   Op = "reflink"
	OpUnlink    Op = "unlink"
	OpRmdir     Op = "rmdir"
	OpSymlink   Op = "symlink"
	OpReadlink  Op = "readlink"
	OpChmod     Op = "chmod"
	OpChown     Op = "chown"
	OpSetTime   Op = "utimens"
	OpSync      Op = "fsync"
	OpSyncDir   Op = "fsync directory"
	OpStatfs    Op = "statfs"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpTruncate  Op = "truncate"
	OpAllocate  Op = "fallocate"
	OpSeek      Op = "seek"
	OpCopyRange Op = "copy_file_range"
	OpClose     Op = "close"
	OpVerify    Op = "verify root"
)

// Hook runs before each operation with the path as the caller named it. When it returns an error, the operation is not
// done and fails with that error; a syscall.Errno is handled like one from the kernel. Tests use it to put faults at the
// place where the kernel would, and to change the tree between two operations. A Hook is called from many goroutines.
type Hook func(op Op, path string) error

// reads lists the operations whose unexplained failure is a read error.
var reads = map[Op]bool{OpOpen: true, OpRead: true, OpReadDir: true, OpStat: true, OpSeek: true, OpReadlink: true, OpStatfs: true}

// makes lists the operations that add a name.
var makes = map[Op]bool{OpCreate: true, OpMkdir: true, OpRename: true, OpLink: true, OpSymlink: true}

// inParent lists the operations that need rights in the directory that holds the name.
var inParent = map[Op]bool{OpCreate: true, OpMkdir: true, OpRename: true, OpLink: true, OpSymlink: true, OpUnlink: true, OpRmdir: true}

// optional lists, per operation, the answers that mean "this file system cannot do that".
var optional = map[Op][]syscall.Errno{
	OpRename:    {syscall.EXDEV, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP},
	OpLink:      {syscall.EXDEV, syscall.EPERM, syscall.EMLINK, syscall.ENOSYS, syscall.EOPNOTSUPP},
	OpReflink:   {syscall.EXDEV, syscall.EINVAL, syscall.ENOTTY, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.ETXTBSY},
	OpCopyRange: {syscall.EXDEV, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EPERM, syscall.ETXTBSY, syscall.EBADF},
	OpAllocate:  {syscall.EINVAL, syscall.ENODEV, syscall.ENOSYS, syscall.EOPNOTSUPP},
	OpSeek:      {syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP},
	OpSymlink:   {syscall.EPERM, syscall.ENOSYS, syscall.EOPNOTSUPP},
	OpSyncDir:   {syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EBADF},
	OpChmod:     {syscall.ENOSYS, syscall.EOPNOTSUPP},
}
