package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	require.False(t, readsTerminal(file))
	require.False(t, readsTerminal(null))
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetIn(null)
	cmd.SetErr(&out)
	require.ErrorContains(t, confirm(cmd, false, "delete?"), "nothing is deleted without --yes")
	require.Empty(t, out.String(), "nobody is asked")
	require.NoError(t, confirm(cmd, true, "delete?"))
	if master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err == nil {
		defer master.Close()
		require.True(t, readsTerminal(master))
	}
}
