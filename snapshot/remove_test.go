package snapshot

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllCheckpointsOfAnApplicationAreRemovedAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	st, err := OpenLocal(dir)
	require.NoError(t, err)
	defer st.Close()
	ours := []string{"shop/i-1/chk-1-00000000000000ab.data", "shop/i-1/chk-1-00000000000000ab.root", "shop/i-1/chk-1-00000000000000ab.committed", "shop/i-1/instance", "shop/i-2/full-1-00000000000000ab-orders-0.data"}
	others := []string{"shop/i-2/notes", "shop/readme", "shop2/i-1/chk-1-00000000000000ab.root", "store-id"}
	for _, name := range append(ours, others...) {
		_, err := st.Put(t.Context(), name, func(w io.Writer) error { _, err := w.Write([]byte("12345")); return err })
		require.NoError(t, err, name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop/i-1/0123456789abcdef.tmp"), nil, 0o600))
	h, err := HoldingsOf(t.Context(), st, "shop")
	require.NoError(t, err)
	require.Equal(t, len(ours), h.Files)
	require.EqualValues(t, 5*len(ours), h.Bytes)
	require.Equal(t, []string{"i-1", "i-2"}, h.Instances)
	require.Equal(t, []string{"shop/i-2/notes", "shop/readme"}, h.Foreign)
	require.NoError(t, h.Remove(t.Context(), st))
	require.NoError(t, h.Remove(t.Context(), st), "what is gone is no error")
	left, err := st.List(t.Context(), "")
	require.NoError(t, err)
	var names []string
	for _, f := range left {
		names = append(names, f.Name)
	}
	require.ElementsMatch(t, others, names)
	require.NoDirExists(t, filepath.Join(dir, "shop/i-1"))
	h, err = HoldingsOf(t.Context(), st, "shop")
	require.NoError(t, err)
	require.Zero(t, h.Files)
	_, err = HoldingsOf(t.Context(), st, "../x")
	require.Error(t, err)
}
