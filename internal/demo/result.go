package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/verify"
)

// Result is the outcome of a run.
type Result struct {
	Seed        uint64         `json:"seed"`
	Sabotage    string         `json:"sabotage,omitempty"`
	Elapsed     time.Duration  `json:"elapsed_ns"`
	FirstOutput time.Duration  `json:"first_output_ns"` // after the first start
	Kills       []Kill         `json:"kills"`
	Checkpoint  uint64         `json:"checkpoint"`    // the newest committed one; 0 = not known
	Notes       []string       `json:"notes"`         // what else was not as it should be
	Report      *verify.Report `json:"report"`        // nil: no verdict was reached
	Dir         string         `json:"dir,omitempty"` // what was kept
}

// Exact says that the check verified exactly-once.
func (r *Result) Exact() bool { return r.Report != nil && r.Report.Exact() }

// String gives the verdict block.
func (r *Result) String() string {
	var b strings.Builder
	b.WriteString("\n")
	if r.Report != nil {
		b.WriteString(r.Report.String())
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	if len(r.Kills) > 0 {
		fmt.Fprintf(&b, "%d times kill -9; first new total after each start: %s\n", len(r.Kills), recoveries(r.Kills))
	}
	if r.Sabotage != "" {
		if r.Exact() {
			fmt.Fprintf(&b, "the planted fault %s was NOT found\n", r.Sabotage)
		} else {
			fmt.Fprintf(&b, "the planted fault %s was found, as it should be\n", r.Sabotage)
		}
	}
	fmt.Fprintf(&b, "the same orders and kills again: --seed %d\n", r.Seed)
	if r.Dir != "" {
		fmt.Fprintf(&b, "kept in %s: the job's log, checkpoints and topology\n", r.Dir)
	}
	return b.String()
}
