package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millweir/millweir/internal/vfs"
)

// checkFiles refuses a data directory in which something else than a regular file that may be read and written lies under the
// name of one of the broker's, or no directory under the name of one, or one that may not be changed. kfake opens, truncates and renames by these names without
// a look: it would wait for the other end of a pipe, write through a link, or fail long after the start. Names that are not the broker's
// are not looked at. What is there stays as it is.
func checkFiles(dir string) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	if err := checkNames(dir, names, ".json", ".log"); err != nil {
		return err
	}
	parts := filepath.Join(dir, partitionsDir)
	if !slices.Contains(names, partitionsDir) {
		return nil
	}
	if names, err = list(parts); err != nil {
		return err
	}
	for _, name := range names {
		if _, _, ok := partitionOf(name); !ok {
			continue
		}
		sub := filepath.Join(parts, name)
		files, err := list(sub)
		if err != nil {
			return err
		}
		if err := checkNames(sub, files, ".json", ".dat", ".idx"); err != nil {
			return err
		}
	}
	return nil
}

const partitionsDir = "partitions"

// checkNames looks at the files with certain endings, and at those that are about to replace one.
func checkNames(dir string, names []string, endings ...string) error {
	for _, name := range names {
		if !slices.Contains(endings, filepath.Ext(strings.TrimSuffix(name, ".tmp"))) {
			continue
		}
		f, err := vfs.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return checkWritable(dir)
}

// checkWritable makes and removes a file. What a kill leaves of it kfake removes as it does others.
func checkWritable(dir string) error {
	f, err := os.CreateTemp(dir, "check-*.tmp")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// list gives the names in a directory, or in one that a link leads to.
func list(dir string) ([]string, error) {
	if err := vfs.MkdirAll(dir, 0o755); err != nil { // it is there; this says what is in its place
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// partitionOf reads the name of a partition's directory: the escaped topic, and the number.
func partitionOf(name string) (topic string, number int32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	n, err := strconv.ParseInt(name[i+1:], 10, 32)
	if i < 1 || err != nil {
		return "", 0, false
	}
	return name[:i], int32(n), true
}
