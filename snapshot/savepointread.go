package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
)

// never is a moment after every other: what is older goes whatever its age.
var never = time.Unix(1<<40, 0)

// ErrUnfinished is in the CorruptError of a savepoint's directory that has no metadata: it was not finished, or is half deleted.
var ErrUnfinished = errors.New("it has no metadata: it is being written, or was never finished")

// noSavepoint is in the CorruptError of a savepoint whose directory is not there. It is an ErrUnfinished, too: to whoever knows
// that it was there, it is one that was deleted to its end.
type noSavepoint struct{}

// Error says what may be the cause.
func (noSavepoint) Error() string { return "it is not there: it was disposed of, or the path is wrong" }

// Is makes it an ErrUnfinished.
func (noSavepoint) Is(target error) bool { return target == ErrUnfinished }

// Savepoint is an open savepoint. Its methods may be called from several goroutines.
type Savepoint struct {
	Ref SavepointRef
	// Root says what the savepoint holds. Its entries are for Restore and RestoreInFlight of this Savepoint only.
	Root *Root
	// Requests are as in SavepointHead, sorted.
	Requests []string

	repo *Repository
	dir  string
}

// OpenSavepoint opens a savepoint's directory, given by path or file:// URL, or its metadata file. The metadata is verified,
// the state is not: see Verify. Damage gives a CorruptError.
func OpenSavepoint(ctx context.Context, dir string) (*Savepoint, error) {
	parent, base, err := splitSavepoint(dir)
	if err != nil {
		return nil, err
	}
	st, err := openLocalReadOnly(savepointDir, parent)
	if err != nil {
		return nil, err
	}
	s, err := readSavepoint(ctx, st, base)
	if err != nil {
		st.Close()
		at := filepath.Join(parent, base)
		if _, serr := os.Lstat(at); errors.Is(err, ErrUnfinished) && errors.Is(serr, fs.ErrNotExist) {
			err = corrupt("", at, "savepoint", noSavepoint{})
		}
		return nil, err
	}
	return s, nil
}

// OpenTwin opens the savepoint that a root names: one that was cut at the same barrier, so that the state of its tasks is that
// of the root's. Another one in its place gives a CorruptError.
func OpenTwin(ctx context.Context, ref SavepointRef) (*Savepoint, error) {
	s, err := OpenSavepoint(ctx, ref.Path)
	if err != nil {
		return nil, err
	}
	if s.Ref.Digest != ref.Digest || s.Ref.ID != ref.ID {
		s.Close()
		return nil, corrupt(s.dir, s.dir+"/"+savepointMeta, "savepoint", formatf("it is not the one that was written at the checkpoint"))
	}
	return s, nil
}

// splitSavepoint divides the path of a savepoint into the directory around it and its name.
func splitSavepoint(dir string) (parent, base string, err error) {
	p := strings.TrimPrefix(dir, "file://")
	if filepath.Base(p) == savepointMeta {
		p = filepath.Dir(p)
	}
	if p, err = filepath.Abs(p); err != nil {
		return "", "", fault.Stopf(fault.Usage, "savepoint %s: %w", dir, err)
	}
	parent, base = filepath.Split(p)
	if _, _, ok := parseSavepointName(base); !ok {
		return "", "", fault.Stopf(fault.Usage, "%s is not a savepoint: its directory is named savepoint-<application>-<checkpoint>", dir)
	}
	return parent, base, nil
}

// readSavepoint reads the metadata. The Savepoint closes st.
func readSavepoint(ctx context.Context, st Storage, dir string) (*Savepoint, error) {
	file := dir + "/" + savepointMeta
	b, err := readAll(ctx, st, file, maxRootSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt(dir, file, "savepoint", ErrUnfinished)
	}
	if err != nil {
		return nil, readError(ctx, st, dir, file, "savepoint", err)
	}
	ids, root, err := decodeSavepoint(b)
	if app, name, _ := parseSavepointName(dir); err == nil && (root.Application != app || root.Name.String() != name) {
		err = formatf("it holds savepoint %s of %s", root.Name, root.Application)
	}
	if err != nil {
		return nil, corrupt(dir, file, "savepoint", err)
	}
	s := &Savepoint{Root: root, Requests: ids.requests, dir: dir, Ref: SavepointRef{ID: ids.id, Path: strings.TrimSuffix(st.Location(), "/") + "/" + dir, Digest: digestOf(b)}}
	s.repo = &Repository{st: savepointStorage{st, dir}, app: root.Application, inst: root.Instance, storeID: root.StoreID, log: slog.Default()}
	return s, nil
}

// savepointStorage finds the runs of a savepoint, which in memory have paths as those of a checkpoint.
type savepointStorage struct {
	Storage
	dir string
}

