package operation_test

import (
	"flag"
	"os"
	"testing"

	"signalbox/appliance/room/operation"
)

var update = flag.Bool("update", false, "write docs/room-operations.md anew")

const docsFile = "../../../docs/room-operations.md"

// TestDocs holds docs/room-operations.md to the table of operations. Run it with -update after a change.
func TestDocs(t *testing.T) {
	t.Parallel()
	want := operation.Markdown()
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/room-operations.md is not what the table says; run: go test ./appliance/room/operation -run TestDocs -update")
	}
}
