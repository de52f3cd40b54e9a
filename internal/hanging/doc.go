// Package hanging finds transactions of which the brokers have lost the end, tells what was decided about them, and ends them
// so. Errors are as the client gives them.
//
// Invariants:
//
//	I1  What Find gives hangs: an open transaction, or one whose markers are on their way, is never taken for one.
//	I2  End writes what the coordinator decided, or nothing.
package hanging
