//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	shellLine  = regexp.MustCompile(`(?:^|[ /])(?:processor|\./cmd/processor|processor-armed) ([^#&|]*)`)
)

// TestTheCommandsInTheDocumentationAreTaken: what README.md and the pages print can be copied.
func TestTheCommandsInTheDocumentationAreTaken(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	require.NoError(t, err)
	lines := 0
	for _, name := range append(pages, filepath.Join(top, "README.md")) {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, block := range shellBlock.FindAllSubmatch(page, -1) {
			for _, line := range strings.Split(string(block[1]), "\n") {
				m := shellLine.FindStringSubmatch(line)
				if m == nil || strings.Contains(line, "go build") || strings.Contains(line, "docker") {
					continue
				}
				lines++
				cmd, args, err := newRoot().Find(strings.Fields(m[1]))
				require.NoError(t, err, line)
				require.True(t, cmd.Runnable() && cmd.HasParent() && !cmd.HasAvailableSubCommands(), line)
				require.NoError(t, cmd.ParseFlags(args), line)
				require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
			}
		}
	}
	require.Greater(t, lines, 25)
}
