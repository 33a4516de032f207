package decide

// Rollback looks for old copies of either database at a registration (4.6). A new epoch is another database, no copy.
func Rollback(r Registration) RollbackFinding {
	f := RollbackFinding{Next: max(r.Issued, r.Used, r.LastGeneration) + 1}
	// last_generation above every generation control has issued: control runs an old copy.
	f.Control = r.LastGeneration > r.Issued
	// last_generation below the highest generation control has seen this client use, same epoch: the client does.
	f.Daemon = r.Known && r.SameEpoch && r.LastGeneration < r.Used
	return f
}
