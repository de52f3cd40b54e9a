package kafkasrc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
)

// The clients of a group hear of added partitions within a minute; a member that knows of them does not wait for that,
// whoever the leader is.
func TestAddedPartitionsThatAMemberKnowsAreSharedAtOnce(t *testing.T) {
	k := newBed(t, 2)
	leader := k.join(t, "i1")
	owns(t, 2, leader)
	other := k.join(t, "i2")
	owns(t, 1, leader)
	owns(t, 1, other)
	adm := kadm.NewClient(client(t, k.cfg))
	for i, who := range []*Group{other, leader} {
		n := 3 + i
		_, err := adm.CreatePartitions(t.Context(), 1, k.in)
		require.NoError(t, err)
		k.waitFor(t, n)
		began := time.Now()
		who.Know(map[string]int32{k.in: int32(n)})
		require.Eventually(t, func() bool { return len(leader.Current().Partitions)+len(other.Current().Partitions) == n }, 20*time.Second, 10*time.Millisecond)
		require.Less(t, time.Since(began), 10*time.Second)
	}
	was := leader.Current().Epoch
	leader.Know(map[string]int32{k.in: 4}) // nothing new: nobody is disturbed
	other.Know(map[string]int32{k.in: 4, "another": 9})
	time.Sleep(300 * time.Millisecond)
	require.Equal(t, was, leader.Current().Epoch)
}
