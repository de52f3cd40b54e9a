// Package serde turns bytes into values and values into bytes.
//
// A Serde is one codec for one Go type. The same codec serves the wire (keys and values of Kafka records) and the
// state of an application, so its Name is kept with the state and compared at a restore.
//
// Invariants:
//
//	I1  Decode(Append(nil, v)) gives v back, and Append is a pure function of v: equal values give equal bytes.
//	I2  A serde is never asked to decode a null. Null keys and tombstones are handled by the caller; an empty, non-nil
//	    slice is data like any other.
//	I3  Decode does not change its input. Its result may alias it, so the caller hands in bytes that never change.
//	I4  Append only appends: dst[:len(dst)] stays as it was, on errors too.
//	I5  Bytes of any content give a value or an error, never a panic.
//	I6  A serde holds no mutable state: tasks on different goroutines share one.
//
// The package runs no goroutine and does no I/O.
//
// Files:
//
//	serde.go    the interface, fixed sizes
//	basic.go    string, int64, double, bytes
//	dynamic.go  the same four for values of type any
//	convert.go  conversions of numbers of type any, without loss
//	json/       JSON: typed by reflection, and dynamic
//	avro/       Avro with a local schema
package serde
