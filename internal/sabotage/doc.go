// Package sabotage plants real faults into a running engine, so that the verifier can be seen to find them. Each is a
// decorator around one of the engine's interfaces; nothing but the demo wires them, and nothing in the engine knows.
//
// Invariants:
//
//	I1  Without a name given, Decorate changes nothing.
//	I2  Every fault breaks exactly-once in a way that an outside reader can see after a crash, or at once.
package sabotage
