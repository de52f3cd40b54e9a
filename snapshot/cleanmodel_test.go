package snapshot

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// TestCleanersNeverTakeWhatTheGroupNeeds plays three instances whose tasks move between them, with checkpoints that are
// committed or not, markers that are missing, merges, processes that die, are replaced, or are stopped and go on, and
// cleaners of both kinds, any number at once. Whatever reads or writes a file may be stopped there, while the others go
// on. After every step every committed handle restores the state of the model, and so does every marked root that is one of
// the newest of a task. In the end nothing is left that is not needed.
//
// rapid prints the seed and the command that replays it.
func TestCleanersNeverTakeWhatTheGroupNeeds(t *testing.T) {
	var sum clusterStats
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(t, rt, rapid.Uint64().Draw(rt, "seed"))
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			c.step()
			c.check()
		}
		c.finish()
		sum.add(c.stats)
	})
	t.Logf("%+v", sum)
	if testing.Short() {
		return // too few runs to have all of it for certain
	}
	require.Positive(t, sum.Moves)
	require.Positive(t, sum.Stops)
	require.Positive(t, sum.Deleted)
	require.Positive(t, sum.Partly)
	require.Positive(t, sum.DeletedGone)
	require.Positive(t, sum.DirsGone)
	require.Positive(t, sum.DeletedUnread)
	require.Positive(t, sum.DeletedIdle)
	require.Positive(t, sum.DeletedQuiet)
	require.Positive(t, sum.DeletedFailed)
	require.Positive(t, sum.Discarded)
}

const modelRetain = 2

// cluster is the group, the directory, and the truth about both.
type cluster struct {
	t     *testing.T
	rt    *rapid.T
	rng   *rand.Rand
	m     *vfs.Mem
	now   time.Time
	depth int
	quiet bool // nobody is stopped any more
	inc   int

	stallIn int // so many operations until the cleaner is stopped for long; not positive: it is not
	look    *Repository

	procs   []*proc          // all that ever ran
	current map[string]*proc // by instance, nil: none
	member  map[string]bool
	tasks   []element.TaskID
	owner   map[element.TaskID]*proc
	epoch   map[element.TaskID]int
	handle  map[element.TaskID]RootRef
	state   map[string]map[element.TaskID]string // by path of a committed root
	roots   map[element.TaskID][]string          // committed ones, newest last
	marked  map[string]bool
	late    []func() // markers that processes were stopped before; some never come
	want    map[element.TaskID]model
	stats   clusterStats
}

// proc is a process of an instance.
type proc struct {
	inst     string
	inc      int
	r        *Repository
	last     int // id
	chain    map[element.TaskID][]RunRef
	merged   map[element.TaskID]RunRef
	pred     *RootRef
	round    element.CheckpointName // of the last merges
	busy     bool                   // with a checkpoint; one at a time
	cleaning bool                   // one at a time
	merging  bool                   // one at a time
	idle     bool                   // cleans up, and takes no task meanwhile
}

func newCluster(t *testing.T, rt *rapid.T, seed uint64) *cluster {
	c := &cluster{
		t: t, rt: rt, rng: rand.New(rand.NewPCG(seed, 4)), m: vfs.NewMem(), now: time.Unix(1700000000, 0),
		current: map[string]*proc{}, member: map[string]bool{}, owner: map[element.TaskID]*proc{}, epoch: map[element.TaskID]int{},
		handle: map[element.TaskID]RootRef{}, state: map[string]map[element.TaskID]string{}, roots: map[element.TaskID][]string{},
		marked: map[string]bool{}, want: map[element.TaskID]model{},
	}
	c.m.SetClock(func() time.Time { return c.now })
	for i := range 3 {
		id := element.TaskID{Source: "orders", Partition: int32(i)}
		c.tasks = append(c.tasks, id)
		c.want[id] = model{}
	}
	for _, inst := range []string{"a", "b", "c"} {
		c.start(inst)
	}
	for i, id := range c.tasks {
		c.give(id, c.current[[]string{"a", "b", "c"}[i]])
	}
	c.look = openRepo(t, c.m, "viewer")
	return c
}

// stopFS is the directory as one process sees it: at any operation the process may be stopped for a while.
type stopFS struct {
	vfs.FS
	c *cluster
}

func (s stopFS) Open(name string) (vfs.File, error) {
	s.c.stop()
	return s.FS.Open(name)
}

func (s stopFS) Create(name string) (vfs.File, error) {
	s.c.stop()
	return s.FS.Create(name)
}

func (s stopFS) Link(old, name string) error {
	s.c.stop()
	return s.FS.Link(old, name)
}

