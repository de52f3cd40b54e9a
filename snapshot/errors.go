package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
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

// UnreadableError says that a checkpoint file cannot be read for lack of the right to. It is not damage: the file may be whole,
// and a change of its owner or mode mends it. It comes wrapped in a fault of class Stop with code CheckpointDir.
type UnreadableError struct {
	Checkpoint, File, Kind string // as in CorruptError
	Err                    error
}

// Error names checkpoint, file and kind, and what to do, in one line.
func (e *UnreadableError) Error() string {
	s := "checkpoint " + e.Checkpoint + ": " + e.Kind
	if e.Checkpoint == "" {
		s = e.Kind
	}
	return fmt.Sprintf("%s %s cannot be read: %v; give the user who runs this (uid %d) the right to, it is not taken for damaged", s, e.File, causeOf(e.Err), os.Getuid())
}

// Unwrap gives the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// causeOf gives what the operating system says, without the path that the message has already.
func causeOf(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// readError classes an error of opening or reading one file. A violated format, a missing file, what is no file, and a file
// that the medium cannot give while it gives others, are damage of that file; a lack of access is an UnreadableError; other
// errors pass.
func readError(ctx context.Context, st Storage, checkpoint, file, kind string, err error) error {
	var bad errFormat
	switch {
	case err == nil, errors.As(err, new(*CorruptError)), errors.As(err, new(*UnreadableError)):
		return err
	case errors.As(err, &bad), errors.Is(err, fs.ErrNotExist):
		return corrupt(checkpoint, file, kind, err)
	case errors.Is(err, fs.ErrPermission):
		return fault.Stopf(fault.CheckpointDir, "%w", &UnreadableError{Checkpoint: checkpoint, File: file, Kind: kind, Err: err})
	case isBroken(err), errors.Is(err, syscall.EIO) && othersAnswer(ctx, st, file):
		return corrupt(checkpoint, file, kind, &brokenError{err})
	}
	return err
}

// brokenError is the error of a medium that has lost a file.
type brokenError struct{ err error }

// Error says what the operating system says.
func (e *brokenError) Error() string { return fmt.Sprintf("it cannot be read: %v", causeOf(e.err)) }

// Unwrap gives the cause.
func (e *brokenError) Unwrap() error { return e.err }

// othersAnswer tells a file that cannot be read from a directory that cannot: the store id, or for itself the listing, is
// asked. A savepoint has neither; what is said of it is said of its files.
func othersAnswer(ctx context.Context, st Storage, file string) bool {
	if file == storeIDFile {
		_, err := st.List(ctx, "")
		return err == nil
	}
	_, err := readAll(ctx, st, storeIDFile, int64(storeIDSize))
	return err == nil || errors.As(err, new(errFormat)) || errors.Is(err, fs.ErrNotExist)
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
	case isFull(err):
		return fault.Restartf(fault.CheckpointDir, "%s %s is full: %s: %w", kind, dir, what, err)
	case errors.Is(err, fs.ErrPermission), errors.As(err, new(*vfs.LinkError)), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fault.Stopf(fault.CheckpointDir, "%s %s cannot be used: %s: %w", kind, dir, what, err)
	}
	return fault.Restartf(fault.CheckpointDir, "%s %s: %s: %w", kind, dir, what, err)
}

// isFull tells a lack of room from other errors.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
