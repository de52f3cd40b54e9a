package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// SpillDirName is the directory of spilled state in the one that OpenSpill is given.
	SpillDirName = "spill"

	spillLockName = "lock"
	spillRetry    = 10 * time.Second // after a write that failed
)

// ErrSpill is what the error of a store wraps that could not read back what it had spilled. Such a store is of no use any
// more: its Err stays, whatever is rolled back.
var ErrSpill = errors.New("spilled state cannot be read")

// SpillConfig is the configuration of a Spill.
type SpillConfig struct {
	// Dirs are tried in this order when something is spilled for the first time. What processes that have ended left there
	// is removed.
	Dirs []string
	// Limit in bytes is the memory that all stores of the process may hold together.
	Limit int64
	// MinFreeBytes is the free space of the file system below which nothing more is spilled. Default 256 MiB; negative: none.
	MinFreeBytes int64
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Spill is the memory budget of the stores of one process, and the directory where they put what exceeds it. The
// directory is made when the first store needs it, and nothing in it outlives the process. Its methods may be called from
// anywhere.
type Spill struct {
	cfg    SpillConfig
	log    *slog.Logger
	freeAt func(dir string) (int64, bool)
	least  int64 // bytes of a file before there is another one

	used, stores         atomic.Int64
	live, disk, entries  atomic.Int64
	loads, evicted, fail atomic.Int64
	pausedUntil          atomic.Int64 // Unix time in nanoseconds: nothing is spilled before

	works sync.Pool // of *work

	mu     sync.Mutex
	dir    string // under mu: this process's own; "" until something is spilled
	lock   *os.File
	files  int64 // made so far
	warned bool
	closed bool
}

// SpillStats is what a Spill holds, over all stores, and what it has done.
type SpillStats struct {
	Stores      int
	Limit       int64
	MemoryBytes int64 // what the stores hold in memory
	Bytes       int64 // of spilled keys and values
	DiskBytes   int64 // of files, with what is superseded
	Entries     int64 // spilled, those included whose key is in memory, too
	Loads       int64 // keys read back
	Evicted     int64 // keys that went out of memory
	Failures    int64 // times that nothing could be written
}

// OpenSpill removes what processes that have ended left behind. Nothing is made before it is needed.
func OpenSpill(cfg SpillConfig) (*Spill, error) {
	if len(cfg.Dirs) == 0 || cfg.Limit <= 0 {
		return nil, fmt.Errorf("spill: %d directories, limit of %d bytes", len(cfg.Dirs), cfg.Limit)
	}
	if cfg.MinFreeBytes == 0 {
		cfg.MinFreeBytes = 256 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	p := &Spill{cfg: cfg, log: cfg.Logger, freeAt: freeBytes, least: spillFileMin, works: sync.Pool{New: func() any { return new(work) }}}
	for _, dir := range cfg.Dirs {
		if err := wipeSpills(filepath.Join(dir, SpillDirName)); err != nil {
			p.log.Warn("old spilled state is left where it is", "dir", filepath.Join(dir, SpillDirName), "error", err)
		}
	}
	return p, nil
}

// wipeSpills removes the directories below dir that no living process has locked.
func wipeSpills(dir string) error {
	found, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	guard, err := lockFile(filepath.Join(dir, spillLockName), true)
	if err != nil {
		return err
	}
	defer guard.Close()
	var errs []error
	for _, d := range found {
		if !d.IsDir() {
			continue
		}
		own := filepath.Join(dir, d.Name())
		if l, err := lockFile(filepath.Join(own, spillLockName), false); err == nil {
			errs = append(errs, l.Close(), os.RemoveAll(own))
		}
	}
	return errors.Join(errs...)
}

// claimDir gives the directory of this process, made when there is none yet or none any more. Files that were in the one
// before are open, and stay what they are.
func (p *Spill) claimDir() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", fmt.Errorf("spill: %w", os.ErrClosed)
	}
	if p.dir != "" {
		if _, err := os.Stat(p.dir); !errors.Is(err, os.ErrNotExist) {
			return p.dir, nil
		}
		p.log.Warn("the directory of spilled state was removed: another one is made", "dir", p.dir)
		_ = p.lock.Close()
		p.dir, p.lock = "", nil
	}
	var errs []error
	for _, d := range p.cfg.Dirs {
		dir := filepath.Join(d, SpillDirName)
		err := p.claimIn(dir)
		if free, ok := p.freeAt(dir); err == nil && ok && free < p.cfg.MinFreeBytes {
			err = errors.Join(fmt.Errorf("%w: %d bytes free, %d wanted", errNoSpace, free, p.cfg.MinFreeBytes), p.lock.Close(), os.RemoveAll(p.dir))
			p.dir, p.lock = "", nil
		}
		if err == nil {
			p.log.Info("state is larger than its share of memory: what was not used lately is kept on disk", "limit", p.cfg.Limit, "dir", p.dir)
			return p.dir, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", dir, err))
	}
	return "", errors.Join(errs...)
}

// claimIn makes and locks a directory below dir, out of the way of another process that wipes.
func (p *Spill) claimIn(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	guard, err := lockFile(filepath.Join(dir, spillLockName), true)
	if err != nil {
		return err
	}
	defer guard.Close()
	own, err := os.MkdirTemp(dir, "process-")
	if err != nil {
		return err
	}
	l, err := lockFile(filepath.Join(own, spillLockName), false)
	if err != nil {
		return errors.Join(err, os.RemoveAll(own))
	}
	p.dir, p.lock = own, l
	return nil
}

// create makes a file in the directory.
func (p *Spill) create(ext string) (*os.File, error) {
	dir, err := p.claimDir()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.files++
	name := fmt.Sprintf("%08d.%s", p.files, ext)
	p.mu.Unlock()
	return os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
}

// space fails when the disk is so full that the rest is left to others.
func (p *Spill) space() error {
	dir, err := p.claimDir()
	if err != nil || p.cfg.MinFreeBytes < 0 {
		return err
	}
	if free, ok := p.freeAt(dir); ok && free < p.cfg.MinFreeBytes {
		return fmt.Errorf("%w in %s: %d bytes free, %d wanted", errNoSpace, dir, free, p.cfg.MinFreeBytes)
	}
	return nil
}

// failed notes that something could not be written: it stays in memory, and nothing is tried for a while.
func (p *Spill) failed(err error) {
	p.fail.Add(1)
	p.pausedUntil.Store(time.Now().Add(spillRetry).UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.warned {
		p.warned = true
		p.log.Warn("state cannot be put on disk and stays in memory, above the limit", "limit", p.cfg.Limit, "dirs", p.cfg.Dirs, "error", err)
	}
}

func (p *Spill) paused() bool {
	until := p.pausedUntil.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// share is what each store may hold when all of them need much.
func (p *Spill) share() int64 { return p.cfg.Limit / max(1, p.stores.Load()) }

// Stats tells what is held and was done.
func (p *Spill) Stats() SpillStats {
	return SpillStats{
		Stores: int(p.stores.Load()), Limit: p.cfg.Limit, MemoryBytes: p.used.Load(), Bytes: p.live.Load(), DiskBytes: p.disk.Load(),
		Entries: p.entries.Load(), Loads: p.loads.Load(), Evicted: p.evicted.Load(), Failures: p.fail.Load(),
	}
}

// Close removes the directory. The stores must be closed.
func (p *Spill) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.dir == "" {
		return nil
	}
	err := errors.Join(p.lock.Close(), os.RemoveAll(p.dir))
	p.dir, p.lock = "", nil
	return err
}
