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

// exchangeEdits is an application with exchanges whose sources and topics change as those of edits, and whose stages come, go and
// get another parallelism. It knows which state each start must have.
type exchangeEdits struct {
	*edits
	stages  map[string]StageFacts
	held    map[RootRef]stageContents
	now     RootRef             // where the application stands
	offsets map[editInput]int64 // what was committed last
	own     map[editOwner]RootRef
	origin  []SavepointRef
	saved   []*Savepoint
	marks   bool               // no process is killed between a commit and its marker
	begun   map[editInput]bool // has its start position, and no checkpoint
	twice   map[editInput]bool // a recovery with -n has left it behind the state
}

// editInput is a partition of a topic, by the topic's id.
type editInput struct {
	id        element.TopicID
	partition int32
}

// editOwner is a source task with state of its own.
type editOwner struct {
	source string
	editInput
}

// stageContents is what a checkpoint has behind exchanges: up to which offset the inputs are in the state, by stage, and the
// records in flight.
type stageContents struct {
	folded map[string]map[editInput]int64
	flying map[string]int64
}

const editGroups = 8

var (
	editStages = []string{"x-1", "y-1", "xk-2", "yk-2"} // those with a k have state
	// editKeys has a key of each key group.
	editKeys = func() (keys [editGroups][]byte) {
		for i := 0; slices.ContainsFunc(keys[:], func(k []byte) bool { return k == nil }); i++ {
			key := fmt.Append(nil, i)
			keys[element.KeyGroup(key, editGroups)] = key
		}
		return keys
	}()
)

func stageHasState(name string) bool { return strings.Contains(name, "k-") }

func newExchangeEdits(t *rapid.T) *exchangeEdits {
	x := &exchangeEdits{
		edits:  newEdits(t),
		stages: map[string]StageFacts{}, held: map[RootRef]stageContents{}, offsets: map[editInput]int64{}, own: map[editOwner]RootRef{}, begun: map[editInput]bool{}, twice: map[editInput]bool{},
	}
	x.plan(rapid.SampledFrom(editStages).Draw(t, "stage"))
	x.log = []string{fmt.Sprint(x.sources, x.topics, x.stages)}
	return x
}

func (x *exchangeEdits) plan(name string) {
	kind := rapid.SampledFrom([]ExchangeKind{GroupByExchange, RebalanceExchange}).Draw(x.t, "kind")
	if stageHasState(name) {
		kind = GroupByExchange
	}
	x.stages[name] = StageFacts{Name: name, Parallelism: rapid.IntRange(1, 3).Draw(x.t, "parallelism"), MaxParallelism: editGroups, Exchange: kind}
}

// change is edit, and changes stages.
func (x *exchangeEdits) change() {
	switch what := rapid.SampledFrom([]string{"edit", "edit", "edit", "edit", "stage", "no stage", "replace", "idle"}).Draw(x.t, "change"); what {
	case "edit":
		x.edit()
	case "idle": // for a long time
		x.mark()
		clear(x.group)
		x.expired = true
		x.say("all offsets expire")
	case "stage":
		x.plan(rapid.SampledFrom(editStages).Draw(x.t, "stage"))
		x.say("stages are %v", x.stages)
	case "no stage":
		if len(x.stages) > 1 {
			delete(x.stages, rapid.SampledFrom(slices.Sorted(maps.Keys(x.stages))).Draw(x.t, "stage"))
			x.say("stages are %v", x.stages)
		}
	case "replace": // all sources at once
		if free := x.free(); len(free) > 0 {
			clear(x.sources)
			x.sources[rapid.SampledFrom([]string{"a", "b", "ck", "dk"}).Draw(x.t, "to")] = rapid.SampledFrom(free).Draw(x.t, "topic")
			x.say("all sources are replaced: %v", x.sources)
		}
	}
}

func (x *exchangeEdits) input(drop bool) ResolveInput {
	in := x.edits.input(drop)
	in.Sources = map[string]string{}
	for source, i := range x.sources {
		in.Sources[source] = x.name(i)
	}
	for _, name := range slices.Sorted(maps.Keys(x.stages)) {
		if in.Stages = append(in.Stages, x.stages[name]); stageHasState(name) {
			in.States[name] = counts
		}
	}
	x.confirm(&in)
	return in
}

