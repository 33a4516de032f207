// Package preflight finds out, before anything is assigned, whether an archive job can be done and how (daemon protocol
// 3.3).
//
// It collects facts - the registry's, the route's, what active jobs reserve, and fresh answers of both daemons: content
// trees, resources and storage - and judges them by a table of pure checks, in the order of their numbers. What passes
// becomes a plan of every file and the draft of a job definition with the revisions it was made from; what fails becomes an
// ErrorDetail that names the file, the reason and the next action.
//
// A preview is a preflight that an operator asked for. It is stored with its plan, runs on a goroutine of this package, and
// ends as passed or failed; one that the end of the process interrupts is failed by the next. Check is the preflight of a
// job about to be assigned: everything is fetched afresh, and both content revisions must equal the previewed ones.
package preflight
