//go:build linux

package admin

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// What is no file in the place of the address, or of the file that it is written to first, holds nobody up: who writes takes its
// place or warns, who reads says what is there.
func TestAnAddressThatIsNoFileHoldsNobodyUp(t *testing.T) {
	for _, kind := range vfstest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), AddressFile)
			if !kind.Put(t, file) || !kind.Put(t, file+".tmp") {
				return
			}
			done := make(chan struct{})
			var log bytes.Buffer
			go func() {
				defer close(done)
				_, _, err := ReadAddress(filepath.Dir(file))
				require.ErrorContains(t, err, file+" is "+kind.What+", not a file")
				require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
				s, err := Start(Config{Listen: "127.0.0.1:0", AddressFile: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}, &fake{})
				require.NoError(t, err)
				got, _, err := ReadAddress(filepath.Dir(file))
				if kind.Directory() { // nothing is renamed over it
					require.Contains(t, log.String(), "--admin "+s.Addr())
				} else {
					require.NoError(t, err)
					require.Equal(t, s.Addr(), got)
					require.NotContains(t, log.String(), "level=WARN")
				}
				require.NoError(t, os.RemoveAll(file))
				kind.Put(t, file)
				require.NoError(t, s.Close())
				require.NoFileExists(t, file+".tmp-gone")
			}()
			select {
			case <-done:
			case <-time.After(15 * time.Second):
				require.Fail(t, "it blocks")
			}
		})
	}
}
