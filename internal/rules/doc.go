// Package rules holds what the value of a single setting may be, for the service file and for processor.Config alike:
// there is one range and one form of each, whichever way it comes in.
//
// Invariants:
//
//	I1  A range is written down once, under the dotted path of its setting.
//	I2  A check gives a text that can follow the name of the setting, "" when nothing is wrong.
//
// The package is pure. Files: ranges.go (the table of ranges), forms.go (names, brokers, directories).
package rules