func (s stopFS) Remove(name string) error {
	s.c.stop()
	return s.FS.Remove(name)
}

func (s stopFS) ReadDir(dir string) ([]vfs.Entry, error) {
	s.c.stop()
	return s.FS.ReadDir(dir)
}

// stop lets the others go on while the one who asks stands still.
func (c *cluster) stop() {
	if c.quiet || c.depth > 2 {
		return
	}
	if c.stallIn--; c.stallIn == 0 {
		c.stall()
		return
	}
	if c.rng.IntN(30<<c.depth) > 0 {
		return
	}
	c.depth++
	c.stats.Stops++
	for range 1 + c.rng.IntN(10) {
		c.step()
	}
	c.depth--
	if c.rng.IntN(3) == 0 {
		c.check()
	}
}

func pick[T any](c *cluster, list []T) T { return list[c.rng.IntN(len(list))] }

func (c *cluster) start(inst string) {
	c.inc++
	p := &proc{inst: inst, inc: c.inc, chain: map[element.TaskID][]RunRef{}, merged: map[element.TaskID]RunRef{}}
	if c.rng.IntN(3) == 0 {
		p.last = c.rng.IntN(40) // it had other tasks before
	}
	cfg := config(c.m, inst)
	cfg.MemoryThreshold = []int{0, 300, 4000}[c.rng.IntN(3)]
	cfg.Storage, cfg.NumRetained = NewLocal(stopFS{c.m, c}, "/mem"), modelRetain
	depth := c.depth
	c.depth = 9 // opening is not of interest
	r, err := OpenRepository(ctx, cfg)
	require.NoError(c.rt, err)
	c.depth = depth
	p.r = r
	for _, id := range c.tasks { // the one before it is fenced
		if old := c.owner[id]; old != nil && old.inst == inst {
			c.give(id, nil)
		}
	}
	c.procs = append(c.procs, p)
	c.current[inst], c.member[inst] = p, true
}

// give makes a process the owner, that goes on from what the handle names.
func (c *cluster) give(id element.TaskID, p *proc) {
	if p != nil && p.idle {
		return
	}
	if old := c.owner[id]; old != nil && c.rng.IntN(2) == 0 {
		old.r.Forget(old.merged[id])
		delete(old.merged, id)
	}
	c.owner[id] = p
	c.epoch[id]++
	if p == nil {
		return
	}
	p.chain[id] = nil
	if ref, ok := c.handle[id]; ok {
		root, err := c.look.ReadRoot(ctx, ref)
		require.NoError(c.rt, err)
		p.chain[id] = root.Task(id).Runs
		p.last = max(p.last, int(ref.Name.ID))
	}
}

func (c *cluster) alive() []*proc {
	var out []*proc
	for _, inst := range []string{"a", "b", "c"} {
		if p := c.current[inst]; p != nil {
			out = append(out, p)
		}
	}
	return out
}

func (c *cluster) step() {
	alive := c.alive()
	inst := pick(c, []string{"a", "b", "c"})
	switch n := c.rng.IntN(100); {
	case n < 3 || len(alive) == 0:
		c.start(inst)
	case n < 5: // dies, or is stopped for good; a member until its session is over
		for _, id := range c.tasks {
			if p := c.owner[id]; p != nil && p.inst == inst {
				c.give(id, nil)
			}
		}
		c.current[inst] = nil
	case n < 8:
		c.member[inst] = c.current[inst] != nil
	case n < 20:
		c.stats.Moves++
		c.give(pick(c, c.tasks), pick(c, alive))
	case n < 24:
		c.now = c.now.Add(time.Duration(c.rng.IntN(100)) * time.Minute)
	case n < 26:
		c.zombieWrites()
	case n < 28 && len(c.late) > 0:
		pick(c, c.late)()
	case n < 33:
		c.merge(pick(c, alive))
	case n < 43:
		c.clean(pick(c, c.procs))
	case n < 49:
		c.cleanGone(pick(c, c.procs))
	case n < 55:
		c.cleanFailed(pick(c, c.procs))
	case n < 59:
		c.cleanIdle(pick(c, c.procs))
	case n < 63:
		c.cleanQuiet(pick(c, c.procs))
	case n < 67:
		c.stalled(pick(c, c.procs))
	case n < 68:
		c.leave(inst)
	default:
		c.checkpoint(pick(c, alive), c.rng.IntN(5) > 0, c.rng.IntN(5) > 0)
	}
	if c.depth == 0 && c.quiet {
		return
	}
	c.now = c.now.Add(time.Second)
}

