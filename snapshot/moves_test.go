package snapshot

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios in testdata/moves anew")

// TestRecordsInFlightGoWithTheirKeyGroup replays the files in testdata/moves. A scenario is an exchange by key whose subtasks
// change in number, and what is on the way to them:
//
//	# comments, which tell the story
//	new 2 12               so many subtasks, so many key groups
//	send a ann bob         sender a has sent a record of each key, which the checkpoint finds in its channels
//	restore 3              an unaligned checkpoint, and a start from it with so many subtasks
//	    =  what each subtask has in front of its stream, in order: sender:key.number
//
// The indented lines are golden. `go test ./snapshot -run KeyGroup -rewrite` writes them anew; read the difference.
func TestRecordsInFlightGoWithTheirKeyGroup(t *testing.T) {
	files, err := filepath.Glob("testdata/moves/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 3)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := replayMoves(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got, "%s: run go test ./snapshot -run KeyGroup -rewrite and read the difference", file)
		})
	}
}

// replayMoves executes a scenario and returns it with its outputs made anew.
func replayMoves(t *testing.T, file string) string {
	var out strings.Builder
	s := &moves{t: t, m: vfs.NewMem()}
	for i, line := range strings.Split(strings.TrimSuffix(file, "\n"), "\n") {
		if strings.HasPrefix(line, "    ") { // old output
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		require.NoError(t, s.input(words[0], words[1:]), "line %d: %s", i+1, line)
		for _, l := range s.said {
			out.WriteString("    =  " + l + "\n")
		}
		s.said = nil
	}
	return out.String()
}

// moves is one exchange and what is on the way to each of its subtasks.
type moves struct {
	t      *testing.T
	m      vfs.FS
	stage  StageFacts
	flying [][]flying
	sent   int
	id     int
	ref    *RootRef
	said   []string
}

func (s *moves) input(what string, args []string) error {
	switch {
	case what == "new" && len(args) == 2:
		subtasks, err := strconv.Atoi(args[0])
		groups, gerr := strconv.Atoi(args[1])
		s.stage = StageFacts{Name: stageName, Parallelism: subtasks, MaxParallelism: groups, Exchange: GroupByExchange}
		s.flying = make([][]flying, subtasks)
		return errors.Join(err, gerr)
	case what == "send" && len(args) > 1:
		for _, key := range args[1:] {
			s.sent++
			group := element.KeyGroup([]byte(key), s.stage.MaxParallelism)
			to := element.SubtaskOf(group, s.stage.Parallelism, s.stage.MaxParallelism)
			name := fmt.Sprintf("%s:%s.%d", args[0], key, s.sent)
			s.flying[to] = append(s.flying[to], flying{group, name})
			s.said = append(s.said, fmt.Sprintf("%s of group %d on the way to subtask %d", name, group, to))
		}
		return nil
	case what == "restore" && len(args) == 1:
		subtasks, err := strconv.Atoi(args[0])
		if err == nil {
			s.checkpoint()
			s.restore(subtasks)
		}
		return err
	}
	return errors.New("unknown input")
}

// checkpoint writes one with the records that are on the way.
func (s *moves) checkpoint() {
	s.id++
	r := openInline(s.t, s.m, 0)
	var deltas []TaskDelta
	for i := range s.stage.Parallelism {
		d := delta(subtask(i), counts, 0, s.id, nil)
		d.InFlight = inFlightOf(s.flying[i]...)
		deltas = append(deltas, d)
	}
	parts, err := r.Persist(ctx, nameOf(s.id, 1), deltas)
	require.NoError(s.t, err)
	root := &Root{Name: nameOf(s.id, 1), Predecessor: s.ref, ClusterID: "cluster-1",
		Tasks: []TaskEntry{{Task: taskA, Positions: []element.Position{position(0, int64(s.id))}}}}
	for i := range deltas {
		e := TaskEntry{Task: subtask(i), States: counts, Parallelism: s.stage.Parallelism, MaxParallelism: s.stage.MaxParallelism}
		if !parts[i].InFlight.IsZero() {
			e.InFlight, e.Exchange = []RunRef{parts[i].InFlight}, s.stage.Exchange
		}
		root.Tasks = append(root.Tasks, e)
	}
	ref, err := r.WriteRoot(ctx, root)
	require.NoError(s.t, err)
	s.ref = &ref
}

// restore starts from the last checkpoint, by a process that knows nothing else.
func (s *moves) restore(subtasks int) {
	s.stage.Parallelism, s.flying = subtasks, make([][]flying, subtasks)
	r := openInline(s.t, s.m, 0)
	roots, err := r.LoadVerified(ctx, []RootRef{*s.ref})
	require.NoError(s.t, err)
	in := resolveInput(r, roots, s.stage)
	in.Tasks = []TaskFacts{standsAt(s.t, r, s.ref, taskA, int64(s.id))}
	decisions, err := Resolve(in)
	require.NoError(s.t, err)
	for i := range subtasks {
		d := decisions[subtask(i)]
		for _, src := range d.Sources {
			s.flying[i] = append(s.flying[i], restoreFlying(s.t, r, src, d.KeepInFlight(&src))...)
		}
		names := []string{"nothing"}
		if len(s.flying[i]) > 0 {
			names = names[:0]
			for _, f := range s.flying[i] {
				names = append(names, f.data)
			}
		}
		from, to := element.GroupRange(i, subtasks, s.stage.MaxParallelism)
		require.False(s.t, slices.ContainsFunc(s.flying[i], func(f flying) bool { return f.group < from || f.group >= to }), "of another subtask's group: %v", names)
		s.said = append(s.said, fmt.Sprintf("subtask %d, groups %d to %d: %s", i, from, to-1, strings.Join(names, " ")))
	}
}
