package snapshot

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// All sources of an application with exchanges may be replaced at once by ones that read other topics. No committed offset of
// theirs then leads to the checkpoint that the application stands at, with the state of all stages: they would start empty, or at
// an older checkpoint that another one's offset names. That is refused, as for any state that goes. Where one source stays beside
// the new ones until a checkpoint is complete, all of them have it.

// replaced gives the newest committed root with stages, if nothing that the plan reads is in it, it is newer than whatever the
// handles name, and it holds anything; nil otherwise. It is looked for in Stored and Listing.
func (in *ResolveInput) replaced() *RootInfo {
	if len(in.Stages) == 0 {
		return nil
	}
	infos := slices.Concat(in.Stored, in.Listing)
	for _, i := range newestFirst(infos) {
		info := &infos[i]
		if info.Root == nil || !info.Committed || info.Root.ClusterID != in.ClusterID || !info.Root.hasStages() {
			continue
		}
		known := slices.ContainsFunc(in.Tasks, func(t TaskFacts) bool {
			e := info.Root.entryOf(&t)
			return e != nil && in.own(&t, info.Root, e)
		})
		holds := slices.ContainsFunc(info.Root.Tasks, func(e TaskEntry) bool { return e.hasState() })
		if known || !holds || info.Ref.Name.ID < NextID(in.Tasks) {
			return nil
		}
		return info
	}
	return nil
}

// refuseReplaced refuses to let go what all sources of the application were read into.
func (in *ResolveInput) refuseReplaced() (out []Refusal) {
	info := in.replaced()
	if info == nil || in.DropStates {
		return nil
	}
	var sources []string
	for i := range info.Root.Tasks {
		if e := &info.Root.Tasks[i]; e.Parallelism == 0 && !slices.Contains(sources, e.Task.Source) {
			sources = append(sources, e.Task.Source)
		}
	}
	for _, d := range info.Root.stagesWhere(info.Ref, (*TaskEntry).hasState) {
		reason, what := d.reasonFor()
		no := refuse(reason, element.TopicPartition{}, "stage %s: checkpoint %s (%s) holds %s of it, and nothing of what the topology reads now; give the topology one of its sources back (%s), beside the others, "+
			"until a checkpoint is complete, let it go with --allow-dropped-state, or start under another application name", d.Stage, info.Ref.Name, info.Ref.Path, what, strings.Join(sources, ", "))
		no.Task = element.TaskID{Source: d.Stage}
		out = append(out, *no)
	}
	return out
}
