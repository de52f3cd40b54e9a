//go:build unix

package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

const (
	importKeys   = 60
	importBefore = 600 // orders that are in the savepoint
	importAfter  = 900 // orders behind it
)

// importPoints are the steps of a start from a savepoint, in their order, with the hit that belongs to it.
var importPoints = []struct {
	point     failpoint.Point
	hit       int
	committed bool // the import is
	rooted    bool // its root is durable, and not committed: without --from nobody can tell what that means
	claimed   bool // it comes up only where the savepoint is claimed
}{
	{failpoint.InitAfter, 1, false, false, false},
	{failpoint.ImportBefore, 1, false, false, false},
	{failpoint.ImportAfter, 1, false, false, false},
	{failpoint.ImportAfter, 3, false, false, false},
	{failpoint.FreezeAfter, 2, false, false, false},
	{failpoint.BarrierAfter, 4, false, false, false},
	{failpoint.DeltaBefore, 1, false, false, false},
	{failpoint.RootFsyncBefore, 1, false, false, false},
	{failpoint.RootFsyncAfter, 1, false, false, false},
	{failpoint.PermitBefore, 1, false, true, false},
	{failpoint.PermitAfter, 1, false, true, false},
	{failpoint.OffsetsBefore, 1, false, true, false},
	{failpoint.OffsetsAfter, 1, false, true, false},
	{failpoint.EndTxnBefore, 1, false, true, false},
	{failpoint.EndTxnAfter, 1, true, false, false},
	{failpoint.CompleteBefore, 1, true, false, false},
	{failpoint.CompleteAfter, 1, true, false, false},
	{failpoint.MarkerBefore, 1, true, false, false},
	{failpoint.MarkerAfter, 1, true, false, false},
	{failpoint.ClaimBefore, 1, true, false, true},
	{failpoint.DisposeBefore, 1, true, false, true},
	{failpoint.DisposeAfter, 1, true, false, true},
	{failpoint.ClaimAfter, 1, true, false, true},
}

// importing is an application that forks start from.
type importing struct {
	*site
	savepoint string
	program   string
	before    map[string]int // orders of each key that are in the savepoint
}

