//go:build unix

package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/integration/kafkatest"
)

// What retention has deleted, and what was passed over behind it, is of a later leader epoch than what was processed. The
// position behind it stands for itself: the next start, which comes before the next record, goes on there.
func TestRealTheLeaderChangesInTheGap(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	s := newSite(t, []string{b.Addr}, 1)
	file := s.file(passOn, "value: string}\nsinks", "value: string, on-missing: latest}\nsinks")
	work := func() {
		p := s.run(file)
		s.caughtUp(p)
		p.stop()
	}
	s.orders(0, 50, 100)
	work()
	epoch := s.committed()[0].LeaderEpoch
	require.NoError(t, b.Stop())
	require.NoError(t, b.Restart(s.ctx)) // another epoch
	s.orders(50, 50, 100)
	below := kadm.Offsets{}
	below.AddOffset(s.in, 0, 60, -1)
	_, err := s.adm.DeleteRecords(s.ctx, below)
	require.NoError(t, err)
	work()
	require.EqualValues(t, 100, s.committed()[0].At)
	p := s.run(file)
	p.await("msg=processing")
	s.orders(100, 10, 100)
	s.caughtUp(p)
	require.Greater(t, s.committed()[0].LeaderEpoch, epoch)
	settled(s)
	require.Len(t, s.read(s.out), 60)
	p.stop()
}
