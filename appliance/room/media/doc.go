// Package media keeps the files of messages: their bytes as content-addressed files in one directory, their rows in the
// database (H.8, K).
//
// The bytes come first. An upload is streamed into a temporary file, forced to disk, given its name (the SHA-256 of the
// bytes, ab/cdef…) and the directory forced too; only then the rows commit. So a row always has its file, and a file
// without a row is waste that Sweep removes. Files with the same bytes are kept once. What the wire calls mxc is the row's
// id: a UUID that says nothing and is checked against its room at every read.
package media
