package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/millweir/millweir/internal/vfs"
)

var _ Directories = (*Local)(nil)

// SyncDir makes the removals in a directory durable.
func (l *Local) SyncDir(ctx context.Context, prefix string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	dir := strings.TrimSuffix(prefix, "/")
	if !validPath(dir) {
		return fmt.Errorf("sync %q: %w", prefix, fs.ErrInvalid)
	}
	err := l.fs.SyncDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return l.fault("sync "+prefix, err)
}

// SweepTop removes old temporary files at the top, whoever wrote them.
func (l *Local) SweepTop(ctx context.Context, before time.Time) (int, error) {
	n, err := l.sweepOld(ctx, ".", before)
	return n, l.fault("sweep the top", err)
}

func (l *Local) sweepOld(ctx context.Context, dir string, before time.Time) (n int, err error) {
	entries, err := l.fs.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if !e.Regular || !isTemp(e.Name) || l.isBusy(name) || !e.Mod.Before(before) {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return n, err
		}
		switch err := l.fs.Remove(name); {
		case err == nil:
			n++
		case !errors.Is(err, fs.ErrNotExist):
			return n, err
		}
	}
	return n, nil
}

// Retire removes old temporary files of a directory, whoever wrote them, and the directory when that leaves it empty.
func (l *Local) Retire(ctx context.Context, prefix string, before time.Time) (bool, error) {
	dir := strings.TrimSuffix(prefix, "/")
	if !validPath(dir) {
		return false, fmt.Errorf("retire %q: %w", prefix, fs.ErrInvalid)
	}
	_, err := l.sweepOld(ctx, dir, before)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, l.fault("retire "+prefix, err)
	}
	if err == nil {
		var e vfs.Entry
		if e, err = l.fs.Stat(dir); err == nil && !e.Dir {
			return false, nil // a link to one: to remove it would take what lies behind it out of sight, empty or not
		}
	}
	if err == nil {
		err = l.fs.Remove(dir)
	}
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, fs.ErrExist):
		return false, nil // something else lies in it, or somebody has just written to it
	}
	return false, l.fault("retire "+prefix, err)
}