func (c *cluster) name(p *proc) element.CheckpointName { return nameOf(p.last, p.inc) }

// merge merges chains once after a commit.
func (c *cluster) merge(p *proc) {
	if p.merging || p.pred == nil || p.pred.Name == p.round {
		return
	}
	p.merging = true
	defer func() { p.merging = false }()
	p.round = p.pred.Name
	for _, id := range c.tasks {
		if c.owner[id] != p || len(p.chain[id]) < 2 || !p.merged[id].IsZero() {
			continue
		}
		full, err := p.r.Merge(ctx, p.round, TaskEntry{Task: id, States: counts, Runs: p.chain[id]})
		if err == nil {
			p.merged[id] = full
		}
	}
}

// runs is the chain with the merged run in place of what it covers.
func (p *proc) runs(id element.TaskID) []RunRef {
	full, chain := p.merged[id], p.chain[id]
	for i, run := range chain {
		if !full.IsZero() && run.To == full.To {
			return append([]RunRef{full}, chain[i+1:]...)
		}
	}
	return slices.Clone(chain)
}

// checkpoint may be stopped anywhere, and lose its tasks; then nothing is committed.
func (c *cluster) checkpoint(p *proc, commit, mark bool) {
	if p.busy {
		return
	}
	p.busy = true
	defer func() { p.busy = false }()
	p.last++
	root := &Root{Name: c.name(p), Predecessor: p.pred, ClusterID: "cluster-1"}
	var deltas []TaskDelta
	changes, epochs := map[element.TaskID]change{}, map[element.TaskID]int{}
	for _, id := range c.tasks {
		if c.owner[id] != p {
			continue
		}
		e := TaskEntry{Task: id, States: counts, Positions: []element.Position{position(id.Partition, int64(p.last))}, Runs: p.runs(id)}
		changes[id], epochs[id] = change{}, c.epoch[id]
		n := c.rng.IntN(3)
		if c.quiet {
			n++ // so that there is something to merge
		}
		for range n {
			k := "totals/acc|" + pick(c, []string{"x", "y", "z"})
			if changes[id][k] = nil; c.rng.IntN(3) > 0 {
				changes[id][k] = val(root.Name.String())
			}
		}
		root.Tasks = append(root.Tasks, e)
		deltas = append(deltas, delta(id, counts, int(e.ChainEnd()), p.last, changes[id]))
	}
	if len(deltas) == 0 {
		return
	}
	refs, err := p.r.Persist(ctx, root.Name, deltas)
	if err != nil {
		return
	}
	for i, ref := range refs {
		root.Tasks[i].Runs = deltas[i].Chain(root.Tasks[i].Runs, ref.Run)
	}
	if c.rng.IntN(20) == 0 && !c.quiet {
		c.discard(p, root.Name)
		return
	}
	ref, err := p.r.WriteRoot(ctx, root)
	if !commit && c.rng.IntN(2) == 0 {
		c.discard(p, root.Name)
		return
	}
	for id, epoch := range epochs {
		commit = commit && c.epoch[id] == epoch && c.owner[id] == p
	}
	if !commit || c.current[p.inst] != p || !c.member[p.inst] {
		return
	}
	require.NoError(c.rt, err)
	c.commit(p, ref, root, changes)
	if mark {
		c.mark(p, ref)
	} else {
		c.late = append(c.late, func() { c.mark(p, ref) })
	}
}

// mark writes a marker, perhaps when the root has gone.
func (c *cluster) mark(p *proc, ref RootRef) {
	if err := p.r.MarkCommitted(ctx, ref); err == nil && c.look.exists(ctx, ref.Path) {
		c.marked[ref.Path] = true
	}
}

func (c *cluster) commit(p *proc, ref RootRef, root *Root, changes map[element.TaskID]change) {
	c.stats.Commits++
	c.state[ref.Path] = map[element.TaskID]string{}
	for _, e := range root.Tasks {
		if full := p.merged[e.Task]; !full.IsZero() && len(e.Runs) > 0 && e.Runs[0] == full {
			delete(p.merged, e.Task)
		}
		c.handle[e.Task] = ref
		p.chain[e.Task] = e.Runs
		c.want[e.Task].apply(changes[e.Task])
		c.state[ref.Path][e.Task] = c.want[e.Task].String()
		c.roots[e.Task] = append(c.roots[e.Task], ref.Path)
	}
	p.pred = &ref
}

