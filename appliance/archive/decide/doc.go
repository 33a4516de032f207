// Package decide makes the decisions of Archive Control about jobs, and nothing else: what a daemon's cursor means
// (daemon protocol 4), how a job moves (3.4), whether an event counts (2.8) and whether a snapshot does (4.4).
//
// Every function is pure. It takes a Job, control's whole view of one job, and returns the next Job with the actions to
// write in the same transaction. The caller stores both. Nothing here reads a clock, a table or a socket; what depends on
// time or on other tables comes in as a field of Job.
//
//	Decide(Input) Outcome                          one job at one participant, by the tables of 4.1 to 4.3
//	Advance(Job, Event) (Job, []Action, error)     the state machine; an error changes nothing (fault Conflict or Invalid)
//	Judge(*Job, Arrival) Verdict                   the acceptance of an event
//	ValidateSnapshot(*Job, role, Snapshot, Known) Checked
//	SnapshotFailed(Input, Checked) Outcome         what follows a snapshot that is not valid
//	NextWindDown(*Job) (role, bool)                the participant to cancel next
//	NextStep(*Job) (step, role, bool)              the step to command next
//	MaySend(*Job, Command) bool                    the gates of sending
//	View(*Job, role) Cursor                        for RegisterResponse.control_cursors
//	Rollback(Registration) RollbackFinding
//	ParseCursor(*pb.JobCursor) (Cursor, error), Cursor.Message() *pb.JobCursor
//
// A Job is a value: the functions never change the one they are given. The command rows of a returned Job stand as they
// are after the actions; rows that the actions ask for are at its end, without an id.
package decide
