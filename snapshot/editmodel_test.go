package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// edits is an application without exchanges whose sources are renamed, swapped, taken out, put back and given other topics, and
// whose topics grow and are made anew, from one start to the next.
type edits struct {
	t       *rapid.T
	log     []string
	topics  []editTopic
	sources map[string]int // topic by name
	group   map[element.TopicPartition]InputFacts
	roots   []RootInfo // oldest first
	lastID  int
	made    byte
	expired bool // offsets were lost
	keeps   bool // old roots are not removed
}

type editTopic struct {
	id         element.TopicID
	partitions int32
	state      bool // a source with state has read it: it does not grow
	grown      bool // since it was read: no source with state begins to read it before another one has
}

// newEdits has three topics, of which one is read, or two.
func newEdits(t *rapid.T) *edits {
	e := &edits{t: t, topics: make([]editTopic, 3), sources: map[string]int{"a": 0}, group: map[element.TopicPartition]InputFacts{}}
	for i := range e.topics {
		e.anew(i)
	}
	if rapid.Bool().Draw(t, "two") {
		e.sources["ck"] = 1
	}
	e.log = []string{fmt.Sprint(e.sources, e.topics)}
	return e
}

func (e *edits) name(i int) string { return fmt.Sprintf("t%d", i) }

func (e *edits) say(format string, args ...any) { e.log = append(e.log, fmt.Sprintf(format, args...)) }

func stateOf(source string) bool { return strings.HasSuffix(source, "k") }

// free gives the topics that no source reads.
func (e *edits) free() (out []int) {
	for i := range e.topics {
		if !slices.Contains(slices.Collect(maps.Values(e.sources)), i) {
			out = append(out, i)
		}
	}
	return out
}

// mark has all checkpoints known as committed: with the offsets of a topic goes what says it of the last one.
func (e *edits) mark() {
	for i := range e.roots {
		e.roots[i].Committed, e.roots[i].Marked = true, true
	}
}

func (e *edits) anew(i int) {
	e.mark()
	e.made++
	e.topics[i] = editTopic{id: element.TopicID{e.made}, partitions: int32(rapid.IntRange(1, 4).Draw(e.t, "partitions"))}
	maps.DeleteFunc(e.group, func(tp element.TopicPartition, _ InputFacts) bool { return tp.Topic == e.name(i) })
	e.say("%s is made anew with %d", e.name(i), e.topics[i].partitions)
}

// edit changes something between two starts.
func (e *edits) edit() {
	names := slices.Sorted(maps.Keys(e.sources))
	source := rapid.SampledFrom(names).Draw(e.t, "source")
	free := e.free()
	switch what := rapid.SampledFrom([]string{"rename", "topic", "swap", "out", "in", "grow", "anew", "expire"}).Draw(e.t, "what"); what {
	case "rename":
		to := rapid.SampledFrom([]string{"a", "b", "ck", "dk"}).Draw(e.t, "to")
		if _, taken := e.sources[to]; !taken {
			e.sources[to] = e.sources[source]
			delete(e.sources, source)
			e.say("%s is called %s", source, to)
		}
	case "topic":
		if len(free) > 0 {
			e.sources[source] = rapid.SampledFrom(free).Draw(e.t, "topic")
			e.say("%s reads %s", source, e.name(e.sources[source]))
		}
	case "swap":
		other := rapid.SampledFrom(names).Draw(e.t, "other")
		e.sources[source], e.sources[other] = e.sources[other], e.sources[source]
		e.say("%s and %s swap", source, other)
	case "out":
		if len(names) > 1 {
			delete(e.sources, source)
			e.say("%s is out", source)
		}
	case "in":
		to := rapid.SampledFrom([]string{"a", "b", "ck", "dk"}).Draw(e.t, "new")
		if _, taken := e.sources[to]; !taken && len(free) > 0 {
			e.sources[to] = rapid.SampledFrom(free).Draw(e.t, "topic")
			e.say("%s is in and reads %s", to, e.name(e.sources[to]))
		}
	case "grow":
		i := e.sources[source]
		if !e.topics[i].state && !stateOf(source) {
			e.topics[i].partitions += int32(rapid.IntRange(1, 2).Draw(e.t, "more"))
			e.topics[i].grown = true
			e.say("%s grows to %d", e.name(i), e.topics[i].partitions)
		}
	case "anew":
		e.anew(rapid.IntRange(0, len(e.topics)-1).Draw(e.t, "topic"))
	case "expire": // of what nobody has read for long
		e.expired = true
		e.mark()
		for _, i := range free {
			if e.readLast(i) {
				continue
			}
			maps.DeleteFunc(e.group, func(tp element.TopicPartition, _ InputFacts) bool { return tp.Topic == e.name(i) })
		}
		e.say("offsets of what nobody reads expire")
	}
}