// confirm is that of the engine: a root may be committed and not marked.
func (x *exchangeEdits) confirm(in *ResolveInput) {
	var named []RootRef
	for _, tp := range in.Doubtful() {
		if h, err := ParseHandle(x.group[tp].Metadata); err == nil && h.Kind == HandleCheckpoint {
			named = append(named, h.Root)
		}
	}
	Confirm(in.Stored, named)
	Confirm(in.Listing, named)
}

func inputOf(f *InputFacts) editInput { return editInput{f.TopicID, f.Partition} }

// start tries what an operator has, as far as the messages name it, and commits a checkpoint.
func (x *exchangeEdits) start() {
	for source, i := range x.sources {
		if stateOf(source) && x.topics[i].grown {
			x.t.Skip("a step with state over a topic that has just grown: it is to be taken out until the partitions have offsets")
		}
	}
	var told []string
	for _, forget := range []bool{false, true} {
		if forget {
			if !x.expired || !strings.Contains(strings.Join(told, ""), "delete all offsets of group shop") {
				break
			}
			x.mark()
			clear(x.group)
			x.say("all offsets are deleted")
		}
		for _, drop := range []bool{false, true} {
			if last := strings.Join(told, ""); drop && !strings.Contains(last, "--allow-dropped-state") {
				continue
			}
			in := x.input(drop)
			var rec *Recovery
			out, err := Resolve(in)
			if err != nil {
				told = append(told, err.Error())
			}
			if err != nil && strings.Contains(strings.Join(told, ""), "recover from the store explicitly") {
				in.Stored, in.Listing = slices.Clone(x.roots), slices.Clone(x.roots)
				x.confirm(&in)
				if out, err = Resolve(in); err != nil {
					out, rec, err = Recover(in, RefusalOf(err), in.Stored)
				}
			}
			if err == nil {
				x.check(&in, out, rec)
				if !x.ends(&in, out) {
					x.commit(&in, out)
				}
				return
			}
			told = append(told, err.Error())
		}
	}
	if strings.Contains(strings.Join(told, ""), "take what it does not hold out of the topology for this start") {
		x.startWithout(told[len(told)-1])
		return
	}
	if x.forgetsBegun(told[len(told)-1]) {
		x.start()
		return
	}
	x.t.Fatalf("nothing leads on:\n%s\nafter:\n%s", strings.Join(told, "\n"), x.story())
}

// startWithout takes the sources out that a message names, and puts them back for the start that follows.
func (x *exchangeEdits) startWithout(told string) {
	all := maps.Clone(x.sources)
	_, names, _ := strings.Cut(told, "for this start (")
	names, _, _ = strings.Cut(names, ")")
	for source := range strings.SplitSeq(names, ", ") {
		delete(x.sources, source)
	}
	x.say("%s are taken out for a start", names)
	require.Less(x.t, len(x.sources), len(all), "%s, after\n%s", told, x.story())
	x.start()
	x.sources = all
	x.say("they are put back")
	x.start()
}

func (x *exchangeEdits) story() string { return strings.Join(x.log, "\n") }

