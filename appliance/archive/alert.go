package archive

// AlertKind names what an operator must know; a value of archive_alerts.kind.
type AlertKind string

// The kinds of alert.
const (
	AlertDuplicateDaemon   AlertKind = "duplicate_daemon"    // two databases answer to one daemon id (2.5)
	AlertEpochChanged      AlertKind = "epoch_changed"       // the daemon's state database is another one
	AlertDaemonRolledBack  AlertKind = "daemon_rolled_back"  // the daemon runs an old copy of its database (4.6)
	AlertControlRolledBack AlertKind = "control_rolled_back" // control runs an old copy of its database (4.6)
	AlertCommandConflict   AlertKind = "command_conflict"    // one command id, two payloads
	AlertCommitConflict    AlertKind = "commit_conflict"     // the two sides disagree about a commit
	AlertStateLost         AlertKind = "state_lost"          // one side forgot what it had acknowledged
	AlertManual            AlertKind = "manual"              // a job is held for a person
	AlertPlaceholder       AlertKind = "placeholder"         // a daemon has a job that control does not know
	AlertUndecided         AlertKind = "undecided"           // 4.2 row 19: a defect
	AlertRouteQuarantine   AlertKind = "route_quarantine"    // a gap or conflict in a route's updates
	AlertClockSkew         AlertKind = "clock_skew"          // the daemon's clock is far off
	AlertMoveUnfinished    AlertKind = "move_unfinished"     // the copy of a move is made, and giving up the source copy failed
)
