package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/millweir/millweir/internal/fault"
)

// CorruptError says that a checkpoint file is damaged, missing, or not the one that was named. It comes wrapped in a
// fault of class Stop with code Corrupt. Nothing was overwritten.
type CorruptError struct {
	Checkpoint string // name of the checkpoint, <id>-<incarnation>
	File       string // path relative to the checkpoint directory
	Kind       string // "root", "run", "marker", "chain", KindStoreID, KindAnnouncement
	Reason     string
	Err        error // cause, may be nil
}

// KindStoreID is the kind of the file that identifies the checkpoint directory.
const KindStoreID = "store id"

// KindAnnouncement is the kind of the file by which an instance is known.
const KindAnnouncement = "announcement"

// Error names checkpoint, file, kind and reason in one line.
func (e *CorruptError) Error() string {
	s := "checkpoint " + e.Checkpoint + ": " + e.Kind
	if e.Checkpoint == "" {
		s = e.Kind
	}
	if e.File != "" {
		s += " " + e.File
	}
	return s + ": " + e.Reason
}

// Unwrap gives the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

func corrupt(checkpoint, file, kind string, err error) error {
	reason := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		reason = "the file is missing"
	}
	return fault.Stopf(fault.Corrupt, "%w", &CorruptError{
		Checkpoint: checkpoint, File: file, Kind: kind, Reason: reason, Err: err,
	})
}

// errFormat is a violation of a file format; the reader that knows the file makes a CorruptError of it.
type errFormat string

func (e errFormat) Error() string { return string(e) }

func formatf(format string, args ...any) error { return errFormat(fmt.Sprintf(format, args...)) }

// ioFault classes an error of the checkpoint directory. Cancellation, absence and existence pass unclassed: the
// caller knows what they mean.
func ioFault(dir, what string, err error) error {
	return ioFaultOf(checkpointDir, dir, what, err)
}

// ioFaultOf is ioFault for a directory of any kind.
func ioFaultOf(kind, dir, what string, err error) error {
	var classed *fault.Error
	switch {
	case err == nil, errors.As(err, &classed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.Restartf(fault.CheckpointDir, "%s %s is full: %s: %w", kind, dir, what, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fault.Stopf(fault.CheckpointDir, "%s %s cannot be used: %s: %w", kind, dir, what, err)
	}
	return fault.Restartf(fault.CheckpointDir, "%s %s: %s: %w", kind, dir, what, err)
}
