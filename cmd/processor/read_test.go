//go:build unix

package main

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// A service file may be a pipe, as a shell makes it of another command. One that nobody writes to holds no command up that is
// to end.
func TestAPipeThatNobodyWritesToIsLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	_, err := load(cmd, file, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, validateJSON(cmd, file, nil), context.DeadlineExceeded)
}
