package restart

import (
	"strconv"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
)

// Verdict is the error of giving up.
type Verdict struct {
	Strategy Kind
	// Reason is why the strategy gave up; "" when it did not, and the guard did.
	Reason string
	// Poison is true when the guard gave up.
	Poison bool
	// Restarts is the number of restarts before.
	Restarts int
	// Record is the record or timer of the last failure, nil when it was none; Failures counts the attempts that failed at it.
	Record   *Record
	Failures int
	// First is the cause of the first failure: at the record when several attempts failed there, else of those that the
	// strategy has not forgotten. Last is the latest one.
	First, Last error
}

// Error names the record, what gave up, and the first and the last cause.
func (v *Verdict) Error() string {
	var b strings.Builder
	switch {
	case v.Poison:
		b.WriteString(v.Record.String() + " fails every time: " + counted(v.Failures, "attempt") + " failed at it, after " + counted(v.Restarts, "restart"))
	default:
		b.WriteString("restart strategy " + string(v.Strategy) + " gives up after " + counted(v.Restarts, "restart") + ": " + v.Reason)
		if v.Record != nil && v.Failures > 1 {
			b.WriteString("; " + counted(v.Failures, "attempt") + " failed at " + v.Record.String())
		}
	}
	first, last := v.First.Error(), v.Last.Error()
	if first == last {
		b.WriteString("; cause: " + last)
		return b.String()
	}
	b.WriteString("; first cause: " + first + "; last cause: " + last)
	return b.String()
}

// Unwrap gives the first cause and the last one.
func (v *Verdict) Unwrap() []error { return []error{v.First, v.Last} }

// Fault classes the verdict: it ends the process, with the exit code of a bad record when it names one that several
// attempts failed at, else with the code of the last cause.
func (v *Verdict) Fault() error {
	code := fault.CodeOf(v.Last)
	if v.Poison || v.Failures > 1 {
		code = fault.BadRecord
	}
	return fault.Stopf(code, "%w", v)
}

func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

func duration(d time.Duration) string { return rules.Duration(d) }
