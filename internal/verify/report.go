package verify

import (
	"fmt"
	"strings"
	"time"
)

// The verdicts.
const (
	Verified  = "exactly-once: verified"
	Violated  = "exactly-once: VIOLATED"
	NoVerdict = "exactly-once: no verdict" // nothing is violated as far as it can be checked, see Report.unchecked
)

// Kind names what is wrong with one record.
type Kind string

// The kinds of violation.
const (
	Duplicate  Kind = "duplicate"    // a count that the key's outputs had before
	Missing    Kind = "missing"      // an input without an output
	Wrong      Kind = "wrong"        // the right count with a wrong sum
	Disordered Kind = "out of order" // a count below one that came before it, seen for the first time
	Unexpected Kind = "unexpected"   // an output that no input can have caused: unknown key, or count out of 1…n
	Malformed  Kind = "malformed"    // an output that cannot be decoded
	Split      Kind = "split key"    // records of one key in several partitions: their order is not defined

	Unchecked Kind = "not checked" // no violation: why a key, or an input, is not verified
)

// Example is one offending record.
type Example struct {
	Kind      Kind   `json:"kind"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"` // -1: there is no record, see Expected
	Offset    int64  `json:"offset"`    // -1: there is no record
	Key       string `json:"key"`
	Expected  string `json:"expected"`
	Got       string `json:"got"`
}

// String gives the example as one line.
func (e Example) String() string {
	at := e.Topic
	if e.Partition >= 0 {
		at = fmt.Sprintf("%s/%d@%d", e.Topic, e.Partition, e.Offset)
	}
	return fmt.Sprintf("%s: %s key %q: expected %s, got %s", e.Kind, at, e.Key, e.Expected, e.Got)
}

// Report is what Verify found.
type Report struct {
	Verdict string `json:"verdict"`
	Input   string `json:"input"`
	Output  string `json:"output"`
	Partial bool   `json:"partial"` // the job was allowed to be still at work

	RecordsIn  int64 `json:"records_in"`  // inputs that count
	RecordsOut int64 `json:"records_out"` // committed outputs
	Filtered   int64 `json:"filtered"`    // inputs that the condition left out
	Skipped    int64 `json:"skipped"`     // inputs without a key or amount: they must give no output
	Keys       int64 `json:"keys"`

	Duplicates int64 `json:"duplicates"`
	Missing    int64 `json:"missing"`
	Wrong      int64 `json:"wrong"`
	OutOfOrder int64 `json:"out_of_order"`
	Unexpected int64 `json:"unexpected"`
	Malformed  int64 `json:"malformed"`
	SplitKeys  int64 `json:"split_keys"`

	// Unchecked is how many keys have an input whose sum leaves int64 or float64: there is no right output from there on.
	Unchecked int64 `json:"unchecked_keys"`
	// Inexact is how many keys have sums of floats that are not wrong by more than rounding, and not the ones expected.
	Inexact int64 `json:"inexact_keys"`
	// Fractions is how many inputs have a fraction where no output has one. They are among the skipped ones.
	Fractions int64 `json:"fractions"`

	OffendingKeys int64 `json:"offending_keys"`
	// DetailedKeys is how many of them the figures above cover; below OffendingKeys when there were too many.
	DetailedKeys int64 `json:"detailed_keys"`

	// Lag is the number of inputs whose output is not there yet; only with Partial.
	Lag int64 `json:"lag"`
	// GroupLag is the distance of the group's committed offsets to the input's end, markers included; -1 = not asked.
	GroupLag int64 `json:"group_lag"`
	// OpenOffsets is the number of output offsets past the last stable one: an open transaction, not judged.
	OpenOffsets int64 `json:"open_offsets"`

	Passes   int           `json:"passes"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	Examples []Example     `json:"examples"`
}

// Exact says that all was checked and nothing was violated.
func (r *Report) Exact() bool { return r.Verdict == Verified }

func (r *Report) conclude() {
	switch {
	case r.OffendingKeys > 0 || r.Malformed > 0:
		r.Verdict = Violated
	case len(r.unchecked()) > 0:
		r.Verdict = NoVerdict
	default:
		r.Verdict = Verified
	}
}

// Failure gives the verdict as one line, with the reason if there is none.
func (r *Report) Failure() string {
	if r.Verdict != NoVerdict {
		return r.Verdict
	}
	return r.Verdict + ": " + strings.Join(r.unchecked(), "; ")
}

// unchecked says what there is no verdict on.
func (r *Report) unchecked() (reasons []string) {
	if r.Partial && r.RecordsOut == 0 && r.RecordsIn > 0 {
		reasons = append(reasons, fmt.Sprintf("there is no output yet of any of %d inputs", r.RecordsIn))
	}
	if r.Unchecked > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d keys have a sum that leaves int64, and no right output from there on", r.Unchecked, r.Keys))
	}
	if r.Inexact > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d keys have sums of floats that may differ by rounding only", r.Inexact, r.Keys))
	}
	if r.Fractions > 0 {
		reasons = append(reasons, fmt.Sprintf("%d inputs have an amount with a fraction, and no output has one: whether the job leaves them out is not known", r.Fractions))
	}
	return reasons
}

// example keeps an example unless there are enough of its kind.
func (r *Report) example(limit int, e Example) {
	n := 0
	for i := range r.Examples {
		if r.Examples[i].Kind == e.Kind {
			n++
		}
	}
	if n < limit {
		r.Examples = append(r.Examples, e)
	}
}

// String gives the report as lines of text, the verdict last.
func (r *Report) String() string {
	var b strings.Builder
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(&b, "  %-13s "+format+"\n", append([]any{name}, args...)...)
	}
	fmt.Fprintf(&b, "%s -> %s, read_committed, %v\n", r.Input, r.Output, r.Elapsed.Round(time.Millisecond))
	line("records in", "%d%s", r.RecordsIn, r.leftOut())
	line("records out", "%d", r.RecordsOut)
	line("keys", "%d", r.Keys)
	line("duplicates", "%d", r.Duplicates)
	line("missing", "%d", r.Missing)
	line("wrong", "%d", r.Wrong)
	line("out of order", "%d", r.OutOfOrder)
	for _, rare := range []struct {
		name string
		n    int64
	}{{"unexpected", r.Unexpected}, {"malformed", r.Malformed}, {"split keys", r.SplitKeys}} {
		if rare.n > 0 {
			line(rare.name, "%d", rare.n)
		}
	}
	if r.Partial {
		line("lag", "%d inputs without an output yet", r.Lag)
	}
	if r.GroupLag >= 0 {
		line("group lag", "%d offsets", r.GroupLag)
	}
	if r.OpenOffsets > 0 {
		line("open", "%d output offsets in a transaction that is not finished: not judged", r.OpenOffsets)
	}
	if r.OffendingKeys > 0 {
		line("failing keys", "%d of %d", r.OffendingKeys, r.Keys)
		if r.DetailedKeys < r.OffendingKeys {
			line("", "too many for memory: the figures cover %d of them", r.DetailedKeys)
		}
	}
	for _, reason := range r.unchecked() {
		line("not checked", "%s", reason)
	}
	for _, e := range r.Examples {
		fmt.Fprintf(&b, "  %s\n", e)
	}
	b.WriteString(r.Verdict + "\n")
	return b.String()
}

func (r *Report) leftOut() string {
	var parts []string
	if r.Filtered > 0 {
		parts = append(parts, fmt.Sprintf("%d filtered", r.Filtered))
	}
	if r.Skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d without a key or amount", r.Skipped))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (and " + strings.Join(parts, ", ") + ")"
}
