package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
)

// verifyTables reads every table of a database that is not open, and checks all its checksums. Badger does the same when
// it opens, but damage then ends the process: from a goroutine of its own, or because a length that makes no sense is
// fatal to it.
func verifyTables(dir string, opt badger.Options) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, opt.ExternalMagicVersion, opt)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	for id, t := range m.Tables {
		name := table.NewFilename(id, dir)
		if err := verifyTable(name, id, t.Compression, opt); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
	}
	return nil
}

func verifyTable(name string, id uint64, compression options.CompressionType, opt badger.Options) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := verifyTableIndex(b); err != nil {
		return err
	}
	t, err := table.OpenInMemoryTable(b, id, &table.Options{BlockSize: opt.BlockSize, Compression: compression, ChkMode: options.OnTableRead})
	if err != nil {
		return err
	}
	return t.VerifyChecksum()
}

var errTable = errors.New("damaged index")

// verifyTableIndex checks the end of a table: the index, its length, its checksum, the length of that. Whatever else is
// read of a table is found by the index.
func verifyTableIndex(b []byte) error {
	last := func() (n int, ok bool) {
		if len(b) < 4 {
			return 0, false
		}
		n, b = int(binary.BigEndian.Uint32(b[len(b)-4:])), b[:len(b)-4]
		return n, n <= len(b)
	}
	n, ok := last()
	if !ok {
		return errTable
	}
	algorithm, sum, ok := checksumOf(b[len(b)-n:])
	b = b[:len(b)-n]
	if n, _ := last(); !ok || algorithm != 0 || n == 0 || n > len(b) || sum != uint64(crc32.Checksum(b[len(b)-n:], castagnoli)) {
		return errTable
	}
	return nil
}

// checksumOf decodes Badger's message of a checksum: field 1 is the algorithm, 0 or missing for CRC32C, field 2 the sum.
func checksumOf(b []byte) (algorithm, sum uint64, ok bool) {
	for len(b) > 0 {
		v, n := binary.Uvarint(b[1:])
		if n <= 0 {
			return 0, 0, false
		}
		switch b[0] {
		case 1 << 3:
			algorithm = v
		case 2 << 3:
			sum = v
		default:
			return 0, 0, false
		}
		b = b[1+n:]
	}
	return algorithm, sum, true
}
