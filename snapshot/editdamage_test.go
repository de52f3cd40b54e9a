package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// ruins is edits in whose checkpoint directory roots are damaged and get lost, and whose group loses offsets. Who operates it takes
// the cures that the refusals name, in any order, until it starts.
type ruins struct {
	*edits
	harm map[string]harm // by path of the root
	plan func(drop bool) ResolveInput

	// Of the start under way: what the operator has done.
	drop, recover, anew, moved bool
}

// harm is what has become of a root.
type harm string

const (
	rootDamaged  harm = "damaged"
	rootLost     harm = "lost"                   // its marker is there
	rootVanished harm = "lost, with its marker," // nothing tells of it but a handle
)

// spoil does harm to one of the roots, or takes offsets away.
func (r *ruins) spoil() {
	switch what := rapid.SampledFrom([]string{"root", "root", "offset", "offsets"}).Draw(r.t, "harm"); what {
	case "root":
		if len(r.roots) == 0 {
			return
		}
		ref := rapid.SampledFrom(r.roots).Draw(r.t, "root").Ref
		r.harm[ref.Path] = rapid.SampledFrom([]harm{rootDamaged, rootDamaged, rootLost, rootVanished}).Draw(r.t, "how")
		r.say("%s is %s", ref.Name, r.harm[ref.Path])
	case "offset":
		if len(r.group) > 0 {
			tp := rapid.SampledFrom(slices.SortedFunc(maps.Keys(r.group), element.TopicPartition.Compare)).Draw(r.t, "of")
			delete(r.group, tp)
			r.say("the offset of %s is lost", tp)
		}
	case "offsets":
		clear(r.group)
		r.say("all offsets are lost")
	}
}

// look is what a listing of the directory shows; files: CommittedAfter, else List.
func (r *ruins) look(files bool) (out []RootInfo) {
	oldest := slices.IndexFunc(r.roots, func(i RootInfo) bool { h := r.harm[i.Ref.Path]; return h != rootLost && h != rootVanished })
	for i, info := range r.roots {
		switch h := r.harm[info.Ref.Path]; {
		case h == rootVanished, h == rootLost && i < oldest:
			continue
		case h == rootLost && files:
			info.Ref.Digest, info.Root = Digest{}, nil
			info.Err, info.alone = corrupt(info.Ref.Name.String(), info.Ref.Path, "root", vfsNotExist()), true
		case h != "":
			info.Ref.Digest, info.Root = Digest{}, nil
			info.Err = corrupt(info.Ref.Name.String(), info.Ref.Path, "root", errors.New("spoilt"))
		}
		out = append(out, info)
	}
	return out
}

// read loads the roots that the handles name.
func (r *ruins) read(in *ResolveInput) {
	for ref := range in.Roots {
		in.Roots[ref] = LoadedRoot{Err: corrupt(ref.Name.String(), ref.Path, "root", vfsNotExist())}
		for _, info := range r.roots {
			if info.Ref == ref && r.harm[ref.Path] == "" {
				in.Roots[ref] = LoadedRoot{Root: info.Root}
			}
		}
	}
}

// try is a start, as the engine does it.
func (r *ruins) try() (*ResolveInput, map[element.TaskID]Decision, *Recovery, error) {
	in := r.plan(r.drop)
	r.read(&in)
	for topic := range in.Unbound {
		i := slices.IndexFunc(in.Tasks, func(t TaskFacts) bool { return t.Inputs[0].Topic == topic })
		infos := r.look(false)
		Confirm(infos, NamedRoots(in.Tasks))
		in.Unbound[topic] = !StateBinds(infos, in.ClusterID, in.Tasks[i].Inputs[0])
	}
	in.Stored, in.Listing = nil, nil
	if r.recover {
		in.Stored, in.Listing = r.look(false), r.look(false)
	} else {
		if NeedsStored(in.Tasks) {
			in.Stored = r.look(false)
		}
		oldest := OldestID(in.Tasks)
		for _, info := range r.look(true) {
			if info.Ref.Name.ID > oldest {
				in.Listing = append(in.Listing, info)
			}
		}
	}
	var rec *Recovery
	out, err := Resolve(in)
	if r.recover && len(in.Listing) == 0 && len(handlesOf(in.Tasks)) == 0 {
		r.recover = false // "there is nothing to go back to. Without the flag the application begins anew"
		return r.try()
	}
	if err != nil && r.recover {
		out, rec, err = Recover(in, RefusalOf(err), r.look(false))
	}
	return &in, out, rec, err
}

