package appliance_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// failureRows maps every row of daemon protocol 9 that this version covers to the functions that show it: tests and
// scenes of this package, and tests of the packages named before the dot, which go deeper.
var failureRows = map[int][]string{
	1:  {"sceneTargetDiskFull", "archive/daemon/work.TestTargetDiskFills"},
	2:  {"sceneOutboxDiskFull", "archive/daemon/work.TestOutboxDiskFills"},
	3:  {"scenePublishedUnjournaled", "archive/daemon/work.TestKilledAfterPublishing"},
	4:  {"sceneCompletedUnsent", "archive/daemon.TestCrashAtEveryPoint"},
	5:  {"sceneRepeatedCommand", "archive/daemon.TestRepeatedCommands"},
	6:  {"sceneChangedCommand", "TestArchiveDecisions"},
	7:  {"TestArchiveReplacedSocket", "../transport/archiveconn.TestTakeoverWhileTheOldSocketDelivers"},
	8:  {"TestArchiveClockOff", "TestArchiveClockBehind", "archive/registry.TestClockSkewIsShown"},
	9:  {"sceneTreeCutOff", "archive/inventory.TestInterruptedAnswers"},
	10: {"sceneChunkLost", "archive/inventory.TestFaultyPeerIsAskedOnceMore"},
	11: {"TestArchiveControlDatabaseRestored"},
	12: {"TestArchiveDaemonDatabaseRestored"},
	13: {"TestArchiveDaemonDatabaseDeleted", "archive/daemon.TestRestoreOfALostJob", "archive/daemon/work.TestDatabaseLostAtEveryPoint",
		"archive/route.TestDaemonThatCameBackWithANewDatabase"},
	14: {"sceneManifestAltered", "archive/daemon/work.TestAlteredManifest"},
	15: {"scenePayloadComesLate", "archive/daemon/work.TestManifestMissing"},
	16: {"scenePayloadAltered", "sceneOwnHashWins", "archive/daemon/work.TestPayloadAltered"},
	17: {"sceneSourceChangesWhileStaged", "archive/daemon/work.TestSourceChangesWhileStaged"},
	18: {"sceneSourceChangesThroughLink", "archive/daemon/work.TestSourceChangesThroughItsLink"},
	19: {"sceneBackendError", "archive/daemon/work.TestBackendAtWorkWhileStaging"},
	20: {"sceneNameTaken", "archive/daemon/work.TestDestinationTaken"},
	21: {"sceneNameAppears", "archive/daemon/work.TestDestinationAppears"},
	22: {"sceneIdenticalFile"},
	23: {"scenePermissionDenied", "TestArchiveDirectoryThatTakesNothing", "sceneUnreadableSource", "archive/daemon/work.TestPermissionDenied"},
	24: {"TestArchiveReceiveRootUnmounted", "archive/daemon/work.TestReceiveRootUnmounted"},
	25: {"sceneSparseLost", "archive/daemon/work.TestSparse"},
	26: {"sceneFileTooLarge", "TestArchiveTargetFileLimit"},
	27: {"sceneNamesThatFold", "TestArchiveTargetFoldsCase"},
	28: {"sceneEvilTorrents"},
	29: {"scenePlantedLink", "archive/daemon/work.TestPlantedSymlink"},
	30: {"scenePartialSelection", "archive/daemon/work.TestPartialSelection"},
	33: {"sceneOwnHashWins", "archive/daemon/work.TestOwnHashesWin"},
	36: {"TestArchiveCancel", "archive/daemon.TestCancelAfterTheCommitRecord"},
	37: {"TestArchiveCancel", "archive/daemon/work.TestCancelAtEveryPoint"},
	39: {"sceneRouteGap", "archive/route.TestUpdateRows"},
	40: {"sceneLibraryLinks", "TestArchiveSharedTorrents", "archive/daemon/work.TestReleaseRefuses"},
	41: {"sceneStaleVerification", "TestArchiveReleaseTooLate", "archive/daemon/work.TestReleaseRefuses"},
	42: {"sceneUnreadableSource", "archive/daemon/work.TestUnreadableSector"},
	43: {"sceneFlushFails", "archive/daemon/work.TestFlushFails"},
	44: {"sceneUnansweredCommand", "../transport/archiveconn.TestResendsAndLateAnswer"},
	45: {"TestArchiveSlowReader", "../transport/archiveconn.TestSlowReader"},
	46: {"TestArchiveStrangers", "archive/frame.TestChecksInOrder", "archive/frame.TestNonFiniteFractions"},
	47: {"TestArchiveTwoDaemonsOneID", "archive/registry.TestTwoDaemonsWithOneID"},
	48: {"scenePayloadComesLate", "archive/layout.TestReceiveIgnoresWhatIsNotComplete"},
	49: {"sceneStrayFiles", "archive/daemon/work.TestStrayFiles"},
	50: {"scenePowerLossAtManifest", "archive/layout.TestPowerLossAtEveryCall"},
	51: {"TestArchiveStrangers", "archive/frame.TestChecksInOrder"},
	52: {"sceneUnknownStep", "archive/frame.TestCommandsThatAreNotReadableAreRefused"},
	53: {"sceneClosedOffline"},
	54: {"sceneKilledWhileClosing", "archive/daemon.TestCleanUpAfterCloseResumes"},
}

// laterRows need a torrent client or a route over a network, which this version does not have.
var laterRows = []int{31, 32, 34, 35, 38}

// TestArchiveFailureRows holds the table to the sources: every row is there, every function exists, and every scene is run
// by a test.
func TestArchiveFailureRows(t *testing.T) {
	t.Parallel()
	for row := 1; row <= 54; row++ {
		if (len(failureRows[row]) > 0) == slices.Contains(laterRows, row) {
			t.Errorf("row %d: %v", row, failureRows[row])
		}
	}
	sources := map[string]source{}
	for row, names := range failureRows {
		for _, name := range names {
			dir, fn, ok := strings.Cut(strings.TrimPrefix(name, "../"), ".")
			if !ok {
				dir, fn = ".", name
			} else if strings.HasPrefix(name, "../") {
				dir = "../" + dir
			}
			s, known := sources[dir]
			if !known {
				s = readSource(t, dir)
				sources[dir] = s
			}
			switch {
			case !s.has[fn]:
				t.Errorf("row %d: there is no %s", row, name)
			case !strings.HasPrefix(fn, "Test") && !s.used[fn]:
				t.Errorf("row %d: no test runs %s", row, name)
			}
		}
	}
}

// source is what the test files of a package declare, and which of their functions they name.
type source struct{ has, used map[string]bool }

func readSource(t *testing.T, dir string) source {
	t.Helper()
	s := source{map[string]bool{}, map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", dir, err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			s.has[fn.Name.Name] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				for _, arg := range call.Args {
					if id, ok := arg.(*ast.Ident); ok {
						s.used[id.Name] = true
					}
				}
			}
			return true
		})
	}
	return s
}
