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

	spillLockName  = "lock"
	spillOwnPrefix = "process-"       // of the directories of the processes
	spillRetry     = 10 * time.Second // after a write that failed
)

// ErrSpill is what the error of a store wraps that could not read back what it had spilled. Such a store is of no use any
// more: its Err stays, whatever is rolled back.
var ErrSpill = errors.New("spilled state cannot be read")

// SpillConfig is the configuration of a Spill.
type SpillConfig struct {
	// Dirs are the directories over which the tasks are spread, as over those of Locals. One that cannot be written to, or is
	// full, is left out, and what it would have goes to the next one. What processes that have ended left there is removed.
	Dirs []string
	// Limit in bytes is the memory that all stores of the process may hold together.
	Limit int64
	// MinFreeBytes is the free space of the file system below which nothing more is spilled. Default 256 MiB; negative: none.
	MinFreeBytes int64
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Spill is the memory budget of the stores of one process, and the directories where they put what exceeds it. These
// are made when a store needs them, and nothing in them outlives the process. Its methods may be called from
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
	roots  []*spillRoot // in the order of Dirs; what is in them is under mu
	files  int64        // made so far
	warned bool
	closed bool
}

// SpillStats is what a Spill holds, over all stores, and what it has done.
type SpillStats struct {
	Stores      int
	Limit       int64
	MemoryBytes int64 // what the stores hold in memory
	Bytes       int64 // of spilled keys and values
	DiskBytes   int64 // of files, with what is superseded and what whole states are read from
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
		p.roots = append(p.roots, &spillRoot{dir: filepath.Join(dir, SpillDirName)})
	}
	RemoveOldSpills(cfg.Logger, cfg.Dirs...)
	return p, nil
}

// failed notes that something could not be written: it stays in memory, and nothing is tried for a while.
func (p *Spill) failed(err error) {
	p.fail.Add(1)
	p.pausedUntil.Store(time.Now().Add(spillRetry).UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.roots {
		r.until = time.Time{} // all are tried again then
	}
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

// Close removes the directories. The stores must be closed.
func (p *Spill) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, r := range p.roots {
		if r.own != "" {
			errs = append(errs, r.lock.Close(), os.RemoveAll(r.own))
			r.own, r.lock = "", nil
		}
	}
	return errors.Join(errs...)
}