var rootPath = regexp.MustCompile(`shop/i-0/chk-[0-9a-f-]+\.root`)

// cures are those that a refusal names and that were not taken yet.
func (r *ruins) cures(err error) map[string]func() {
	out, says, refused := map[string]func(){}, err.Error(), RefusalOf(err)
	if (refused.Recoverable() || strings.Contains(says, "recover from the store explicitly")) && !r.recover { // the command names it
		out["recover"] = func() { r.recover = true }
	}
	if strings.Contains(says, "--allow-dropped-state") && !r.drop {
		out["drop"] = func() { r.drop = true }
	}
	if strings.Contains(says, "delete all offsets of group shop") && len(r.group) > 0 {
		out["delete all offsets"] = func() { clear(r.group) }
	}
	if strings.Contains(says, "move the checkpoint directory away and delete the group's offsets") && !r.anew {
		out["begin anew"] = func() {
			clear(r.group)
			r.roots, r.anew, r.recover = nil, true, false
		}
	}
	for _, no := range refused.shown() {
		r.forOne(no, out)
	}
	return out
}

// forOne adds the cures for one task.
func (r *ruins) forOne(no Refusal, out map[string]func()) {
	says, of := no.Message, no.Partition.Topic
	away := func() { // what the message names
		for _, p := range rootPath.FindAllString(says[strings.LastIndex(says, "marker"):], -1) {
			if i := slices.IndexFunc(r.roots, func(i RootInfo) bool { return i.Ref.Path == p }); i >= 0 {
				r.roots, r.moved = slices.Delete(r.roots, i, i+1), true
			}
		}
	}
	moves := strings.Contains(says, "away (shop/") || strings.Contains(says, "away: shop/")
	switch {
	case strings.Contains(says, "delete the group's offsets of this topic"):
		out["delete offsets of "+of] = func() {
			maps.DeleteFunc(r.group, func(tp element.TopicPartition, _ InputFacts) bool { return tp.Topic == of })
			if moves {
				away()
			}
		}
	case moves:
		out["move away for "+no.Task.String()] = away
	}
}

// operate takes cures until the service starts. None may be named in vain: what it is named against is not said again.
func (r *ruins) operate() {
	for source, i := range r.sources {
		if stateOf(source) && r.topics[i].grown {
			r.t.Skip("a step with state over a topic that has just grown: another application name is the way")
		}
	}
	r.drop, r.recover, r.anew = false, false, false
	told := map[string]bool{}
	for {
		in, out, _, err := r.try()
		if err == nil {
			r.begin(in, out)
			return
		}
		if RefusalOf(err).Has(ReasonPartitionCount) {
			r.t.Skip("a step with state over a topic that grew before it: another application name is the way")
		}
		r.say("refused: %v", err)
		if told[err.Error()] {
			r.t.Fatalf("a circle:\n%s", strings.Join(r.log, "\n"))
		}
		told[err.Error()] = true
		cures := r.cures(err)
		if len(cures) == 0 {
			r.t.Fatalf("nothing leads on:\n%s", strings.Join(r.log, "\n"))
		}
		cure := rapid.SampledFrom(slices.Sorted(maps.Keys(cures))).Draw(r.t, "cure")
		cures[cure]()
		r.say("taken: %s", cure)
	}
}

