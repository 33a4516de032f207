package store

// childMain runs the test binary as a child process when asked to by the environment.
func childMain() bool { return false }
