//go:build synctests

package synctests

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/internal/vfs"
)

// Disk is the file system that all processes share, as one process sees it: frozen with the process, and cut off for
// good when it is killed.
type Disk struct {
	vfs.FS
	host *Host
	dead atomic.Bool
	slow time.Duration // of every sync
	lies bool          // a sync does nothing

	mu    sync.Mutex
	kills []diskKill
}

// diskKill does something before the nth operation of a kind.
type diskKill struct {
	op   vfs.OpKind
	nth  int
	then func()
}

// errKilled is what a killed process gets of every operation.
var errKilled = errors.New("the process was killed")

func newDisk(fsys vfs.FS, h *Host, slow time.Duration, lies bool) *Disk {
	return &Disk{FS: fsys, host: h, slow: slow, lies: lies}
}

// Kill cuts the process off.
func (d *Disk) Kill() { d.dead.Store(true) }

// At calls then before the nth operation of a kind from now on.
func (d *Disk) At(op vfs.OpKind, nth int, then func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kills = append(d.kills, diskKill{op, nth, then})
}

// Heal takes away what would happen at operations.
func (d *Disk) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kills = nil
}

// due gives what is to be done before this operation.
func (d *Disk) due(op vfs.OpKind) (then []func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.kills {
		if k := &d.kills[i]; k.op == op && k.nth > 0 {
			if k.nth--; k.nth == 0 {
				then = append(then, k.then)
			}
		}
	}
	return then
}

// enter waits while the process is frozen and for as long as the operation takes.
func (d *Disk) enter(op vfs.OpKind, name string, takes time.Duration) error {
	if takes > 0 && !d.dead.Load() {
		time.Sleep(takes)
	}
	for thaw := d.host.frozen(); thaw != nil; thaw = d.host.frozen() {
		<-thaw
	}
	for _, then := range d.due(op) {
		then()
	}
	if d.dead.Load() {
		return &fs.PathError{Op: op.String(), Path: name, Err: errKilled}
	}
	return nil
}

func (d *Disk) Create(name string) (vfs.File, error) {
	if err := d.enter(vfs.OpCreate, name, 0); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(name)
	return d.file(name, f, err)
}

func (d *Disk) Open(name string) (vfs.File, error) {
	if err := d.enter(vfs.OpOpen, name, 0); err != nil {
		return nil, err
	}
	f, err := d.FS.Open(name)
	return d.file(name, f, err)
}

func (d *Disk) file(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, d: d, name: name}, nil
}

func (d *Disk) Link(oldname, newname string) error {
	if err := d.enter(vfs.OpLink, newname, 0); err != nil {
		return err
	}
	return d.FS.Link(oldname, newname)
}

func (d *Disk) Rename(oldname, newname string) error {
	if err := d.enter(vfs.OpRename, newname, 0); err != nil {
		return err
	}
	return d.FS.Rename(oldname, newname)
}

func (d *Disk) Remove(name string) error {
	if err := d.enter(vfs.OpRemove, name, 0); err != nil {
		return err
	}
	return d.FS.Remove(name)
}

func (d *Disk) MkdirAll(dir string) error {
	if err := d.enter(vfs.OpMkdir, dir, 0); err != nil {
		return err
	}
	return d.FS.MkdirAll(dir)
}

func (d *Disk) ReadDir(dir string) ([]vfs.Entry, error) {
	if err := d.enter(vfs.OpReadDir, dir, 0); err != nil {
		return nil, err
	}
	return d.FS.ReadDir(dir)
}

func (d *Disk) Stat(name string) (vfs.Entry, error) {
	if err := d.enter(vfs.OpStat, name, 0); err != nil {
		return vfs.Entry{}, err
	}
	return d.FS.Stat(name)
}

func (d *Disk) SyncDir(dir string) error {
	if err := d.enter(vfs.OpSyncDir, dir, d.slow); err != nil {
		return err
	}
	if d.lies {
		return nil
	}
	return d.FS.SyncDir(dir)
}

// Close leaves the file system to the other processes.
func (d *Disk) Close() error { return nil }

type diskFile struct {
	vfs.File
	d    *Disk
	name string
}

func (f *diskFile) Write(b []byte) (int, error) {
	if err := f.d.enter(vfs.OpWrite, f.name, 0); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *diskFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.d.enter(vfs.OpRead, f.name, 0); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, off)
}

func (f *diskFile) Sync() error {
	if err := f.d.enter(vfs.OpSync, f.name, f.d.slow); err != nil {
		return err
	}
	if f.d.lies {
		return nil
	}
	return f.File.Sync()
}
