//go:build unix

package integration

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/verify"
)

// own gives the files of the site's application in the checkpoint directory, but for the announcements of its instances.
func (s *site) own() map[string]string {
	files := s.files()
	maps.DeleteFunc(files, func(name, _ string) bool {
		return !strings.HasPrefix(name, s.app+"/") || strings.HasSuffix(name, "/instance")
	})
	return files
}

// A cancel that deletes is killed at one step after the other, first the instance, then command after command. Up to the commit
// the application has all that it had, behind it no state. The last one leaves nothing, and of another application in the
// same directory everything.
func TestRealCancelKilledAtEveryStep(t *testing.T) {
	s, other := realSite(t, 2).impatient(), realSite(t, 2).impatient()
	other.dir = s.dir
	file, otherFile := s.file(totals), other.file(totals)
	a := s.mortal(armedBinary(t), file, "a", "FAILPOINT="+string(failpoint.ForgetBefore))
	b := other.mortal(processorBinary(t), otherFile, "other")
	for _, at := range []*site{s, other} {
		at.orders(0, 200, 20)
	}
	s.caughtUp(a)
	other.caughtUp(b)
	b.stop()
	untouched, positions := other.own(), other.committed()
	require.NotEmpty(t, untouched)

	startProcess(t, processorBinary(t), []string{"cancel", file, "--timeout", "1s"})
	require.Equal(t, -1, a.exit(20*time.Second), "killed: %s", a.stderr.tail(5))
	whole, worked := s.own(), s.committed()
	killed := func(point failpoint.Point) {
		code, text := s.cancelled(armedBinary(t), file, "FAILPOINT="+string(point)) // the one before is a member until its session is over
		require.Equal(t, -1, code, "%s: killed: %s", point, text)
	}
	for _, point := range []failpoint.Point{failpoint.ForgetJoinBefore, failpoint.ForgetJoinAfter, failpoint.ForgetBefore} {
		killed(point)
		require.Equal(t, whole, s.own(), point)
		require.Equal(t, worked, s.committed(), point)
		handles, _ := s.stateful()
		require.Equal(t, int(s.parts), handles, point)
	}
	killed(failpoint.ForgetAfter)
	handles, _ := s.stateful()
	require.Zero(t, handles)
	require.Equal(t, whole, s.own(), "nothing is deleted yet")
	killed(failpoint.ForgetFileAfter)
	left := s.own()
	require.Len(t, left, len(whole)-1)
	require.Subset(t, slices.Collect(maps.Keys(whole)), slices.Collect(maps.Keys(left)))

	code, text := s.cancelled(processorBinary(t), file)
	require.Zero(t, code, text)
	require.Empty(t, s.own())
	handles, _ = s.stateful()
	require.Zero(t, handles)
	for p, o := range s.committed() {
		require.Equal(t, worked[p].At, o.At, "the positions stay")
	}
	require.Equal(t, untouched, other.own())
	require.Equal(t, positions, other.committed())
	b = other.mortal(processorBinary(t), otherFile, "other")
	b.await("msg=processing")
	other.orders(200, 200, 20)
	other.caughtUp(b)
	other.exact(verify.Config{})
	b.stop()
}
