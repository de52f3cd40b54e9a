// Package yamlx reads the service file strictly: every mistake is named with file, line, column and full path, all of
// them in one pass, and no scalar ever changes on the way in.
//
// Invariants:
//
//	I1  A scalar is its text. The place that wants it (string, duration, size, integer, boolean) says how the text is
//	    read; YAML's implicit types (no = false, 010 = 8, 1.10 = 1.1, dates) are never consulted.
//	I2  A null (~, null, nothing) is never a value: it is a mistake wherever it stands.
//	I3  A mapping holds each key once. Merge keys, tags, complex keys and further documents are refused.
//	I4  Reading is bounded: MaxFileBytes, MaxTokens before the parser runs, MaxDepth and MaxNodes (aliases counted as
//	    often as they would be expanded) after it. Aliases share the node that they name; nothing is copied.
//	I5  ${VAR} is replaced in the text of parsed scalar values only, never in keys and never before parsing, so the
//	    value of a variable cannot change the structure of the file. Replacement happens once: what a variable holds
//	    is not looked at again.
//	I6  A message quotes what stands in the file, not what a variable held, so a secret cannot get into a log.
//
// The package has no goroutine and does no I/O but ReadFile.
//
// Files: problems.go (what was found, and where), parse.go (bytes to a checked tree), env.go (replacement of
// variables), node.go (structure: mappings, lists), scalar.go (the typed readings of a text), suggest.go (near misses).
package yamlx
