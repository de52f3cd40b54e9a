// Package config reads the service file: the settings of the process and, through package pipeline, its topology.
//
// There is one table of settings (settings.go). Parsing, the environment, --set, the effective configuration and the
// reference page docs/settings.md all come from it, so none of them can know a setting that the others do not.
//
// Invariants:
//
//	I1  Precedence is default < file < environment (MILLWEIR_…) < --set. A value is read by the same code on every
//	    way in and gives the same message; values that another one overrides are checked too.
//	I2  A setting is never silently without effect. What the process does not obey yet (the list of package processor)
//	    accepts only the value that describes what the process does, and says so otherwise.
//	I3  All mistakes are reported at once, with position and path; a Service is returned only when there are none.
//	I4  Everything in a Service is valid and derived values are filled in: its readers check nothing again.
//	I5  Print gives a file that Load reads back to an equal Service.
//	I6  What a value may be, alone or beside others, is written down once for the file and for programs: in package
//	    rules and in processor.Config.Check. Here it only gets its position.
//
// The package has no goroutine.
//
// Files: service.go (the result), settings.go (the table), kinds.go (readings of one value), gaps.go (what is not obeyed
// yet), load.go (the ways in and their precedence), derive.go (what depends on several settings), print.go (effective values and where each came
// from), topology.go (the sections of package pipeline), processor.go (the form of package processor), reference.go
// (the reference page).
package config
