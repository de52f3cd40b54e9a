//go:build unix

package integration

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/kafka"
)

func (w *operatorWalk) offsets() kadm.Offsets {
	got, err := w.adm.FetchOffsets(w.ctx, w.app)
	if err != nil {
		return kadm.Offsets{}
	}
	return got.Offsets()
}

func (w *operatorWalk) deleteOffsets() { w.loseOffsets(w.offsets(), "all") }

func (w *operatorWalk) deleteSomeOffsets() {
	some := kadm.Offsets{}
	w.offsets().Each(func(o kadm.Offset) {
		if w.oneIn(2) {
			some.Add(o)
		}
	})
	w.loseOffsets(some, "some")
}

func (w *operatorWalk) loseOffsets(these kadm.Offsets, what string) {
	app := w.app
	set := kadm.TopicsSet{}
	these.Each(func(o kadm.Offset) { set.Add(o.Topic, o.Partition) })
	if len(set) == 0 {
		return
	}
	w.say("  %s offsets deleted: %v", what, set.Topics())
	w.counts["offsets deleted"]++
	if os.Getenv("WALK_MIXED") != "" {
		w.book.allow(anyhow, "it begins anew where the directory is another one, too")
	}
	w.members()
	got, err := w.adm.DeleteOffsets(w.ctx, app, set)
	require.NoError(w.t, err)
	require.NoError(w.t, got.Error())
	w.undo = append(w.undo, undoing{"offsets", func() {
		w.members()
		require.NoError(w.t, w.adm.CommitAllOffsets(w.ctx, app, these))
	}})
}

// changeOffset does what another tool does that sets an offset, or damages its metadata.
func (w *operatorWalk) changeOffset() {
	var all []kadm.Offset
	w.offsets().Each(func(o kadm.Offset) { all = append(all, o) })
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b kadm.Offset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	old := pick(w.rnd, all)
	o, how := old, pick(w.rnd, []string{"moved back", "without metadata", "damaged", "another's"})
	switch how {
	case "moved back":
		o.At = w.rnd.Int64N(o.At + 1)
	case "without metadata":
		o.Metadata = ""
	case "damaged":
		o.Metadata = o.Metadata[:w.rnd.IntN(len(o.Metadata)+1)]
	default:
		o.Metadata = pick(w.rnd, all).Metadata
	}
	w.say("  offset of %s/%d %s", o.Topic, o.Partition, how)
	w.commits(o)
	w.undo = append(w.undo, undoing{"offsets", func() { w.commits(old) }})
}

// staleOffsets puts the offsets of an earlier round back, as a tool or brokers that lost commits do.
func (w *operatorWalk) staleOffsets() {
	if w.staleApp != w.app || len(w.stale) == 0 {
		return
	}
	for _, o := range w.stale {
		if !slices.Contains(w.now.topics(), o.Topic) || w.book.parts[o.Topic] <= int(o.Partition) {
			return
		}
	}
	var old []kadm.Offset
	w.offsets().Each(func(o kadm.Offset) { old = append(old, o) })
	w.say("  stale offsets put back")
	w.commits(w.stale...)
	w.undo = append(w.undo, undoing{"offsets", func() { w.commits(old...) }})
}

func (w *operatorWalk) commits(these ...kadm.Offset) {
	w.counts["offsets set"]++
	w.members()
	set := kadm.Offsets{}
	for _, o := range these {
		set.Add(o)
	}
	require.NoError(w.t, w.adm.CommitAllOffsets(w.ctx, w.app, set))
}

// resetOther resets an application of another name, or one with another directory: this one keeps what it has, and where its
// checkpoints are elsewhere it has lost its offsets.
func (w *operatorWalk) resetOther() {
	code, _ := w.command("reset", w.file, "--yes", "--set", "application="+w.name0()+"-other")
	require.Zero(w.t, code)
}

// members waits until the group has none.
func (w *operatorWalk) members() {
	require.Eventually(w.t, func() bool {
		g, err := w.adm.DescribeGroups(w.ctx, w.app)
		return err == nil && len(g[w.app].Members) == 0
	}, 30*time.Second, 50*time.Millisecond)
}

