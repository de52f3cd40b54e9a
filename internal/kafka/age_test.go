package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The documents say within which time a service sees that its input has grown: what is written by the new number of partitions
// meanwhile meets partitions without the state of its keys. Producers of other makes look after minutes.
func TestClientsSeeAGrownTopicWithinTenSeconds(t *testing.T) {
	cl, err := NewClient(Config{Brokers: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	defer cl.Close()
	require.LessOrEqual(t, cl.OptValue(kgo.MetadataMaxAge).(time.Duration), 10*time.Second)
	own, err := NewClient(Config{Brokers: []string{"127.0.0.1:1"}, Extra: []kgo.Opt{kgo.MetadataMaxAge(time.Minute)}})
	require.NoError(t, err)
	defer own.Close()
	require.Equal(t, time.Minute, own.OptValue(kgo.MetadataMaxAge), "what the caller sets wins")
}
