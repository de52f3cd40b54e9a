// Package element holds what travels through a topology and how it is named: records, barriers, checkpoint ids,
// tasks, partitions and positions. It imports nothing of the project, so every other package may import it.
//
// Invariants:
//
//	I1  A nil Key or Value is Kafka's null (a nil Value is a tombstone); an empty, non-nil one is empty. Nothing in
//	    the project turns one into the other.
//	I2  Headers keep their order and their repeats.
//	I3  A Position is the next offset to read: everything below it is covered, nothing at or above it is.
package element
