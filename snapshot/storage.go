package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"io"
	"time"
)

// Digest is a SHA-256.
type Digest [sha256.Size]byte

// IsZero reports that no digest is set.
func (d Digest) IsZero() bool { return d == Digest{} }

// String gives 64 lower-case hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// castagnoli is the polynomial of every CRC in the formats (CRC32C).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc32c(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// FileInfo describes a stored object.
type FileInfo struct {
	Name   string
	Length int64  // bytes
	CRC32C uint32 // of the whole object; set by Put only
	// Modified is when the object was written, by the clock of whoever keeps it: a local disk's is that of this machine, a
	// file server's its own. Set by List only; zero when that is not known.
	Modified time.Time
	// NotFile is what has the name in place of a file, "a directory"; empty for a file. Set by List only. Nothing ever deletes
	// it.
	NotFile string
}

// Storage keeps write-once objects under slash-separated names. Names are 1 to 4 elements of A-Z a-z 0-9 . _ -
// each; anything else is refused. All methods may be called at once.
//
// Errors wrap fs.ErrNotExist and fs.ErrExist where they apply; those of the medium are classed (package fault).
type Storage interface {
	// Put writes a new object. It is visible under its name only when it is complete and durable, which it is when
	// Put returns nil; on any error it is not there. A name that is taken gives fs.ErrExist and is left as it is.
	// When ctx ends, writes fail with its error and what was written is removed.
	Put(ctx context.Context, name string, write func(io.Writer) error) (FileInfo, error)
	// Open opens an object for reading. What is no file gives an error that says so, and never blocks.
	Open(ctx context.Context, name string) (Object, error)
	// List gives the objects whose name starts with prefix, which is "" or ends in "/", sorted by name, without
	// those still being written. A prefix that holds nothing gives an empty list. What has the name of one of this package's
	// files and is none is listed too, with FileInfo.NotFile: it is damage, and must not pass for absence.
	List(ctx context.Context, prefix string) ([]FileInfo, error)
	// Delete removes an object; fs.ErrNotExist when there is none.
	Delete(ctx context.Context, name string) error
	// Sweep removes what interrupted Puts left under a prefix and gives the number of objects. Puts in progress of
	// this Storage are spared. The first Sweep of a prefix makes those of another process fail; later ones take only what
	// this Storage itself has left: by then another process may have taken its place.
	Sweep(ctx context.Context, prefix string) (int, error)
	// Location is the directory or URL as messages print it.
	Location() string
	// Close releases what is held open. Objects in use stay usable.
	Close() error
}

// Directories is what a Storage has beside its objects when their names lie in directories. Without it a removal counts
// as durable when Delete returns, and a prefix that holds nothing is gone.
type Directories interface {
	// SyncDir makes the removals directly below a prefix durable. It need not be there any more.
	SyncDir(ctx context.Context, prefix string) error
	// Retire removes what interrupted Puts of any process left directly below a prefix before a moment, and then the
	// directory, if nothing is in it. It reports whether the directory is gone. A Put that finds it gone makes it again.
	Retire(ctx context.Context, prefix string, before time.Time) (bool, error)
	// SweepTop removes what interrupted Puts, and looks whether the directory can be written, of any process left beside the
	// directories before a moment, and gives the number of objects. Who wrote one and lives is told by nothing but its age: it
	// takes moments. A process that was stopped meanwhile for as long finds it gone, and loses nothing by that.
	SweepTop(ctx context.Context, before time.Time) (int, error)
}

// Object is an open object.
type Object interface {
	io.ReaderAt
	io.Closer
	// Size gives the length in bytes.
	Size() (int64, error)
}
