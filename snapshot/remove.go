package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/failpoint"
)

// Holdings is what a checkpoint directory holds of one application.
type Holdings struct {
	Application string
	Files       int
	Bytes       int64
	Instances   []string // sorted
	// Foreign are files below the application's directory that are not of checkpoints, and what has the name of one and is no
	// file. They are never removed.
	Foreign []string
	// InTheWay are those of them that have the name of a root or of an announcement: a start is refused for them.
	InTheWay []string

	names []string
	sizes []int64 // of names
}

// HoldingsOf looks what a checkpoint directory holds of an application. The state is not read.
func HoldingsOf(ctx context.Context, st Storage, application string) (Holdings, error) {
	h := Holdings{Application: application}
	if !ValidName(application) {
		return h, formatf("%q is not the name of an application", application)
	}
	files, err := st.List(ctx, application+"/")
	if err != nil {
		return h, err
	}
	for _, f := range files {
		dir, announced := announcedBy(f.Name)
		if !announced {
			dir = parseFilePath(f.Name).dir
		}
		if dir == "" || f.NotFile != "" {
			h.Foreign = append(h.Foreign, f.Name)
			if announced || parseFilePath(f.Name).kind == rootFile {
				h.InTheWay = append(h.InTheWay, f.Name)
			}
			continue
		}
		h.Files, h.Bytes, h.names = h.Files+1, h.Bytes+f.Length, append(h.names, f.Name)
		h.sizes = append(h.sizes, f.Length)
		if inst := path.Base(dir); !slices.Contains(h.Instances, inst) {
			h.Instances = append(h.Instances, inst)
		}
	}
	return h, nil
}

// Remove deletes all checkpoints of an application, as Holdings has found them, durably. No instance of it may run. What was
// interrupted is done again by another call with what is left. The directory itself, its identity and other applications stay.
func (h Holdings) Remove(ctx context.Context, st Storage) error {
	if err := h.remove(ctx, st, h.names); err != nil {
		return err
	}
	d, ok := st.(Directories)
	if !ok {
		return nil
	}
	for _, inst := range h.Instances {
		if _, err := d.Retire(ctx, h.Application+"/"+inst+"/", never); err != nil {
			return err
		}
	}
	_, err := d.Retire(ctx, h.Application+"/", never)
	return err
}

// RemoveDamagedStoreID deletes the identity of a checkpoint directory that cannot be read, where no checkpoint of any application
// belongs to it any more: the next start makes another one. The error is that of one that stays.
func RemoveDamagedStoreID(ctx context.Context, st Storage) error {
	_, err := awaitStoreID(ctx, st, ReadStoreID) // who makes it at this moment does not lose it
	if !errors.As(err, new(*CorruptError)) {
		return nil // it is there, or not yet, or the next start says more of it
	}
	files, lerr := st.List(ctx, "")
	if lerr != nil {
		return lerr
	}
	for _, f := range files {
		if f.Name == storeIDFile && f.NotFile != "" || parseFilePath(f.Name).kind != foreignFile {
			return err
		}
	}
	return st.Delete(ctx, storeIDFile)
}

// RemoveCheckpoints deletes the checkpoints that Holdings has found, durably, and leaves the announcements of the instances.
// No committed handle may name one of them. An instance may have started since, and have written others.
func (h Holdings) RemoveCheckpoints(ctx context.Context, st Storage) (files int, bytes int64, err error) {
	names, bytes := h.checkpoints()
	return len(names), bytes, h.remove(ctx, st, names)
}

// Checkpoints counts the files of checkpoints that Holdings has found.
func (h Holdings) Checkpoints() int {
	names, _ := h.checkpoints()
	return len(names)
}

func (h Holdings) checkpoints() (names []string, bytes int64) {
	for i, name := range h.names {
		if removalRank(name) < 3 {
			names, bytes = append(names, name), bytes+h.sizes[i]
		}
	}
	return names, bytes
}

func (h Holdings) remove(ctx context.Context, st Storage, names []string) error {
	dirs := map[string]bool{}
	// Markers go first and data goes last: whoever looks at what an interruption has left finds nothing that misses a part.
	order := slices.Clone(names)
	slices.SortStableFunc(order, func(a, b string) int { return removalRank(a) - removalRank(b) })
	for i, name := range order {
		if i > 0 && removalRank(order[i-1]) != removalRank(name) {
			if err := syncDirs(ctx, st, dirs); err != nil {
				return err
			}
		}
		if err := st.Delete(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the checkpoints of %s: %w", h.Application, err)
		}
		dirs[path.Dir(name)] = true
		failpoint.Hit(failpoint.ForgetFileAfter)
	}
	return syncDirs(ctx, st, dirs)
}

// removalRank orders the kinds of files: markers, roots, data, announcements.
func removalRank(name string) int {
	switch {
	case strings.HasSuffix(name, markerSuffix):
		return 0
	case strings.HasSuffix(name, rootSuffix):
		return 1
	case strings.HasSuffix(name, dataSuffix):
		return 2
	}
	return 3
}

func syncDirs(ctx context.Context, st Storage, dirs map[string]bool) error {
	d, ok := st.(Directories)
	if !ok {
		return nil
	}
	for dir := range dirs {
		if err := d.SyncDir(ctx, dir+"/"); err != nil {
			return err
		}
	}
	return nil
}
