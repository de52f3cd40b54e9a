package element

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The values are those of org.apache.kafka.common.utils.Utils.murmur2.
func TestMurmur2IsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		require.Equal(t, want, int32(murmur2([]byte(key))), key)
	}
}

func TestGroupRangesCoverEveryGroupOnce(t *testing.T) {
	for _, most := range []int{1, 7, 128, 1000} {
		for par := 1; par <= min(most, 130); par++ {
			next := 0
			for sub := range par {
				from, to := GroupRange(sub, par, most)
				require.Equal(t, next, from)
				for g := from; g < to; g++ {
					require.Equal(t, sub, SubtaskOf(g, par, most), fmt.Sprintf("group %d of %d, parallelism %d", g, most, par))
				}
				next = to
			}
			require.Equal(t, most, next)
		}
	}
}
