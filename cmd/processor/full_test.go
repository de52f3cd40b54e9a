package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A result that nobody gets is no success, whatever the command is.
func TestAResultThatCannotBeWrittenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no device that is always full")
	}
	defer full.Close()
	s := newCheckpointStore(t)
	file := filepath.Join("..", "..", "examples", "orders.yaml")
	for _, line := range [][]string{
		{"checkpoints", "list", "--dir", s.dir}, {"checkpoints", "verify", "--dir", s.dir}, {"checkpoints", "verify", "4", "--dir", s.dir},
		{"checkpoints", "inspect", "4", "--dir", s.dir}, {"savepoint", "list", "--dir", t.TempDir()},
		{"validate", file}, {"validate", file, "--print"}, {"validate", file, "--output", "json"}, {"graph", file},
		{"version"}, {"--version"}, {"--help"}, {"help", "run"}, {"run", "--help"}, {"checkpoints"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, 1, execute(context.Background(), line, full, &stderr), line)
		require.Contains(t, stderr.String(), "no space left on device", line)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%v: %s", line, stderr.String())
	}
}
