package snapshot

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

type clusterStats struct {
	Commits, Moves, Stops, Stalls, Cleans, Refused, Partly, Deleted, DeletedGone, DeletedUnread, DirsGone, DeletedIdle, DeletedQuiet, DeletedFailed, Discarded int
}

func (s *clusterStats) add(o clusterStats) {
	s.Commits += o.Commits
	s.Moves += o.Moves
	s.Stops += o.Stops
	s.Stalls += o.Stalls
	s.Cleans += o.Cleans
	s.Refused += o.Refused
	s.Partly += o.Partly
	s.Deleted += o.Deleted
	s.DeletedGone += o.DeletedGone
	s.DeletedUnread += o.DeletedUnread
	s.DirsGone += o.DirsGone
	s.DeletedIdle += o.DeletedIdle
	s.DeletedQuiet += o.DeletedQuiet
	s.DeletedFailed += o.DeletedFailed
	s.Discarded += o.Discarded
}

// count counts a Clean. One may fail, because another cleaner is at work, but only before it has deleted; without the group's
// answer it may have done a part.
func (c *cluster) count(err error) {
	c.stats.Cleans++
	switch {
	case err == nil:
	case errors.Is(err, ErrHandlesUnread) && strings.Contains(err.Error(), "only what cannot be named is deleted"):
	case errors.Is(err, errUnanswered) && strings.HasPrefix(err.Error(), "data whose own root is gone is not deleted"):
		c.stats.Partly++
	default:
		require.ErrorContains(c.rt, err, "nothing is deleted")
		c.stats.Refused++
	}
}

// finish lets one instance take over all and clean up, then looks at what is left.
func (c *cluster) finish() {
	c.quiet = true
	last := pick(c, []string{"a", "b", "c"})
	clear(c.current)
	clear(c.member)
	c.start(last)
	p := c.current[last]
	for _, id := range c.tasks {
		c.give(id, p)
	}
	for range 2 { // with a merge, so that nothing of the others is in use
		for range modelRetain + 1 {
			c.checkpoint(p, true, true)
		}
		c.merge(p)
	}
	for range modelRetain + 1 {
		c.checkpoint(p, true, true)
	}
	c.now = c.now.Add(2 * time.Hour)
	for range 2 {
		refused := c.stats.Refused
		c.cleanGone(p)
		c.clean(p)
		require.Equal(c.rt, refused, c.stats.Refused, "nobody is in the way")
	}
	c.check()
	needed := map[string]bool{storeIDFile: true}
	infos, err := c.look.List(ctx)
	require.NoError(c.rt, err)
	for _, info := range infos {
		require.NoError(c.rt, info.Err)
		require.Equal(c.rt, last, info.Instance)
		retained := slices.ContainsFunc(c.tasks, func(id element.TaskID) bool {
			return slices.Contains(c.roots[id][len(c.roots[id])-modelRetain:], info.Ref.Path)
		})
		open := !info.Committed && info.Ref.Name.ID > c.handle[c.tasks[0]].Name.ID // who knows
		require.True(c.rt, retained || open, "%s is left", info.Ref.Path)
		needed[info.Ref.Path] = true
		needed[strings.TrimSuffix(info.Ref.Path, rootSuffix)+markerSuffix] = true
		for _, e := range info.Root.Tasks {
			for _, run := range e.Runs {
				needed[run.File] = true
			}
		}
	}
	for _, f := range listAll(c.t, c.look) {
		require.True(c.rt, needed[f], "%s is left (last instance: %s)", f, last)
	}
}