// begin checks what a start begins with and commits it; the process may end before its first checkpoint.
func (r *ruins) begin(in *ResolveInput, out map[element.TaskID]Decision) {
	after := strings.Join(r.log, "\n")
	var back *Root
	for _, t := range in.Tasks {
		d, f := out[t.Task], t.Inputs[0]
		switch {
		case d.Kind == Fresh:
			r.begunAnew(in, &t)
		case d.Kind == Recovered:
			require.True(r.t, r.recover, "%s goes back, after\n%s", t.Task, after)
			if back == nil {
				r.lastID++
				back = &Root{Name: nameOf(r.lastID, 1), Application: "shop", ClusterID: "cluster-1"}
			}
			entry := d.Entry
			entry.Task = t.Task
			back.Tasks = append(back.Tasks, entry)
		default:
			require.True(r.t, f.Found, "%s has no offset and does not begin anew, after\n%s", t.Task, after)
			require.Equal(r.t, f.Offset, d.Positions[0].Offset, "%s, after\n%s", t.Task, after)
		}
	}
	id := 0
	if r.recover || r.drop {
		id = r.lastID
	}
	if back != nil {
		ref := RootRef{Name: back.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", back.Name), Digest: Digest{byte(r.lastID)}}
		r.roots = append(r.roots, RootInfo{Ref: ref, Root: back, Committed: true, Marked: true})
		for _, e := range back.Tasks {
			r.committed(HandleCheckpoint, ref, e.Positions[0])
		}
	}
	for _, t := range in.Tasks {
		if f := t.Inputs[0]; out[t.Task].Kind == Fresh {
			r.committed(HandleEmpty, RootRef{Name: nameOf(id, 1)}, element.Position{TopicPartition: f.TopicPartition, TopicID: f.TopicID, PartitionCount: f.Partitions, LeaderEpoch: -1})
		}
	}
	if rapid.IntRange(0, 3).Draw(r.t, "ends early") == 0 {
		r.say("starts, and ends before its first checkpoint")
		for source, i := range r.sources {
			r.topics[i].state = r.topics[i].state || stateOf(source)
		}
		return
	}
	r.keeps = len(r.harm) > 0
	r.commit(in, out)
	r.roots[len(r.roots)-1].Marked = true
}

func (r *ruins) committed(kind HandleKind, ref RootRef, p element.Position) {
	h := Handle{Kind: kind, Root: ref, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1, ClusterID: "cluster-1", TopicID: p.TopicID, PartitionCount: p.PartitionCount, StoreID: "store-1"}
	text, err := h.Encode()
	require.NoError(r.t, err)
	r.group[p.TopicPartition] = InputFacts{TopicPartition: p.TopicPartition, Found: true, Offset: p.Offset, Metadata: text}
}

// begunAnew fails when a task begins anew that a root which the directory tells of has, and nobody has asked for that.
func (r *ruins) begunAnew(in *ResolveInput, t *TaskFacts) {
	added := false
	for _, info := range r.roots {
		added = added || r.harm[info.Ref.Path] == "" && info.Root.readsThis(t.Inputs[0])
	}
	seen := r.look(false)
	for _, info := range r.roots {
		if !in.holds(info.Root, t) {
			continue
		}
		asked := r.drop
		if i := slices.IndexFunc(seen, func(s RootInfo) bool { return s.Ref.Path == info.Ref.Path }); i < 0 {
			continue // nothing tells of it
		} else if seen[i].Root == nil {
			asked = r.recover && (r.drop || added) || len(in.Stages) > 0 && r.drop
		}
		require.True(r.t, asked, "%s is in checkpoint %s and begins anew, after\n%s", t.Task, info.Ref.Name, strings.Join(r.log, "\n"))
	}
}

// Whatever is changed, damaged and lost, each cure that a refusal names leads on, and nothing begins anew or goes back unasked.
func TestEveryDamageHasAWayOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEdits(t)
		r := &ruins{edits: e, harm: map[string]harm{}, plan: e.input}
		r.operate()
		for range rapid.IntRange(1, 6).Draw(t, "starts") {
			for range rapid.IntRange(0, 2).Draw(t, "edits") {
				e.edit()
			}
			for range rapid.IntRange(0, 2).Draw(t, "harms") {
				r.spoil()
			}
			r.operate()
		}
	})
}
