//go:build unix

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/processor"
)

// passOn has no state, so that its input may grow.
const passOn = settings + `sources:
  in: {topic: {{.In}}, key: string, value: string}
sinks:
  out: {from: in, topic: {{.Out}}, key: string, value: string}
`

// A topic that grows by several partitions at once while the service has nothing to do: the first checkpoint after that
// covers all of them, and every record of them is processed once.
func partitionsAreAdded(s *site) {
	job := s.inside(s.file(passOn), func(c *processor.Config) { // a client looks for new partitions now and then
		c.ClientOptions = []kgo.Opt{kgo.MetadataMaxAge(500 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond)}
	})
	s.tell(100)
	job.caughtUp()
	time.Sleep(2 * s.every) // so that the next checkpoint is due
	_, err := s.adm.CreatePartitions(s.ctx, 6, s.in)
	require.NoError(s.t, err)
	s.parts += 6
	require.Eventually(s.t, func() bool {
		d, err := s.adm.ListTopics(s.ctx, s.in)
		return err == nil && len(d[s.in].Partitions) == int(s.parts)
	}, 20*time.Second, 50*time.Millisecond)
	job.until(20*time.Second, func() bool { return strings.Contains(job.log.String(), "partitions taken in beside the others") }, "new partitions are noticed")
	s.tell(700)
	job.caughtUp()
	require.Empty(s.t, job.failed())
	job.stop()
	got := map[string]int{}
	for _, r := range s.read(s.out) {
		got[string(r.Key)]++
	}
	require.Equal(s.t, s.inputs(), got)
}

func TestPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	partitionsAreAdded(fakeSite(t, 2))
}
func TestRealPartitionsAreAdded(t *testing.T) { partitionsAreAdded(realSite(t, 2)) }
