package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seeded gives a source of randomness and prints how to have the same again.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("STORE_SEED"); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("replay: STORE_SEED=%d go test ./store -run '^%s$'", seed, t.Name())
	return rand.New(rand.NewPCG(seed, 1))
}

// imaged is a copy whose directory is kept as a kill would leave it, at chosen moments, with the state at every version.
type imaged struct {
	*localFixture
	states map[LocalVersion]map[string]string
	images string
	n      int
}

func newImaged(t *testing.T) *imaged {
	f := &imaged{localFixture: newLocalFixture(t), states: map[LocalVersion]map[string]string{}, images: t.TempDir()}
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes, f.cfg.memTable = 256<<20, 1<<20
	require.NoError(t, os.RemoveAll(f.local.dir))
	f.open()
	f.states[version(0)] = map[string]string{}
	f.begin()
	return f
}

func (f *imaged) checkpoint() {
	f.localFixture.checkpoint()
	m := map[string]string{}
	f.store.All(func(tb int, k, v []byte) bool {
		m[f.store.Tables()[tb].Name+"/"+string(k)] = string(v)
		return true
	})
	f.states[version(f.last)] = m
}

func (f *imaged) image() (dir string, err error) {
	f.n++
	dir = filepath.Join(f.images, strconv.Itoa(f.n))
	return dir, copyDir(filepath.Dir(f.local.dir), dir)
}

func (f *imaged) mustImage() string {
	dir, err := f.image()
	require.NoError(f.t, err)
	return dir
}

// tryCopy opens a copy and loads it. What comes without an error is the state at the version that it names.
func (f *imaged) tryCopy(dir, what string) (at LocalVersion, ok bool) {
	f.t.Helper()
	cfg := f.cfg
	cfg.Dir, cfg.Step = dir, nil
	l, err := OpenLocal(cfg)
	require.NoError(f.t, err)
	g := &localFixture{t: f.t, local: l}
	got, at, err := g.load()
	if err == nil {
		want, known := f.states[at]
		require.True(f.t, known, "%s: a version that never was: %+v", what, at)
		require.True(f.t, maps.Equal(want, got), "%s: a wrong state at %s", what, at.Name)
	}
	require.NoError(f.t, l.Close())
	return at, err == nil
}

// big writes so much that the database has several tables and logs.
func (f *imaged) big(rng *rand.Rand, rounds int) {
	for range rounds {
		for range 1000 {
			k := fmt.Appendf(nil, "key-%06d", rng.IntN(3_000))
			if rng.IntN(5) == 0 {
				f.count.Delete(k)
			} else {
				v := make([]byte, 200+rng.IntN(600))
				for i := range v {
					v[i] = byte(rng.Uint32())
				}
				f.count.Put(k, v)
			}
		}
		f.checkpoint()
		f.flush()
	}
}

// Every file of the database is flipped, cut, emptied, deleted or taken from an older image of the same database.
func TestDamagedCopyIsNeverAWrongState(t *testing.T) {
	rng := seeded(t)
	f := newImaged(t)
	f.big(rng, 2)
	older := f.mustImage()
	f.big(rng, 5)
	live := f.mustImage() // as after a kill: logs that were not written into tables
	require.NoError(t, f.local.Close())
	closed := f.mustImage()
	n := 10
	if v := os.Getenv("STORE_DAMAGES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	right, refused := 0, 0
	for i := range n {
		from := []string{live, closed}[rng.IntN(2)]
		dir := filepath.Join(f.images, "damaged")
		require.NoError(t, copyDir(from, dir))
		what := damage(t, rng, filepath.Join(dir, LocalDirName, "db"), filepath.Join(older, LocalDirName, "db"))
		if _, ok := f.tryCopy(dir, fmt.Sprintf("%d: %s: %s", i, filepath.Base(from), what)); ok {
			right++
		} else {
			refused++
		}
	}
	t.Logf("%d damaged copies: %d were right all the same, %d were not used", n, right, refused)
	require.Positive(t, refused)
	for _, from := range []string{older, live, closed} {
		_, ok := f.tryCopy(from, "undamaged")
		require.True(t, ok)
	}
}

func damage(t *testing.T, rng *rand.Rand, db, older string) string {
	files, err := os.ReadDir(db)
	require.NoError(t, err)
	name := files[rng.IntN(len(files))].Name()
	path := filepath.Join(db, name)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	used := len(strings.TrimRight(string(b), "\x00"))
	kind := rng.IntN(5)
	if used == 0 {
		kind = 3
	}
	switch kind {
	case 0, 1:
		at := rng.IntN(used)
		b[at] ^= 1 << rng.IntN(8)
		require.NoError(t, os.WriteFile(path, b, 0o644))
		return fmt.Sprintf("%s flipped at %d of %d", name, at, used)
	case 2:
		at := rng.IntN(used)
		require.NoError(t, os.Truncate(path, int64(at)))
		return fmt.Sprintf("%s cut at %d of %d", name, at, used)
	case 3:
		require.NoError(t, os.Remove(path))
		return name + " deleted"
	default:
		old, err := os.ReadFile(filepath.Join(older, name))
		if err != nil {
			require.NoError(t, os.WriteFile(path, nil, 0o644))
			return name + " emptied"
		}
		require.NoError(t, os.WriteFile(path, old, 0o644))
		return name + " from an older image"
	}
}

// The process ends between any two writes to the database: at each of them an image is taken, as it would be found.
func TestCopyKilledBetweenAnyTwoWrites(t *testing.T) {
	rng := seeded(t)
	f := newImaged(t)
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 32 << 10 // resets come in parts
	var images []string
	f.cfg.Step = func() error {
		dir, err := f.image()
		images = append(images, dir)
		return err
	}
	f.open()
	f.begin()
	kept := map[LocalVersion]int{}
	for round := range 6 {
		for range 300 * (1 + round%2*4) {
			k := fmt.Appendf(nil, "k%04d", rng.IntN(3000))
			if rng.IntN(4) == 0 {
				f.count.Delete(k)
			} else {
				f.count.Put(k, fmt.Append(nil, rng.Uint32()))
			}
		}
		f.checkpoint()
		if _, ok := f.local.Version(ordersTask); !ok || round == 3 {
			f.local.Remove(ordersTask)
			f.begin()
		}
		f.flush()
	}
	require.NoError(t, f.local.Close())
	refused := 0
	rng.Shuffle(len(images), func(i, j int) { images[i], images[j] = images[j], images[i] })
	for i, dir := range images[:min(len(images), 12)] {
		if at, ok := f.tryCopy(dir, fmt.Sprintf("image %d", i)); ok {
			kept[at]++
		} else {
			refused++
		}
	}
	t.Logf("12 of %d images: %d not used, %d versions found whole", len(images), refused, len(kept))
	require.Positive(t, refused)
	require.NotEmpty(t, kept)
}
