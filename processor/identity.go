package processor

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/internal/vfs"
)

// maxIdentity bounds what is read of the file of the instance id.
const maxIdentity = 4096

// dataDir is the instance's own directory, locked for this process.
type dataDir struct {
	path string
	lock *os.File
}

// openDataDir creates the directory if need be and locks it. The lock dies with the process, also with kill -9.
func openDataDir(path string) (*dataDir, error) {
	if err := vfs.MkdirAll(path, 0o755); err != nil {
		return nil, dataDirFault(path, "make it", err)
	}
	f, err := vfs.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if errors.As(err, new(*vfs.NotFileError)) {
		return nil, fault.Stopf(fault.CheckpointDir, "data directory %s: %w, and keeps no other process out: remove it while no instance has the directory", path, err)
	}
	if err != nil {
		return nil, dataDirFault(path, "make the lock that keeps other processes out", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fault.Stopf(fault.Fenced, "data directory %s is in use by another process: give each instance its own data-dir", path)
		}
		return nil, fault.Stopf(fault.CheckpointDir, "lock data directory %s: %w", path, err)
	}
	return &dataDir{path: path, lock: f}, nil
}

// dataDirFault says what cannot be done without, and whether it is for lack of room.
func dataDirFault(path, what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Stopf(fault.CheckpointDir, "data directory %s is full, make room: %s: %w", path, what, err)
	}
	return fault.Stopf(fault.CheckpointDir, "data directory %s: %s: %w", path, what, err)
}

func (d *dataDir) close() error { return d.lock.Close() }

// instanceID gives the kept id, drawing it at the first start.
func (d *dataDir) instanceID() (string, error) {
	file := filepath.Join(d.path, "instance-id")
	b, err := vfs.ReadFile(file, maxIdentity)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if rules.Name(id) != "" {
			return "", fault.Stopf(fault.CheckpointDir, "%s holds %q, which is no instance id: restore it, or delete it to become a new instance", file, id)
		}
		return id, nil
	}
	if errors.Is(err, os.ErrPermission) {
		return "", fault.Stopf(fault.CheckpointDir, "instance id: %w: give the user who runs this (uid %d) the right to read it", err, os.Getuid())
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fault.Stopf(fault.CheckpointDir, "instance id: %w: restore it, or delete it to become a new instance", err)
	}
	var raw [6]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", fmt.Errorf("draw an instance id: %w", err)
	}
	id := "i-" + hex.EncodeToString(raw[:])
	if err := writeDurably(file, []byte(id+"\n")); err != nil {
		return "", dataDirFault(d.path, "keep the instance id for the next start (instance.id sets one)", err)
	}
	return id, nil
}

// writeDurably writes a small file so that after a crash it is there whole or not at all.
func writeDurably(file string, b []byte) error {
	tmp := file + ".tmp"
	f, err := vfs.CreateNew(tmp, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return vfs.SyncDir(filepath.Dir(file))
}

// newIncarnation draws the number of this process start; it is never 0.
func newIncarnation() (element.Incarnation, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw an incarnation: %w", err)
		}
		if v := binary.BigEndian.Uint64(b[:]); v != 0 {
			return element.Incarnation(v), nil
		}
	}
}
