// Package beneath gives access to one directory tree through an open handle of its root: every operation names a path
// relative to that handle, is resolved beneath it, and refuses symbolic links in every component (daemon protocol 7.4).
//
// A *Root stays bound to the directory that was opened. When another file system is mounted over it, or it is unmounted,
// operations still reach the old directory or fail; they never reach what took its place. Verify tells whether the
// configured path still leads to the same directory.
//
// Paths are relative and separated by "/"; "" and "." name the root itself. Names are bytes: nothing is normalized.
// All failures are *Error with a code of the protocol. Operations block for as long as the file system does.
package beneath