// zombieWrites lets a process that was replaced, or lost all, write what it had begun. It cannot commit it.
func (c *cluster) zombieWrites() {
	p := pick(c, c.procs)
	if c.current[p.inst] == p {
		return
	}
	p.last++
	root := &Root{Name: c.name(p), Predecessor: p.pred, ClusterID: "cluster-1"}
	for _, id := range c.tasks {
		if chain := p.runs(id); len(chain) > 0 && int(chainEnd(chain)) < p.last {
			e := TaskEntry{Task: id, States: counts, Positions: []element.Position{position(id.Partition, int64(p.last))}, Runs: chain}
			refs, err := p.r.Persist(ctx, nameOf(p.last, p.inc*1000+int(id.Partition)), []TaskDelta{delta(id, counts, int(e.ChainEnd()), p.last, change{"totals/acc|x": val("zombie")})})
			if err == nil {
				e.Runs = append(e.Runs, refs[0].Run)
				root.Tasks = append(root.Tasks, e)
			}
		}
	}
	if c.rng.IntN(2) == 0 {
		_, _ = p.r.WriteRoot(ctx, root) // what it names may be gone
	}
}

func (c *cluster) clean(p *proc) {
	if p.cleaning {
		return
	}
	p.cleaning = true
	var keep []RootRef
	for _, id := range c.tasks { // what the caller knows of the group may be little
		if ref, ok := c.handle[id]; ok && c.owner[id] == p && c.rng.IntN(2) == 0 {
			keep = append(keep, ref)
		}
	}
	rep, err := p.r.Clean(ctx, keep, c.goneInput().Committed)
	c.count(err)
	c.stats.Deleted += rep.Deleted
	p.cleaning = false
}

func (c *cluster) goneInput() GoneInput {
	return GoneInput{
		Grace: time.Hour, Now: c.now,
		Live: func(context.Context) (out []string, err error) {
			c.stop()
			for inst, in := range c.member {
				if in {
					out = append(out, inst)
				}
			}
			return out, nil
		},
		Committed: func(context.Context) (out []RootRef, err error) {
			c.stop()
			if !c.quiet && c.rng.IntN(4) == 0 {
				return nil, errors.New("no answer")
			}
			damaged := !c.quiet && c.rng.IntN(4) == 0
			for _, ref := range c.handle {
				if !damaged || c.rng.IntN(2) == 0 {
					out = append(out, ref)
				}
			}
			if len(out) < len(c.handle) {
				err = ErrHandlesUnread
			}
			return out, err
		},
	}
}

func (c *cluster) cleanGone(p *proc) {
	rep, err := p.r.CleanGone(ctx, c.goneInput())
	c.count(err)
	if errors.Is(err, ErrHandlesUnread) {
		c.stats.DeletedUnread += rep.Deleted
	}
	c.stats.DeletedGone += rep.Deleted
	c.stats.DirsGone += len(rep.Gone)
}

// cleanIdle is for a process without a task, replaced or not. It takes up none before that is over.
func (c *cluster) cleanIdle(p *proc) {
	for _, id := range c.tasks {
		if c.owner[id] == p {
			return
		}
	}
	if p.busy || p.merging || p.cleaning {
		return
	}
	p.busy, p.merging, p.cleaning, p.idle = true, true, true, true
	clear(p.merged)
	rep, err := p.r.CleanIdle(ctx, c.goneInput())
	c.count(err)
	c.stats.DeletedIdle += rep.Deleted
	p.busy, p.merging, p.cleaning, p.idle = false, false, false, false
}

// cleanQuiet is for a process with tasks or without, that goes on with its checkpoints meanwhile.
func (c *cluster) cleanQuiet(p *proc) {
	if p.merging || p.cleaning {
		return
	}
	p.merging, p.cleaning = true, true
	in := c.goneInput()
	in.Busy = true
	rep, err := p.r.CleanIdle(ctx, in)
	c.count(err)
	c.stats.DeletedQuiet += rep.Deleted
	p.merging, p.cleaning = false, false
}

func (c *cluster) check() {
	restore := func(path string, id element.TaskID, want string) {
		root, _, err := c.look.loadRoot(ctx, path)
		require.NoError(c.rt, err)
		got, err := restoreModel(c.look, *root.Task(id))
		require.NoError(c.rt, err, "%s of %s", id, path)
		require.Equal(c.rt, want, got.String(), "%s of %s", id, path)
	}
	for id, ref := range c.handle {
		restore(ref.Path, id, c.want[id].String())
	}
	for id, paths := range c.roots {
		for _, path := range paths[max(0, len(paths)-modelRetain):] {
			if c.marked[path] {
				restore(path, id, c.state[path][id])
			}
		}
	}
}
