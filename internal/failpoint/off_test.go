//go:build !failpoints

package failpoint_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
)

func TestNothingHappensWithoutTheTag(t *testing.T) {
	t.Setenv("FAILPOINT", string(failpoint.EndTxnBefore))
	require.False(t, failpoint.Enabled)
	for _, info := range failpoint.Points {
		failpoint.Hit(info.Point)
		require.NoError(t, failpoint.Err(info.Point))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		failpoint.Hit(failpoint.EndTxnBefore)
		_ = failpoint.Err(failpoint.EndTxnBefore)
	}))
}

// build links the processor and gives the binary and the list of its symbols.
func build(t *testing.T, flags ...string) (binary, symbols []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "processor")
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", file}, flags...), "./cmd/processor")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	binary, err = os.ReadFile(file)
	require.NoError(t, err)
	symbols, err = exec.Command("go", "tool", "nm", file).Output()
	require.NoError(t, err)
	return binary, symbols
}

// What is not in the binary costs nothing. The second half shows that the first would find it.
func TestTheShippedBinaryHasNoTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("links the processor twice")
	}
	const own = "millweir/internal/failpoint"
	binary, symbols := build(t)
	require.NotContains(t, string(symbols), own)
	require.False(t, bytes.Contains(binary, []byte(own)), "not even in the tables for stack traces")
	for _, info := range failpoint.Points {
		require.False(t, bytes.Contains(binary, []byte(info.Point)), "%s is in the binary", info.Point)
		require.False(t, bytes.Contains(binary, []byte(info.Where)), "%s is in the binary", info.Where)
	}
	require.False(t, bytes.Contains(binary, []byte("FAILPOINT")))

	binary, symbols = build(t, "-tags", "failpoints")
	require.Contains(t, string(symbols), own)
	for _, info := range failpoint.Points {
		require.True(t, bytes.Contains(binary, []byte(info.Point)), "%s is not in the binary of the tests", info.Point)
	}
}

func BenchmarkHit(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		failpoint.Hit(failpoint.EndTxnBefore)
		if failpoint.Err(failpoint.EndTxnBefore) != nil {
			b.Fatal()
		}
	}
}
