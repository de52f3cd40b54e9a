package vfstest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Kind is something that can have the name of a file.
type Kind struct {
	Name string
	What string // what vfs.Entry calls it
	put  func(path, away string) error
}

// portable are the kinds that every system has. away is the path of the file that was in the place, within the same root for
// a link that stays in it.
func portable() []Kind {
	return []Kind{
		{"directory", "a directory", func(path, _ string) error { return os.Mkdir(path, 0o755) }},
		{"directory with files", "a directory", func(path, _ string) error {
			return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "x"), []byte("x"), 0o644))
		}},
		{"dangling link", "a symbolic link", func(path, _ string) error { return os.Symlink(path+"-gone", path) }},
		{"link to itself", "a symbolic link", func(path, _ string) error { return os.Symlink(filepath.Base(path), path) }},
		{"link to the file elsewhere", "a symbolic link", func(path, away string) error { return os.Symlink(away, path) }},
	}
}

// Replace puts a kind in the place of a file and gives what puts the file back. It reports false, with a line in the test's
// log, when the system does not permit the kind.
func (k Kind) Replace(t testing.TB, path string) (back func(), ok bool) {
	t.Helper()
	away := filepath.Join(t.TempDir(), "away")
	good, err := os.ReadFile(path)
	if err == nil {
		err = errors.Join(os.WriteFile(away, good, 0o640), os.Remove(path))
	}
	if err != nil {
		t.Fatal(err)
	}
	back = func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, good, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if !k.at(t, path, away) {
		back()
		return back, false
	}
	return back, true
}

// Put puts a kind where nothing is. What it says is as of Replace.
func (k Kind) Put(t testing.TB, path string) (ok bool) {
	t.Helper()
	away := filepath.Join(t.TempDir(), "away")
	if err := os.WriteFile(away, []byte("elsewhere"), 0o640); err != nil {
		t.Fatal(err)
	}
	return k.at(t, path, away)
}

func (k Kind) at(t testing.TB, path, away string) bool {
	t.Helper()
	err := k.put(path, away)
	if errors.Is(err, os.ErrPermission) {
		t.Logf("%s: this system does not permit it: %v", k.Name, err)
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// Directory says that a kind is a directory.
func (k Kind) Directory() bool { return k.What == "a directory" }
