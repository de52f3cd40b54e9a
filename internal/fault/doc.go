// Package fault classes errors by what recovery does with them and by the exit code that the process ends with.
//
// An error is classed once, where its cause is known, and only wrapped afterwards. The engine asks RecoveryOf, the
// command asks CodeOf; neither looks into messages.
//
// Invariants:
//
//	I1  The class and the code of an error survive wrapping; the outermost classed error counts.
//	I2  An error without a class restarts the attempt and ends with code 1.
package fault