// topicAnew deletes a topic that is read and makes it again.
func (w *operatorWalk) topicAnew() {
	if w.job == nil {
		w.rest()
	}
	topic, parts := pick(w.rnd, w.now.topics()), 1+w.rnd.IntN(3)
	if w.job != nil { // with fewer, see below
		parts = max(parts, w.book.parts[topic])
	}
	w.say("  %s made anew with %d partitions", topic, parts)
	w.counts["topics anew"]++
	_, err := w.adm.DeleteTopic(w.ctx, topic)
	require.NoError(w.t, err)
	if w.oneIn(2) {
		time.Sleep(300 * time.Millisecond)
	}
	w.make(topic, parts)
	w.forgetTopics()
	w.book.allow(anyhow, topic+" anew")
	w.undo = slices.DeleteFunc(w.undo, func(u undoing) bool { return u.kind == "offsets" })
}

func (w *operatorWalk) make(topic string, parts int) {
	w.book.anew(topic, parts)
	require.Eventually(w.t, func() bool {
		_, err := kafka.EnsureTopic(w.ctx, w.cl, topic, int32(parts), nil)
		return err == nil
	}, 20*time.Second, 100*time.Millisecond)
}

func (w *operatorWalk) topicGrows() {
	topic := pick(w.rnd, w.now.topics())
	w.say("  %s grows", topic)
	w.counts["topics grown"]++
	add := 1 + w.rnd.IntN(2)
	_, err := w.adm.CreatePartitions(w.ctx, add, topic)
	require.NoError(w.t, err)
	w.book.parts[topic] += add
	w.forgetTopics()
	w.book.mixed[topic] = true
	if w.job != nil { // who runs looks for new partitions after a while
		w.stopInOrder()
	}
}

// changeTopology changes the service file.
func (w *operatorWalk) changeTopology() {
	switch w.rnd.IntN(11) {
	case 0:
		w.change("a source renamed", func(t *walkTopology) { pickOf(w, t.sources).name = w.name("orders") })
	case 1:
		w.change("a step renamed", func(t *walkTopology) { t.step = w.name("totals") })
	case 2, 3:
		if w.now.exchange && len(w.now.sources) < 3 {
			topic := w.name(w.in)
			if w.oneIn(2) { // one that was read before, perhaps
				topic = pick(w.rnd, slices.Sorted(maps.Keys(w.book.all)))
			}
			if slices.Contains(w.now.topics(), topic) {
				return
			}
			w.ensure(topic)
			w.change("a source more: "+topic, func(t *walkTopology) { t.sources = append(t.sources, walkSource{w.name("more"), topic}) })
		}
	case 4, 5:
		if len(w.now.sources) > 1 {
			w.change("a source less", func(t *walkTopology) {
				i := w.rnd.IntN(len(t.sources))
				t.sources = slices.Delete(t.sources, i, i+1)
			})
		}
	case 6:
		topic := w.name(w.in)
		w.ensure(topic)
		w.change("another topic: "+topic, func(t *walkTopology) { pickOf(w, t.sources).topic = topic })
	case 7:
		w.change("another aggregate", func(t *walkTopology) { t.wider = !t.wider })
	case 8:
		if len(w.now.sources) == 1 {
			w.change("an exchange, or none", func(t *walkTopology) { t.exchange = !t.exchange })
		}
	case 9:
		w.change("another mode", func(t *walkTopology) { t.mode = pick(w.rnd, []string{"", "", "at-least-once", "disabled"}) })
	case 10:
		w.change("another instance", func(t *walkTopology) { t.instance = w.name("i") })
		w.change("what a cancel does", func(t *walkTopology) { t.deletes = !t.deletes })
	}
}

func pickOf(w *operatorWalk, list []walkSource) *walkSource { return &list[w.rnd.IntN(len(list))] }

// ensure makes a topic that is not there.
func (w *operatorWalk) ensure(topic string) {
	if w.book.all[topic] == nil {
		w.make(topic, 1+w.rnd.IntN(3))
	}
}
