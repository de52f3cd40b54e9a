package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/vfs"
)

// spillRoot is one of the directories of a Spill. All but dir is under its mu.
type spillRoot struct {
	dir    string // the processes' directories are below it
	own    string // this process's; "" until something is spilled here
	lock   *os.File
	until  time.Time // a write has failed: it is left out so long
	warned bool
}

// RemoveOldSpills removes what processes that have ended left below the directories of a Spill. What cannot be removed is
// logged. Those that have no spilled state of their own should call it as well: the one before may have had.
func RemoveOldSpills(log *slog.Logger, dirs ...string) {
	for _, dir := range dirs {
		dir = filepath.Join(dir, SpillDirName)
		if err := wipeSpills(dir); err != nil {
			log.Warn("old spilled state is left where it is", "dir", dir, "error", err)
		}
	}
}

// wipeSpills removes the directories below dir that no living process has locked.
func wipeSpills(dir string) error {
	found, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	guard, err := lockSpills(dir)
	if err != nil {
		return err
	}
	defer guard.Close()
	var errs []error
	for _, d := range found {
		if d.Name() == spillLockName {
			continue
		}
		own := filepath.Join(dir, d.Name())
		if !d.IsDir() {
			if strings.HasPrefix(d.Name(), spillOwnPrefix) {
				errs = append(errs, os.Remove(own))
			}
			continue
		}
		switch l, err := lockFile(filepath.Join(own, spillLockName), false); {
		case err == nil:
			errs = append(errs, l.Close(), os.RemoveAll(own))
		case errors.As(err, new(*vfs.NotFileError)), errors.Is(err, os.ErrPermission):
			// Nobody holds that. Were it gone under somebody who lives, he would have his files, which are open, and make another.
			errs = append(errs, os.RemoveAll(own))
		case !errors.Is(err, errLocked):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// lockSpills locks the directory of all processes while one of them is made or removed there. What is no file in the place of the
// lock goes: should two processes pass it then, one may find its new directory removed, and makes another.
func lockSpills(dir string) (*os.File, error) {
	name := filepath.Join(dir, spillLockName)
	f, err := lockFile(name, true)
	if errors.As(err, new(*vfs.NotFileError)) {
		if err = os.RemoveAll(name); err == nil {
			f, err = lockFile(name, true)
		}
	}
	return f, err
}

// create makes a file in the first directory, from a place on, that can be used, and that has room for so many bytes if
// there is one.
func (p *Spill) create(place uint32, ext string, bytes int64) (*os.File, *spillRoot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, fmt.Errorf("spill: %w", os.ErrClosed)
	}
	for {
		var errs []error
		for i := range p.roots {
			r := p.roots[(int(place%uint32(len(p.roots)))+i)%len(p.roots)]
			f, err := p.createIn(r, ext, bytes)
			if err == nil {
				return f, r, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", r.dir, err))
			if len(p.roots) > 1 && bytes == 0 && !r.warned {
				r.warned = true
				p.log.Warn("a directory of spilled state cannot be used: what belongs there goes to another one, if there is one", "dir", r.dir, "error", err)
			}
		}
		if bytes == 0 {
			return nil, nil, errors.Join(errs...)
		}
		bytes = 0
	}
}

// createIn makes a file in the directory of this process below a root, made when there is none yet or none any more. Files
// that were in the one before are open, and stay what they are.
func (p *Spill) createIn(r *spillRoot, ext string, bytes int64) (*os.File, error) {
	if time.Now().Before(r.until) {
		return nil, errors.New("a write has failed lately")
	}
	if r.own != "" {
		if _, err := os.Stat(r.own); errors.Is(err, os.ErrNotExist) {
			p.log.Warn("the directory of spilled state was removed: another one is made", "dir", r.own)
			_ = r.lock.Close()
			r.own, r.lock = "", nil
		}
	}
	if r.own == "" { // the other one is in it
		if err := vfs.MkdirAll(r.dir, 0o750); err != nil {
			return nil, err
		}
	}
	if err := p.space(r, bytes); err != nil {
		return nil, err
	}
	if r.own == "" {
		if err := r.claim(); err != nil {
			return nil, err
		}
		p.log.Info("state is larger than its share of memory: what was not used lately is kept on disk", "limit", p.cfg.Limit, "dir", r.own)
	}
	p.files++
	return os.OpenFile(filepath.Join(r.own, fmt.Sprintf("%08d.%s", p.files, ext)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
}

// claim makes and locks a directory, out of the way of another process that wipes.
func (r *spillRoot) claim() error {
	guard, err := lockSpills(r.dir)
	if err != nil {
		return err
	}
	defer guard.Close()
	own, err := os.MkdirTemp(r.dir, spillOwnPrefix)
	if err != nil {
		return err
	}
	l, err := lockFile(filepath.Join(own, spillLockName), false)
	if err != nil {
		return errors.Join(err, os.RemoveAll(own))
	}
	r.own, r.lock = own, l
	return nil
}

// space fails when the disk of a root is so full that the rest is left to others, or will be with so many bytes more.
func (p *Spill) space(r *spillRoot, more int64) error {
	if p.cfg.MinFreeBytes < 0 {
		return nil
	}
	if free, ok := p.freeAt(r.dir); ok && free-more < p.cfg.MinFreeBytes {
		return fmt.Errorf("%w in %s: %d bytes free, %d wanted", errNoSpace, r.dir, free, p.cfg.MinFreeBytes+more)
	}
	return nil
}

// usable says that a file in a root may be written to.
func (p *Spill) usable(r *spillRoot) bool {
	p.mu.Lock()
	left := time.Now().Before(r.until)
	p.mu.Unlock()
	return !left && p.space(r, 0) == nil
}

// leave leaves a root out for a while, in which a write has failed.
func (p *Spill) leave(r *spillRoot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.until = time.Now().Add(spillRetry)
	if len(p.roots) > 1 && !r.warned {
		r.warned = true
		p.log.Warn("a directory of spilled state cannot be used: what belongs there goes to another one, if there is one", "dir", r.dir, "error", err)
	}
}