func (s savepointStorage) Open(ctx context.Context, name string) (Object, error) {
	if parseFilePath(name).kind != packFile {
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	return s.Storage.Open(ctx, s.dir+"/"+savepointData)
}

// RequestIDs gives Requests.
func (s *Savepoint) RequestIDs() []string { return s.Requests }

// named puts the savepoint's own file into an error.
func (s *Savepoint) named(err error) error {
	var bad *CorruptError
	if errors.As(err, &bad) {
		return corrupt(s.dir, s.dir+"/"+savepointData, bad.Kind, bad.Err)
	}
	if no := (*UnreadableError)(nil); errors.As(err, &no) {
		return fault.Stopf(fault.CheckpointDir, "%w", &UnreadableError{Checkpoint: s.dir, File: s.dir + "/" + savepointData, Kind: no.Kind, Err: no.Err})
	}
	return err
}

// Restore is Repository.Restore for an entry of Root.
func (s *Savepoint) Restore(ctx context.Context, entry TaskEntry, keep func(state int, key []byte) bool, apply func(Entry) error) (Stats, error) {
	st, err := s.repo.Restore(ctx, entry, keep, apply)
	return st, s.named(err)
}

// RestoreInFlight is Repository.RestoreInFlight for an entry of Root.
func (s *Savepoint) RestoreInFlight(ctx context.Context, entry TaskEntry, keep func(group int) bool, apply func(group int, data []byte) error) (int64, error) {
	n, err := s.repo.RestoreInFlight(ctx, entry, keep, apply)
	return n, s.named(err)
}

// Verify reads everything and checks every checksum. Every byte of the savepoint is under one.
func (s *Savepoint) Verify(ctx context.Context) (Stats, error) {
	var sum Stats
	for i := range s.Root.Tasks {
		st, err := s.repo.Verify(ctx, s.Root.Tasks[i])
		if err != nil {
			return sum, s.named(err)
		}
		sum.Add(s.Root.Tasks[i].Runs...)
		sum.AddInFlight(s.Root.Tasks[i].InFlight...)
		sum.Tombstones += st.Tombstones
	}
	return sum, nil
}

// Close releases what is held open.
func (s *Savepoint) Close() error { return s.repo.st.Close() }

// SavepointInfo is a savepoint on disk.
type SavepointInfo struct {
	Ref         SavepointRef // ID and Digest are set when Root is
	Application string
	Name        element.CheckpointName
	Bytes       int64    // of its files
	Root        *Root    // nil when Err is set
	Requests    []string // as in SavepointHead
	Err         error    // a CorruptError: damaged or not finished; or an UnreadableError
}

// ListSavepoints gives the savepoints in a directory, sorted by application, then newest first. The state is not read.
func ListSavepoints(ctx context.Context, dir string) ([]SavepointInfo, error) {
	st, err := openSavepoints(dir, true)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	return listSavepoints(ctx, st)
}

func listSavepoints(ctx context.Context, st Storage) ([]SavepointInfo, error) {
	files, err := st.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var out []SavepointInfo
	for _, f := range files {
		dir, base, _ := strings.Cut(f.Name, "/")
		app, name, ok := parseSavepointName(dir)
		if !ok || base != savepointMeta && base != savepointData && !isTemp(base) { // a kill while the state is written leaves no more
			continue
		}
		if n := len(out); n == 0 || path.Base(out[n-1].Ref.Path) != dir {
			info := SavepointInfo{Application: app, Ref: SavepointRef{Path: strings.TrimSuffix(st.Location(), "/") + "/" + dir}}
			info.Name, _ = ParseCheckpointName(name)
			switch s, err := readSavepoint(ctx, st, dir); {
			case err == nil:
				info.Ref, info.Root, info.Requests = s.Ref, s.Root, s.Requests
			case isOfFile(err):
				info.Err = err
			default:
				return nil, err
			}
			out = append(out, info)
		}
		out[len(out)-1].Bytes += f.Length
	}
	slices.SortStableFunc(out, func(a, b SavepointInfo) int {
		if a.Application != b.Application {
			return strings.Compare(a.Application, b.Application)
		}
		return compareNames(b.Name, a.Name)
	})
	return out, nil
}

// DisposeSavepoint deletes a savepoint. It refuses anything else: a directory of another name, one that holds anything which
// a savepoint does not, a link. One that is damaged or was never finished may go too.
func DisposeSavepoint(ctx context.Context, dir string) error {
	parent, base, err := splitSavepoint(dir)
	if err != nil {
		return err
	}
	if err := isSavepoint(filepath.Join(parent, base)); err != nil {
		return fault.Stopf(fault.Usage, "nothing is deleted: %s is not a savepoint: %w", dir, err)
	}
	st, err := openLocalReadOnly(savepointDir, parent)
	if err != nil {
		return err
	}
	defer st.Close()
	// The metadata first: what is left by an interruption is not taken for a savepoint.
	failpoint.Hit(failpoint.DisposeBefore)
	for _, name := range []string{savepointMeta, savepointData} {
		if err := st.Delete(ctx, base+"/"+name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := st.SyncDir(ctx, base+"/"); err != nil {
			return err
		}
		if name == savepointMeta {
			failpoint.Hit(failpoint.DisposeAfter)
		}
	}
	gone, err := st.Retire(ctx, base+"/", never)
	if err == nil && !gone {
		err = fault.Stopf(fault.CheckpointDir, "savepoint %s: somebody else has written to its directory, which stays", dir)
	}
	return err
}

// isSavepoint looks at everything in a directory.
func isSavepoint(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is no directory")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		ours := e.Name() == savepointMeta || e.Name() == savepointData || isTemp(e.Name())
		if !ours || !e.Type().IsRegular() {
			return fmt.Errorf("it holds %s", e.Name())
		}
	}
	f, err := os.Open(filepath.Join(dir, savepointMeta))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // one that was never finished
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(savepointMagic))
	if _, err := f.ReadAt(head, 0); err != nil || string(head) != savepointMagic {
		return fmt.Errorf("%s does not begin with %q", savepointMeta, savepointMagic)
	}
	return nil
}

// SavepointPath gives the path of a savepoint's directory as SavepointRef.Path has it, whether or not it is there.
func SavepointPath(dir string) (string, error) {
	parent, base, err := splitSavepoint(dir)
	return filepath.Join(parent, base), err
}
