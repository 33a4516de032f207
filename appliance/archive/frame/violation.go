package frame

import (
	"fmt"
	"strings"
	"unicode/utf8"

	pb "signalbox/appliance/archive/archivepb"
)

// Violation is a frame or file that failed a check of daemon protocol 2.2. Nothing of the input stands in it, so that it
// can go to any log or peer.
type Violation struct {
	Check  int          // row of the table in 2.2: 3 to 8
	Offset int          // byte offset in the input, -1 where no single place is at fault
	Code   pb.ErrorCode // PROTOCOL_VIOLATION; VERSION_MISMATCH for another major; a file's own code
	Reason string       // what is wrong: fixed text, field names of the schema and rules

	// EnvelopeID and ClientID are those of the envelope, for an answer (2.5). They are empty where the frame has none that
	// is a UUID, and after checks 3 and 4.
	EnvelopeID, ClientID string
}

// Error tells the check, the place and the reason.
func (v *Violation) Error() string {
	if v.Offset < 0 {
		return fmt.Sprintf("check %d: %s", v.Check, v.Reason)
	}
	return fmt.Sprintf("check %d at byte %d: %s", v.Check, v.Offset, v.Reason)
}

func violation(check, offset int, reason string) *Violation {
	return &Violation{Check: check, Offset: offset, Code: pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION, Reason: reason}
}

// position returns the byte offset that the text of a parser's error tells as "(line L:C)", with C in characters, -1 if
// it tells none. Nothing else of that text is looked at: it quotes the input.
func position(data []byte, err error) int {
	_, rest, found := strings.Cut(err.Error(), "(line ")
	var line, column int
	if !found {
		return -1
	}
	if n, _ := fmt.Sscanf(rest, "%d:%d)", &line, &column); n != 2 || line < 1 || column < 1 {
		return -1
	}
	i := 0
	for ; line > 1; line-- {
		for i < len(data) && data[i] != '\n' {
			i++
		}
		i++
	}
	for ; column > 1 && i < len(data); column-- {
		_, n := utf8.DecodeRune(data[i:])
		i += n
	}
	return min(i, len(data))
}
