// Package avro is the codec for Avro's binary encoding with one known schema, for dynamic values.
//
// Decoding is done by goavro. What goavro leaves open is done here: maps are encoded in the order of their keys, unions are
// plain values (no single-key maps), logical types and defaults follow the specification, the fingerprint is the same on
// every run, and bytes are checked before goavro sees them, since it trusts counts and does not limit recursion.
//
// Values, by type of the schema:
//
//	null, boolean            nil, bool
//	int, long                int64
//	float, double            float64
//	string, enum             string
//	bytes, fixed             []byte (may alias the input)
//	array                    []any, never nil
//	map, record              map[string]any, never nil
//	union                    the value itself
//	decimal (bytes, fixed)   json.Number with exactly scale digits behind the point
//	timestamp-*, local-timestamp-*, date, time-*   int64 in the unit of the schema
//	uuid                     string
//	any other logical type, or one whose attributes are wrong   as without it
//
// Encoding takes the same, and what converts without loss: any Go integer, whole floats and Numbers for int and long,
// integers for float and double, string for bytes and fixed, integers, floats and strings for decimal. A float is rounded to
// the nearest float32. A record takes default values for fields that are missing; a key that is no field is an error. For
// a union the first branch in the order of the schema that is of the value's own type is taken, else the first that
// the value converts to; records are told apart by their field names.
//
// Invariants:
//
//	I1  Bytes of any content give a value or an error: no panic, no fatal error, time and memory linear in the input
//	    (memory at most 64 MiB + 8 times the input, by estimate).
//	I2  Exactly one value is read; bytes left over are an error.
//	I3  Name depends only on the canonical form of the schema (names, types, order of fields), not on its layout.
//	I4  Encoding never rounds, cuts or leaves out anything, except float64 to float.
//	I5  A Codec does not change after New; goroutines share it.
//	I6  Equal values are encoded as equal bytes, maps in the order of their keys, so a key may have a map in it.
//
// There is no schema resolution: writer and reader use the same schema.
//
// Files:
//
//	avro.go       Codec: New, FromFile, limits
//	schema.go     schema text to schema tree
//	names.go      names, namespaces, references
//	canonical.go  canonical form, fingerprint, the schema given to goavro
//	defaults.go   default values of fields
//	scan.go       checking bytes before they are decoded
//	decode.go     what goavro gives, to values
//	encode.go     values to goavro's form, checked
//	write.go      goavro's form to bytes
//	union.go      which branch of a union a value takes
//	decimal.go    decimals as text and as bytes
package avro
