package memenv

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTableMatchesAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, model := NewTable(), map[string]string{}
		for range rapid.IntRange(0, 2000).Draw(t, "operations") {
			key := fmt.Sprint(rapid.IntRange(0, 900).Draw(t, "key"))
			size := rapid.IntRange(0, 3).Draw(t, "size")
			old, has := model[key]
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0:
				model[key] = "xyz"[:size]
				table.Put([]byte(key), []byte("xyz"[:size]))
			case 1:
				slot, existed := table.Upsert([]byte(key), size)
				require.Equal(t, has && len(old) == size, existed)
				if existed {
					require.Equal(t, old, string(slot))
				}
				copy(slot, "uvw")
				model[key] = "uvw"[:size]
			case 2:
				delete(model, key)
				table.Delete([]byte(key))
			case 3:
				got, ok := table.Get([]byte(key))
				require.Equal(t, has, ok)
				require.Equal(t, old, string(got))
			}
		}
		all := map[string]string{}
		for k, v := range table.All() {
			all[k] = string(v)
		}
		require.True(t, maps.Equal(model, all))
		require.Equal(t, len(model), table.Len())
	})
}