// readLast reports that the last start has read a topic: offsets of an application that is stopped expire all at once.
func (e *edits) readLast(i int) bool {
	return len(e.roots) > 0 && slices.ContainsFunc(e.roots[len(e.roots)-1].Root.Tasks, func(t TaskEntry) bool { return t.readsFrom(e.name(i)) })
}

func (e *edits) input(drop bool) ResolveInput {
	in := ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: "store-1", States: map[string][]StateInfo{}, Roots: map[RootRef]LoadedRoot{}, Unbound: map[string]bool{}, DropStates: drop}
	for _, source := range slices.Sorted(maps.Keys(e.sources)) {
		topic := e.topics[e.sources[source]]
		if stateOf(source) {
			in.States[source] = counts
		}
		all := true
		for p := range topic.partitions {
			tp := element.TopicPartition{Topic: e.name(e.sources[source]), Partition: p}
			f, found := e.group[tp]
			if !found {
				f = InputFacts{TopicPartition: tp}
			}
			all = all && found
			f.TopicID, f.Partitions = topic.id, topic.partitions
			in.Tasks = append(in.Tasks, TaskFacts{Task: element.TaskID{Source: source, Partition: p}, Inputs: []InputFacts{f}})
		}
		if all {
			now := InputFacts{TopicPartition: element.TopicPartition{Topic: e.name(e.sources[source])}, TopicID: topic.id, Partitions: topic.partitions}
			in.Unbound[now.Topic] = !StateBinds(e.roots, "cluster-1", now)
		}
	}
	for _, ref := range NamedRoots(in.Tasks) {
		in.Roots[ref] = LoadedRoot{Err: vfsNotExist()}
		for _, info := range e.roots {
			if info.Ref == ref {
				in.Roots[ref] = LoadedRoot{Root: info.Root}
			}
		}
	}
	if NeedsStored(in.Tasks) {
		in.Stored = slices.Clone(e.roots)
	}
	oldest := OldestID(in.Tasks)
	for _, info := range e.roots {
		if info.Ref.Name.ID > oldest {
			in.Listing = append(in.Listing, info)
		}
	}
	return in
}

// start tries what an operator has, in the order in which the messages name it, and commits a checkpoint.
func (e *edits) start() {
	for source, i := range e.sources {
		if stateOf(source) && e.topics[i].grown {
			e.t.Skip("a step with state over a topic that has just grown: it is to be taken out until the partitions have offsets")
		}
	}
	var told []string
	for _, forget := range []bool{false, true} {
		if forget && !e.expired {
			break
		}
		if forget { // "delete all offsets of group shop to go back with all of them"
			clear(e.group)
			e.say("all offsets are deleted")
		}
		for _, drop := range []bool{false, true} {
			in := e.input(drop)
			out, err := Resolve(in)
			refused := RefusalOf(err)
			if refused != nil {
				told = append(told, err.Error())
				in.Stored, in.Listing = slices.Clone(e.roots), slices.Clone(e.roots)
				if out, err = Resolve(in); err != nil {
					out, _, err = Recover(in, RefusalOf(err), e.roots)
				}
			}
			if err == nil {
				e.unasked(&in, out, drop)
				if _, ends := e.ends(&in, out); !ends {
					e.commit(&in, out)
				}
				return
			}
			told = append(told, err.Error())
		}
	}
	e.t.Fatalf("nothing leads on:\n%s\nafter:\n%s", strings.Join(told, "\n"), strings.Join(e.log, "\n"))
}

