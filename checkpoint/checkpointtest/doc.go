// Package checkpointtest helps the tests of packages that need a checkpoint.Permit: it earns one from a Coordinator the
// way a driver does, so that no other way of making one has to exist.
//
// Invariants:
//
//	I1  Only tests import it.
package checkpointtest
