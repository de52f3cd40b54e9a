// Package failpoint names the moments between two steps of the commit, so that a test can end the process, stop it, or
// let a step fail at exactly one of them.
//
// Without the build tag failpoints, every function is empty and inlined: the binary that is shipped has none of it. With
// the tag, the environment variable FAILPOINT arms points: a list, separated by commas, of
//
//	NAME[#N][=ACTION]
//
// where N is the hit that counts (the first when it is missing) and ACTION is
//
//	kill            SIGKILL to the own process (what happens when no action is given)
//	pause:DURATION  the whole process is stopped as by SIGSTOP, and goes on after DURATION
//	hang            the goroutine that came by never goes on; the process does
//	error           the step reports an error; only where the registry says that it can
//
// A list that names something else ends the process at its start, with status 2. A point that acts tells so on standard
// error first.
//
// Invariants:
//
//	I1  Without the tag no name of a point and no code of this package is in the binary.
//	I2  Every point of the registry is called from somewhere, and whatever is called is in the registry.
//	I3  No call is on the way of a record or of a batch.
//	I4  A point acts once in the life of a process: at its N-th hit.
//
// Goroutines: none.
//
// Files: points.go (the registry), off.go (without the tag), on.go (with it).
package failpoint