// unasked fails when a task begins anew that a root has, and nobody has asked for that.
func (e *edits) unasked(in *ResolveInput, out map[element.TaskID]Decision, drop bool) {
	for _, t := range in.Tasks {
		if out[t.Task].Kind != Fresh {
			continue
		}
		require.False(e.t, t.Inputs[0].Found, "%s has an offset and begins anew, after\n%s", t.Task, strings.Join(e.log, "\n"))
		for _, info := range e.roots {
			if x := info.Root.entryOf(&t); x != nil && in.own(&t, info.Root, x) {
				require.True(e.t, drop, "%s is in checkpoint %s and begins anew, after\n%s", t.Task, info.Ref.Name, strings.Join(e.log, "\n"))
			}
		}
	}
}

func (e *edits) commit(in *ResolveInput, out map[element.TaskID]Decision) {
	e.lastID++
	root := &Root{Name: nameOf(e.lastID, 1), Application: "shop", ClusterID: "cluster-1"}
	ref := RootRef{Name: root.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", root.Name), Digest: Digest{byte(e.lastID)}}
	for _, t := range in.Tasks {
		d, f := out[t.Task], t.Inputs[0]
		p := element.Position{TopicPartition: f.TopicPartition, TopicID: f.TopicID, PartitionCount: f.Partitions, LeaderEpoch: -1}
		if len(d.Positions) > 0 {
			p.Offset = d.Positions[0].Offset
		}
		p.Offset += int64(rapid.IntRange(1, 9).Draw(e.t, "processed"))
		entry := TaskEntry{Task: t.Task, Positions: []element.Position{p}}
		if stateOf(t.Task.Source) {
			entry.States, entry.Runs = counts, []RunRef{{To: root.Name.ID, Full: true, Entries: 1}}
			e.topics[e.sources[t.Task.Source]].state = true
		}
		root.Tasks = append(root.Tasks, entry)
		h := Handle{Kind: HandleCheckpoint, Root: ref, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1, ClusterID: "cluster-1", TopicID: p.TopicID, PartitionCount: p.PartitionCount, StoreID: "store-1"}
		text, err := h.Encode()
		require.NoError(e.t, err)
		e.group[f.TopicPartition] = InputFacts{TopicPartition: f.TopicPartition, Found: true, Offset: p.Offset, Metadata: text}
	}
	e.roots = append(e.roots, RootInfo{Ref: ref, Root: root, Committed: true})
	for _, i := range e.sources {
		e.topics[i].grown = false
	}
	e.say("starts: %s", ref.Name)
	for !e.keeps && len(e.roots) > 2 && !e.named(e.roots[0].Ref) && rapid.Bool().Draw(e.t, "cleaned") {
		e.roots = e.roots[1:]
	}
}

func (e *edits) named(ref RootRef) bool {
	for _, f := range e.group {
		if h, err := ParseHandle(f.Metadata); err == nil && h.Root == ref {
			return true
		}
	}
	return false
}

// Whatever is changed, a start goes on, or one of the flags that messages name lets it; and nothing begins anew unasked that has
// been read.
func TestEveryChangeOfSourcesHasAWayOn(t *testing.T) {
	for range 10 {
		rapid.Check(t, func(t *rapid.T) {
			e := newEdits(t)
			e.start()
			for range rapid.IntRange(1, 6).Draw(t, "starts") {
				for range rapid.IntRange(1, 3).Draw(t, "edits") {
					e.edit()
				}
				e.start()
			}
		})
	}
}
