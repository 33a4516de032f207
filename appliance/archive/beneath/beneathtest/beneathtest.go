// Package beneathtest makes hooks for package beneath: faults of the file system at a chosen call, and changes made to
// the tree between two calls.
package beneathtest

import (
	"path"
	"sync"
	"syscall"

	"signalbox/appliance/archive/beneath"
)

// Fail answers the n-th call of the operation, counted from 1 over all paths that match the pattern, with the error. The
// pattern is one of path.Match against the whole path; "" matches all. Calls before and after it go through.
func Fail(op beneath.Op, pattern string, n int, errno syscall.Errno) beneath.Hook {
	return At(op, pattern, n, func(string) error { return errno })
}

// Always answers every matching call of the operation with the error.
func Always(op beneath.Op, pattern string, errno syscall.Errno) beneath.Hook {
	return func(o beneath.Op, name string) error {
		if o == op && matches(pattern, name) {
			return errno
		}
		return nil
	}
}

// At runs do before the n-th matching call of the operation; what do returns is the answer of the call if it is an error.
func At(op beneath.Op, pattern string, n int, do func(name string) error) beneath.Hook {
	var mu sync.Mutex
	seen := 0
	return func(o beneath.Op, name string) error {
		if o != op || !matches(pattern, name) {
			return nil
		}
		mu.Lock()
		seen++
		now := seen == n
		mu.Unlock()
		if !now {
			return nil
		}
		return do(name)
	}
}

// All joins hooks; the first error wins and later hooks do not see that call.
func All(hooks ...beneath.Hook) beneath.Hook {
	return func(op beneath.Op, name string) error {
		for _, h := range hooks {
			if err := h(op, name); err != nil {
				return err
			}
		}
		return nil
	}
}

// NoOpenat2 makes a root work as on a kernel without openat2.
func NoOpenat2() beneath.Hook { return Always(beneath.OpResolve, "", syscall.ENOSYS) }

func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	ok, err := path.Match(pattern, name)
	if err != nil {
		panic("beneathtest: pattern " + pattern + ": " + err.Error())
	}
	return ok
}

// Stop answers the n-th call of any operation, counted from 1, and every one after it with EIO: what a root looks like
// afterwards is what a process killed at that point leaves. Reached tells whether the call was made at all.
func Stop(n int) (hook beneath.Hook, reached func() bool) {
	var mu sync.Mutex
	seen := 0
	hook = func(beneath.Op, string) error {
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen >= n {
			return syscall.EIO
		}
		return nil
	}
	return hook, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return seen >= n
	}
}