// newImporting has a service count orders and cut a savepoint, and leaves more orders behind it.
func newImporting(t *testing.T, brokers []string) *importing {
	s := newSite(t, brokers, 4)
	im := &importing{site: s, program: armedBinary(t), before: map[string]int{}}
	s.every = 100 * time.Millisecond
	s.orders(0, importBefore, importKeys)
	job := startProcess(t, im.program, []string{"run", s.file(totals)})
	s.caughtUp(job)
	out, err := processor.SendAll(s.ctx, s.app, processor.Config{Brokers: s.brokers},
		processor.Send{Command: processor.SavepointCommand, Dir: filepath.Join(t.TempDir(), "savepoints"), Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 1)
	im.savepoint = out.Replies[0].Path
	job.stop()
	for _, r := range s.read(s.out) {
		im.before[string(r.Key)]++
	}
	require.Len(t, im.before, importKeys)
	s.orders(importBefore, importAfter, importKeys)
	return im
}

// importCase is one fork that dies at a step of its start.
type importCase struct {
	name      string
	step      int  // in importPoints
	claim     bool // the savepoint is claimed
	goesAhead bool // the command after the death is the same; otherwise it has no --from
}

// importCases draws how each step is played; with all of them every way that there is.
func importCases(seed uint64, all bool) (out []importCase) {
	rnd := rand.New(rand.NewPCG(seed, 31))
	for i, p := range importPoints {
		var ways []importCase
		for _, claim := range []bool{false, true} {
			for _, same := range []bool{false, true} {
				if claim || !p.claimed {
					name := fmt.Sprintf("%s#%d,%s,%s", p.point, p.hit, map[bool]string{false: "no-claim", true: "claim"}[claim], map[bool]string{false: "without", true: "same"}[same])
					ways = append(ways, importCase{name, i, claim, same})
				}
			}
		}
		rnd.Shuffle(len(ways), func(a, b int) { ways[a], ways[b] = ways[b], ways[a] })
		if !all {
			ways = ways[:1]
		}
		out = append(out, ways...)
	}
	return out
}

// importAll plays cases side by side.
func importAll(t *testing.T, brokers []string, side int, draw func(seed uint64) []importCase) {
	cases := draw(killSeed(t))
	if only := os.Getenv("FAILPOINT_ONLY"); only != "" {
		cases = slices.DeleteFunc(cases, func(c importCase) bool { return c.name != only })
		require.NotEmpty(t, cases, "FAILPOINT_ONLY names no case: %s", only)
	}
	im := newImporting(t, brokers)
	next := make(chan importCase)
	var wg sync.WaitGroup
	for range side {
		wg.Go(func() {
			for c := range next {
				t.Run(c.name, func(t *testing.T) { im.dies(t, c) })
			}
		})
	}
	for _, c := range cases {
		next <- c
	}
	close(next)
	wg.Wait()
}

// dies plays a case: a fork dies at a step of its import, and the next process is judged from outside.
func (im *importing) dies(t *testing.T, c importCase) {
	p := importPoints[c.step]
	f := *im.site
	f.t, f.app = t, fmt.Sprintf("%s-fork-%s", im.app, strings.NewReplacer(",", "-", "#", "-").Replace(c.name))
	f.out, f.dir = f.app+"-out", filepath.Join(t.TempDir(), "data")
	f.topic(f.out, nil)
	from := filepath.Join(t.TempDir(), filepath.Base(im.savepoint))
	require.NoError(t, os.CopyFS(from, os.DirFS(im.savepoint)))
	wish := []string{"--from", from}
	if c.claim {
		wish = append(wish, "--claim-mode", "claim")
	}
	file := f.file(totals)
	start := func(armed string, flags ...string) *process {
		return startProcess(t, im.program, append([]string{"run", file, "--log-format", "text"}, flags...), "FAILPOINT="+armed)
	}
	armed := fmt.Sprintf("%s#%d", p.point, p.hit)
	f.diesAt(start(armed, wish...), armed, false)
	whole := p.point != failpoint.DisposeAfter && p.point != failpoint.ClaimAfter
	switch p.point {
	case failpoint.CompleteAfter, failpoint.MarkerBefore, failpoint.MarkerAfter: // a claim is seen to beside them
		if _, err := os.Stat(filepath.Join(from, "_metadata")); c.claim && err != nil {
			whole = false
		}
	}
	im.savepointIs(t, from, whole)

	flags := wish
	switch {
	case c.goesAhead:
	case p.rooted:
		refused := start("")
		require.Equal(t, int(fault.HandleMismatch), refused.exit(failWithin), refused.stderr.tail(2))
		require.Contains(t, refused.stderr.tail(2), "start with --from "+from+" again")
		im.savepointIs(t, from, true)
		c.goesAhead = true
	default:
		flags = nil
	}
	job := start("", flags...)
	job.await("msg=processing")
	f.caughtUp(job)
	if c.claim && c.goesAhead {
		job.until(10*time.Second, func() bool { _, err := os.Stat(from); return os.IsNotExist(err) }, "the claimed savepoint is still there")
	} else {
		im.savepointIs(t, from, whole)
	}
	require.Zero(t, job.restarts(), "the process that recovers meets no failure")
	job.stop()
	f.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	im.judge(&f, p.committed || c.goesAhead)
	f.handlesAreWhole()
}

// savepointIs looks whether a savepoint is there, whole, or can no more be taken for one.
func (im *importing) savepointIs(t *testing.T, dir string, whole bool) {
	t.Helper()
	sp, err := snapshot.OpenSavepoint(t.Context(), dir)
	if !whole {
		require.Error(t, err)
		return
	}
	require.NoError(t, err, "it was deleted although it is needed, or not the service's")
	defer sp.Close()
	_, err = sp.Verify(t.Context())
	require.NoError(t, err)
}

// judge wants every order behind the savepoint to have had its effect once, on top of what the savepoint has when it was
// imported; otherwise all orders from the beginning.
func (im *importing) judge(f *site, imported bool) {
	t := f.t
	paid := map[string][]int{} // the amounts of each key's paid orders
	for i := range importBefore + importAfter {
		var v struct {
			Amount int    `json:"amount"`
			Status string `json:"status"`
		}
		r := order(i, importKeys)
		require.NoError(t, json.Unmarshal(r.Value, &v))
		if v.Status == "paid" {
			paid[string(r.Key)] = append(paid[string(r.Key)], v.Amount)
		}
	}
	type total struct{ Orders, Spent int }
	want, got := map[string][]total{}, map[string][]total{}
	for key, amounts := range paid {
		sum := total{}
		for i, amount := range amounts {
			sum = total{sum.Orders + 1, sum.Spent + amount}
			if !imported || i >= im.before[key] {
				want[key] = append(want[key], sum)
			}
		}
	}
	for _, r := range f.read(f.out) {
		var v total
		require.NoError(t, json.Unmarshal(r.Value, &v))
		got[string(r.Key)] = append(got[string(r.Key)], v)
	}
	for key := range want {
		require.Equal(t, want[key], got[key], "key %s, imported %v", key, imported)
	}
	require.Len(t, got, len(want))
}

// importSome takes the steps that no other suite meets, and draws others up to ten; with IMPORT_EVERY or FAILPOINT_ONLY it takes
// all steps in every way.
func importSome(seed uint64) []importCase {
	if os.Getenv("IMPORT_EVERY") != "" || os.Getenv("FAILPOINT_ONLY") != "" {
		return importCases(seed, true)
	}
	cases := importCases(seed, false)
	rand.New(rand.NewPCG(seed, 32)).Shuffle(len(cases), func(a, b int) { cases[a], cases[b] = cases[b], cases[a] })
	own, others := []importCase(nil), []importCase(nil)
	for _, c := range cases {
		if imported(importPoints[c.step].point) {
			own = append(own, c)
		} else {
			others = append(others, c)
		}
	}
	return append(own, others[:10-len(own)]...)
}

// A start from a savepoint may die at every step, and the next one, with the same command or without --from, is exact.
func TestKillDuringAnImport(t *testing.T) {
	t.Parallel()
	importAll(t, failBroker(t), 6, importSome)
}

func TestRealKillDuringAnImport(t *testing.T) { importAll(t, realBrokers(t), 6, importSome) }
