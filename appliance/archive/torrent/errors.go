package torrent

import (
	"errors"

	"signalbox/appliance/archive/bencode"
	"signalbox/appliance/fault"
)

func coded(code, format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, format, args...).With("error_code", code)
}

func unsupported(format string, args ...any) *fault.Error {
	return coded("UNSUPPORTED_FORMAT", format, args...)
}

func tooLarge(format string, args ...any) *fault.Error {
	return coded("LIMIT_EXCEEDED", format, args...)
}

// unsafePath names the entry by its path. Paths are shown quoted and cut, for they are a stranger's bytes.
func unsafePath(code, path, rule string) *fault.Error {
	shown := path
	if len(shown) > 200 {
		shown = shown[:200] + "…"
	}
	return coded(code, "the torrent names the file %q: %s", shown, rule).With("path", shown)
}

// malformed gives a syntax error the protocol's code. Errors that are faults already pass as they are.
func malformed(err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	var b *bencode.Error
	if errors.As(err, &b) && b.Limit {
		return tooLarge("the torrent file has %s (byte %d)", b.Rule, b.Offset)
	}
	if errors.As(err, &b) {
		return unsupported("the torrent file is malformed: %s (byte %d)", b.Rule, b.Offset)
	}
	return unsupported("the torrent file is malformed")
}
