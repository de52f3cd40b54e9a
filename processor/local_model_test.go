package processor

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// copyTree copies the files of a database that may be at work: when one of them goes meanwhile it begins again.
func copyTree(from, to string) (err error) {
	for range 20 {
		if err = errors.Join(os.RemoveAll(to), copyOnce(from, to)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func copyOnce(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, rel), 0o755))
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		w, err := os.Create(filepath.Join(to, rel))
		if err != nil {
			return err
		}
		_, err = w.Write([]byte(strings.TrimRight(string(b), "\x00"))) // the rest is a hole
		return errors.Join(err, w.Truncate(int64(len(b))), w.Close())
	})
}

// lives is a line whose process ends at every kind of moment.
type lives struct {
	*line
	rng   *rand.Rand
	steps atomic.Int64 // writes to the database until an image of it is taken and nothing more is written
	olds  []past

	local, files, without int
}

// past is a moment of the line that may come back: offsets that were set back, or a directory from a backup.
type past struct {
	root    snapshot.RootRef
	entries map[element.TaskID]snapshot.TaskEntry
	dir     string
}

func (l *lives) localDir() string { return filepath.Join(l.dir, "local") }
func (l *lives) imageDir() string { return filepath.Join(l.dir, "image") }

// step takes an image of the database, as a kill would leave it, between two writes.
func (l *lives) step() error {
	if n := l.steps.Add(-1); n < 0 {
		return errors.New("killed")
	} else if n > 0 {
		return nil
	}
	return errors.Join(errors.New("killed"), copyTree(l.localDir(), l.imageDir()))
}

// restart ends the process in one of several ways and begins another, whose restore has to be right.
func (l *lives) restart() {
	switch l.rng.IntN(5) {
	case 0, 1: // killed between two writes
		if l.steps.Load() > 3 {
			l.steps.Store(1 + l.rng.Int64N(3))
		}
		l.stop(time.Second) // writes what there is, and so comes to the end
		if _, err := os.Stat(l.imageDir()); err == nil {
			require.NoError(l.t, copyTree(l.imageDir(), l.localDir()))
		}
	case 2:
		l.stop(0)
	default:
		l.stop(time.Second)
	}
	require.NoError(l.t, os.RemoveAll(l.imageDir()))
	if len(l.olds) > 0 && l.rng.IntN(4) == 0 { // an old backup is put in place
		require.NoError(l.t, copyTree(l.olds[l.rng.IntN(len(l.olds))].dir, l.localDir()))
	}
	l.begin()
}

func (l *lives) begin() {
	l.inc++
	l.steps.Store(1 + l.rng.Int64N(40))
	if l.rng.IntN(2) == 0 {
		l.steps.Store(1 << 40)
	}
	l.start()
	for _, task := range []element.TaskID{task0, task1} {
		if stats, ok := l.restore(task); !ok {
			l.files++
		} else if l.local++; stats.Bytes() == 0 {
			l.without++
		}
		if len(l.olds) > 0 && l.rng.IntN(5) == 0 { // an older checkpoint, as long as its files are there
			old := l.olds[l.rng.IntN(len(l.olds))]
			if _, err := l.repo.Verify(l.t.Context(), old.entries[task]); err == nil {
				l.restoreAt(old.root, old.entries[task])
			}
		}
	}
	l.announce()
}

// remember keeps a moment.
func (l *lives) remember() {
	l.stop(time.Second)
	p := past{root: *l.root, entries: map[element.TaskID]snapshot.TaskEntry{}, dir: filepath.Join(l.dir, fmt.Sprint("old", len(l.olds)))}
	for id, e := range l.entries {
		e.Runs = slices.Clone(e.Runs)
		p.entries[id] = e
	}
	require.NoError(l.t, copyTree(l.localDir(), p.dir))
	l.olds = append(l.olds, p)
	l.begin()
}

func (l *lives) change(task element.TaskID) {
	es := map[string]snapshot.Entry{}
	for range l.rng.IntN(60) {
		key, state := fmt.Sprint(l.rng.IntN(150)), l.rng.IntN(2)
		if es[fmt.Sprint(state, key)] = put(state, key, strings.Repeat("v", l.rng.IntN(30))+fmt.Sprint(l.id)); l.rng.IntN(3) == 0 {
			es[fmt.Sprint(state, key)] = del(state, key)
		}
	}
	var list []snapshot.Entry
	for _, e := range es {
		list = append(list, e)
	}
	if l.full = (element.TaskID{}); l.rng.IntN(12) == 0 {
		l.full = task
	}
	l.checkpoint(changes{task: list})
}

// Random lives: checkpoints, merges, cleaning, tasks that leave, kills of the copy between any two writes to it, old
// copies put in place. Every restore, at any point, is either refused or exactly the state of the files, with nothing
// read but the runs that are newer than the copy (restoreAt compares both).
func TestRestoreRandomLives(t *testing.T) {
	testbed.Alongside(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("REPLAY_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		require.NoError(t, err)
	}
	t.Logf("replay: REPLAY_SEED=%d go test ./processor -run TestRestoreRandomLives", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	l := &lives{line: newLineInline(t, []int{0, 200, 1500, 20 << 10}[rng.IntN(4)]), rng: rng}
	l.line.step = l.step
	l.checkpoint(changes{})
	l.begin()
	// On a machine that is slow at times the copy may never be near enough: the life goes on until both kinds were seen.
	for i := 0; i < 120 || i < 2000 && (l.local == 0 || l.files == 0); i++ {
		task := []element.TaskID{task0, task1}[l.rng.IntN(2)]
		switch l.rng.IntN(24) {
		case 0:
			l.merge(task, 1+l.rng.IntN(20))
		case 1:
			l.clean()
		case 2, 3, 4:
			l.restart()
		case 5:
			if len(l.olds) < 4 {
				l.remember()
			}
		case 6:
			l.keeper.Left(task)
		case 7, 8:
			time.Sleep(time.Duration(l.rng.IntN(30)) * time.Millisecond)
		default:
			l.change(task)
		}
	}
	l.stop(time.Second)
	t.Logf("%d restores from the copy, %d of them without any file, %d from the files", l.local, l.without, l.files)
	require.Positive(t, l.local)
	require.Positive(t, l.files)
}