func (x *exchangeEdits) commit(in *ResolveInput, out map[element.TaskID]Decision) {
	x.lastID++
	root := &Root{Name: nameOf(x.lastID, 1), Application: "shop", ClusterID: "cluster-1", StoreID: "store-1", Origin: x.origin}
	ref := RootRef{Name: root.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", root.Name), Digest: Digest{byte(x.lastID), byte(x.lastID >> 8)}}
	held := stageContents{map[string]map[editInput]int64{}, map[string]int64{}}
	for _, s := range in.Stages {
		from, kept := x.restored(s, out)
		if stageHasState(s.Name) {
			held.folded[s.Name] = map[editInput]int64{}
			if kept {
				maps.Copy(held.folded[s.Name], x.held[from].folded[s.Name])
			}
		}
	}
	for i := range in.Tasks {
		x.process(&in.Tasks[i], out[in.Tasks[i].Task], root, ref, held)
	}
	full := rapid.Bool().Draw(x.t, "unaligned")
	for _, s := range in.Stages {
		for i := range s.Parallelism {
			e := TaskEntry{Task: s.task(i), Parallelism: s.Parallelism, MaxParallelism: s.MaxParallelism}
			if stageHasState(s.Name) {
				e.States, e.Runs = counts, []RunRef{{To: root.Name.ID, Full: true, Entries: 1}}
			}
			if full {
				e.InFlight, e.Exchange = []RunRef{{Entries: 1}}, s.Exchange
				held.flying[s.Name]++
			}
			root.Tasks = append(root.Tasks, e)
		}
	}
	slices.SortFunc(root.Tasks, func(a, b TaskEntry) int { return a.Task.Compare(b.Task) })
	x.letGo(ref, root)
	for i := range x.roots { // that it follows, or another one of their time does
		x.roots[i].Committed = true
	}
	marked := x.marks || rapid.IntRange(0, 3).Draw(x.t, "marked") > 0
	x.roots = append(x.roots, RootInfo{Ref: ref, Root: root, Committed: marked, Marked: marked})
	x.held[ref], x.now = held, ref
	for _, i := range x.sources {
		x.topics[i].grown = false
	}
	x.say("starts%s: %s%s", map[bool]string{true: " with -n"}[in.DropStates], ref.Name, map[bool]string{false: ", and is killed before it marks it"}[marked])
	x.clean()
}

// process has a task read some records and commit.
func (x *exchangeEdits) process(t *TaskFacts, d Decision, root *Root, ref RootRef, held stageContents) {
	f := t.Inputs[0]
	p := element.Position{TopicPartition: f.TopicPartition, TopicID: f.TopicID, PartitionCount: f.Partitions, LeaderEpoch: -1}
	if len(d.Positions) > 0 {
		p.Offset, p.PartitionCount = d.Positions[0].Offset, d.Positions[0].PartitionCount
	}
	p.Offset += int64(rapid.IntRange(0, 3).Draw(x.t, "processed"))
	e := TaskEntry{Task: t.Task, Positions: []element.Position{p}}
	if stateOf(t.Task.Source) {
		e.States, e.Runs = counts, []RunRef{{To: root.Name.ID, Full: true, Entries: 1}}
		x.topics[x.sources[t.Task.Source]].state = true
		x.own[editOwner{t.Task.Source, inputOf(&f)}] = ref
	}
	root.Tasks = append(root.Tasks, e)
	for s := range held.folded {
		held.folded[s][inputOf(&f)] = p.Offset
	}
	h := Handle{Kind: HandleCheckpoint, Root: ref, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1, ClusterID: "cluster-1", TopicID: p.TopicID, PartitionCount: p.PartitionCount, StoreID: "store-1"}
	text, err := h.Encode()
	require.NoError(x.t, err)
	x.offsets[inputOf(&f)], x.begun[inputOf(&f)] = p.Offset, false
	x.group[f.TopicPartition] = InputFacts{TopicPartition: f.TopicPartition, Found: true, Offset: p.Offset, Metadata: text}
}

func (r *Root) readsInput(at editInput) bool {
	return slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool {
		return slices.ContainsFunc(e.Positions, func(p element.Position) bool { return at == editInput{p.TopicID, p.Partition} })
	})
}

// clean removes what newer checkpoints have superseded: the newest of each partition stays.
func (x *exchangeEdits) clean() {
	if x.keeps {
		return
	}
	for i := len(x.roots) - 2; i >= 0; i-- {
		root := x.roots[i].Root
		newest := slices.ContainsFunc(root.Tasks, func(e TaskEntry) bool {
			return len(e.Positions) > 0 && !slices.ContainsFunc(x.roots[i+1:], func(n RootInfo) bool {
				return n.Root.readsInput(editInput{e.Positions[0].TopicID, e.Positions[0].Partition})
			})
		})
		if !newest && !x.named(x.roots[i].Ref) && rapid.Bool().Draw(x.t, "cleaned") {
			x.roots = slices.Delete(x.roots, i, i+1)
		}
	}
}

// Whatever is changed of an application with exchanges, a start goes on with the state that it must have, or one of the flags that
// the messages name lets it, and says what it lets go.
func TestEveryChangeOfAnExchangeHasAWayOn(t *testing.T) {
	for range 10 {
		rapid.Check(t, func(t *rapid.T) {
			x := newExchangeEdits(t)
			x.start()
			for range rapid.IntRange(1, 6).Draw(t, "starts") {
				for range rapid.IntRange(1, 3).Draw(t, "edits") {
					x.change()
				}
				x.start()
			}
		})
	}
}
