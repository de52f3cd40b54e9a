package topology

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestArenaNeverWritesWhatItHandedOut: encodings of any size, some given up halfway, keep their bytes.
func TestArenaNeverWritesWhatItHandedOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a arena
		var got [][]byte
		var want []string
		for i := range rapid.IntRange(1, 60).Draw(t, "encodings") {
			size := rapid.SampledFrom([]int{0, 1, 16, 500, 513, 4000, arenaChunkBytes - 1, arenaChunkBytes, 3 * arenaChunkBytes}).Draw(t, "size")
			b := a.begin()
			require.Empty(t, b)
			require.GreaterOrEqual(t, cap(b), arenaFreeBytes)
			for range size {
				b = append(b, byte(i))
			}
			if rapid.IntRange(0, 4).Draw(t, "given up") == 0 {
				continue
			}
			b = a.end(b)
			require.NotNil(t, b)
			require.Equal(t, len(b), cap(b), "an append by the receiver must not reach what follows")
			got, want = append(got, b), append(want, string(b))
		}
		for i := range got {
			require.Equal(t, want[i], string(got[i]))
		}
	})
}

func TestArenaPacksSmallEncodings(t *testing.T) {
	var a arena
	first := a.copy([]byte("abc"))
	second := a.copy([]byte("def"))
	require.Equal(t, unsafe.Add(unsafe.Pointer(unsafe.SliceData(first)), 3), unsafe.Pointer(unsafe.SliceData(second)))
}

func TestPlainTypesHoldNoPointer(t *testing.T) {
	type flat struct {
		A int64
		B [2]struct{ C float32 }
		_ [0]string
	}
	for v, want := range map[any]bool{
		int8(1): true, 1.5: true, true: true, complex64(1): true, flat{}: true, [0]string{}: true, uintptr(1): true,
		"": false, [1]string{}: false, struct{ P *int }{}: false,
	} {
		require.Equal(t, want, plain(reflect.TypeOf(v)), "%T", v)
	}
	require.False(t, isPlain[[]byte]())
	require.False(t, isPlain[any]())
	require.False(t, isPlain[map[int]int]())
}
