package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// written is a world of right whole outputs and one key more, "a", with amounts as they are written, and with its outputs
// COUNT:SUM.
func written(in, out string) *world {
	w := evenWorld(3, 4)
	for _, amount := range strings.Fields(in) {
		w.in = append(w.in, rec{key: "a", raw: fmt.Appendf(nil, `{"amount":%s}`, amount)})
	}
	for _, o := range strings.Fields(out) {
		count, sum, _ := strings.Cut(o, ":")
		w.out = append(w.out, rec{key: "a", raw: fmt.Appendf(nil, `{"orders":%s,"spent":%s}`, count, sum)})
	}
	return w
}

// A sum is a float64 from the first float on: what a job gives that adds the amounts in their order is verified, what differs
// by more than rounding is a violation, and what lies between is neither.
func TestAmountsWithAFraction(t *testing.T) {
	type figures struct{ wrong, missing, duplicates, inexact, fractions, unchecked int64 }
	for name, c := range map[string]struct {
		in, out string
		partial bool
		verdict string
		want    figures
	}{
		"right":               {in: "0.1 0.2 12.345", out: "1:0.1 2:0.30000000000000004 3:12.645000000000001", verdict: Verified},
		"whole ones before":   {in: "5 7 0.5", out: "1:5 2:12 3:12.5", verdict: Verified},
		"whole sums":          {in: "0.5 0.5 1 2.0 1e1", out: "1:0.5 2:1 3:2 4:4 5:14", verdict: Verified},
		"below zero":          {in: "-0.1 -0 0.1", out: "1:-0.1 2:-0.1 3:0", verdict: Verified},
		"large":               {in: "1e20 0.5 1e300", out: "1:100000000000000000000 2:1e20 3:1e300", verdict: Verified},
		"beyond exact floats": {in: "0.5 1152921504606846977 0.25", out: "1:0.5 2:1152921504606847000 3:1152921504606847000", verdict: Verified},
		"not there yet":       {in: "0.1 0.2 0.3", out: "1:0.1 2:0.30000000000000004", partial: true, verdict: Verified},

		"added as decimals":      {in: "0.1 0.2 12.345", out: "1:0.1 2:0.3 3:12.645", verdict: NoVerdict, want: figures{inexact: 1}},
		"decimals not there yet": {in: "0.1 0.2 12.345", out: "1:0.1 2:0.3", partial: true, verdict: NoVerdict, want: figures{inexact: 1}},
		"decimals and lost":      {in: "0.1 0.2 12.345", out: "1:0.1 2:0.3", verdict: Violated, want: figures{missing: 1}},
		"a last one lost":        {in: "0.1 0.2 12.345", out: "1:0.1 2:0.30000000000000004", verdict: Violated, want: figures{missing: 1}},
		"one between lost":       {in: "0.1 0.2 12.345", out: "1:0.1 3:12.645000000000001", verdict: Violated, want: figures{missing: 1}},
		"one twice":              {in: "0.1 0.2", out: "1:0.1 2:0.30000000000000004 2:0.30000000000000004", verdict: Violated, want: figures{duplicates: 1}},
		"wrong by a cent":        {in: "0.1 0.2 12.345", out: "1:0.1 2:0.30000000000000004 3:12.655", verdict: Violated, want: figures{wrong: 1}},
		"one added twice":        {in: "0.1 0.2", out: "1:0.1 2:0.5", verdict: Violated, want: figures{wrong: 1}},
		"the bits as an integer": {in: "0.5 0.25", out: "1:4602678819172646912 2:0.75", verdict: Violated, want: figures{wrong: 1}},
		"a fraction of nothing":  {in: "1 2", out: "1:1 2:3.5", verdict: Violated, want: figures{wrong: 1}},
		"leaves float64":         {in: "0.5 1e308 1e308", out: "1:0.5 2:1e308", verdict: NoVerdict, want: figures{unchecked: 1}},

		"left out":               {in: "5 0.5 7", out: "1:5 2:12", verdict: NoVerdict, want: figures{fractions: 1}},
		"left out, and one lost": {in: "5 0.5 7", out: "1:5", verdict: Violated, want: figures{fractions: 1, missing: 1}},
		"all lost":               {in: "0.5 0.25", verdict: NoVerdict, want: figures{fractions: 2}},
		"no amounts":             {in: `"0.5" null 18446744073709551616 1e999`, verdict: Verified},
	} {
		for _, budget := range []int{0, 2} {
			t.Run(name+"/budget "+strconv.Itoa(budget), func(t *testing.T) {
				w := written(c.in, c.out)
				w.cfg.Partial, w.cfg.KeyBudget = c.partial, budget
				w.write(t)
				r := w.verify(t)
				require.Equal(t, c.verdict, r.Verdict, r.String())
				require.Equal(t, c.want, figures{r.Wrong, r.Missing, r.Duplicates, r.Inexact, r.Fractions, r.Unchecked}, r.String())
				require.Equal(t, c.want.wrong+c.want.missing+c.want.duplicates, r.OffendingKeys)
				require.Equal(t, r.OffendingKeys, r.DetailedKeys)
				require.Zero(t, r.Malformed+r.Unexpected+r.OutOfOrder+r.SplitKeys)
				require.Equal(t, c.verdict == NoVerdict, strings.Contains(r.Failure(), ": no verdict: "))
				if c.verdict == NoVerdict {
					require.Contains(t, r.String(), "not checked: ")
				}
				_, err := json.Marshal(r)
				require.NoError(t, err)
			})
		}
	}
}

// What is not looked at for lack of memory is not verified.
func TestFloatsThatAreTooManyToLookAt(t *testing.T) {
	w := written("0.1 0.2", "1:0.1 2:0.3")
	w.cfg.DetailRecords = 1
	w.write(t)
	r := w.verify(t)
	require.Equal(t, NoVerdict, r.Verdict)
	require.EqualValues(t, 1, r.Inexact)
	require.Zero(t, r.OffendingKeys)
}

// Inputs in several partitions have no order, and their sum no right value: a violation, counted once.
func TestFloatsOfASplitKey(t *testing.T) {
	w := written("0.1 0.2", "1:0.1 2:0.30000000000000004")
	w.in[len(w.in)-1].part = 1
	w.write(t)
	r := w.verify(t)
	require.Equal(t, Violated, r.Verdict)
	require.Equal(t, []int64{1, 1, 1, 0}, []int64{r.SplitKeys, r.OffendingKeys, r.DetailedKeys, r.Inexact})
}
