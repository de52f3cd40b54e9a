package verify

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyOf is a world of right outputs and one key more, "a", with these inputs and outputs.
func keyOf(format Format, in []int64, out ...[2]int64) *world {
	w := evenWorld(3, 4)
	w.cfg.Format = format
	for _, amount := range in {
		w.in = append(w.in, rec{key: "a", a: amount})
	}
	for _, o := range out {
		w.out = append(w.out, rec{key: "a", a: o[0], b: o[1]})
	}
	return w
}

// Where the right sum leaves int64 there is no right output: a sum that wrapped around is wrong, and anything else is
// neither right nor wrong.
func TestASumThatLeavesInt64IsNeverVerified(t *testing.T) {
	const most, least = math.MaxInt64, math.MinInt64
	first := [2]int64{1, most}
	for name, c := range map[string]struct {
		in      []int64
		out     [][2]int64
		partial bool
		verdict string
		wrong   int64
		missing int64
	}{
		"wrapped":               {in: []int64{most, 1}, out: [][2]int64{first, {2, least}}, verdict: Violated, wrong: 1},
		"wrapped downwards":     {in: []int64{least, -1}, out: [][2]int64{{1, least}, {2, most}}, verdict: Violated, wrong: 1},
		"wrapped and back":      {in: []int64{most, 1, -1}, out: [][2]int64{first, {2, least}, {3, most}}, verdict: Violated, wrong: 1},
		"stopped before":        {in: []int64{most, 1, 4}, out: [][2]int64{first}, verdict: NoVerdict},
		"not there yet":         {in: []int64{most, 1, 4}, partial: true, verdict: NoVerdict},
		"left out":              {in: []int64{most, 1, -1, 1}, out: [][2]int64{first, {2, most - 1}, {3, most}}, verdict: NoVerdict},
		"wrong before":          {in: []int64{5, most}, out: [][2]int64{{1, 6}}, verdict: Violated, wrong: 1},
		"missing before":        {in: []int64{5, most}, verdict: Violated, missing: 1},
		"at the ends of int64":  {in: []int64{most, least, least + 1, most}, out: [][2]int64{first, {2, -1}, {3, least}, {4, -1}}, verdict: Verified},
		"wrong beside the ends": {in: []int64{most}, out: [][2]int64{{1, least}}, verdict: Violated, wrong: 1},
	} {
		for _, format := range []Format{JSON, Binary} {
			t.Run(name+"/"+string(format), func(t *testing.T) {
				w := keyOf(format, c.in, c.out...)
				w.cfg.Partial = c.partial
				w.write(t)
				r := w.verify(t)
				require.Equal(t, c.verdict, r.Verdict, r.String())
				require.Equal(t, []int64{c.wrong, c.missing}, []int64{r.Wrong, r.Missing}, r.String())
				require.Equal(t, r.OffendingKeys, r.DetailedKeys)
				require.EqualValues(t, c.wrong+c.missing, r.OffendingKeys)
				if c.verdict == NoVerdict {
					require.EqualValues(t, 1, r.Unchecked)
					require.Contains(t, r.String(), `not checked: `+w.inName+`/0@`)
					require.Contains(t, r.String(), "leaves int64")
				}
			})
		}
	}
}
