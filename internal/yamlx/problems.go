package yamlx

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/fault"
)

// maxProblems bounds how many problems are kept; a file that is wrong throughout needs no longer list.
const maxProblems = 200

// Pos is a place in what the user wrote. File is a file name, or the name of another way in ("--set …", "environment
// …") which has no lines: then Line is 0.
type Pos struct {
	File         string
	Line, Column int // from 1
}

// String gives file:line:column, or just the file's part when there are no lines.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one mistake.
type Problem struct {
	Pos
	Path    string // full dotted path, "" for the file as a whole
	Message string
}

// String gives one line: position, path, message.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Pos.String())
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteString(": ")
	}
	// One problem is one line, whatever was quoted.
	b.WriteString(strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(p.Message))
	return b.String()
}

// Problems collects all mistakes of one reading. The zero value is ready; it is not safe for concurrent use.
type Problems struct {
	list    []Problem
	dropped int
}

// Add notes a mistake. The same mistake at the same place is kept once.
func (ps *Problems) Add(pos Pos, path, format string, args ...any) {
	p := Problem{Pos: pos, Path: path, Message: fmt.Sprintf(format, args...)}
	if slices.Contains(ps.list, p) {
		return
	}
	if len(ps.list) >= maxProblems {
		ps.dropped++
		return
	}
	ps.list = append(ps.list, p)
}

// Len is the number of mistakes found.
func (ps *Problems) Len() int { return len(ps.list) + ps.dropped }

// All gives the problems sorted: those without lines (environment, --set) after those of the file, by position.
func (ps *Problems) All() []Problem {
	out := slices.Clone(ps.list)
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(noLines(a), noLines(b)), cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message),
		)
	})
	return out
}

func noLines(p Problem) int {
	if p.Line == 0 {
		return 1
	}
	return 0
}

// Error lists the problems, one line each.
func (ps *Problems) Error() string {
	lines := make([]string, 0, len(ps.list)+1)
	for _, p := range ps.All() {
		lines = append(lines, p.String())
	}
	if ps.dropped > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", ps.dropped))
	}
	return strings.Join(lines, "\n")
}

// Err gives nil when nothing was found, else the list as an error that ends the process with code BadFile.
func (ps *Problems) Err() error {
	if ps == nil || ps.Len() == 0 {
		return nil
	}
	return fault.Stopf(fault.BadFile, "%w", ps)
}
