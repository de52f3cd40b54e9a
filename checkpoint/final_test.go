package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

func TestTheFinalCheckpointCarriesTheSavepointsThatAreCutAtTheEnd(t *testing.T) {
	still := New(Config{Interval: time.Second, Timeout: time.Minute}, 0)
	still.AddTask(0, element.TaskID{Source: "a"})
	first := still.RequestFinal(0, "a")
	require.Len(t, first, 1, "also when nothing has moved")
	trigger, ok := first[0].(Trigger)
	require.True(t, ok)
	require.Equal(t, []string{"a"}, trigger.Savepoint)
	require.Equal(t, Final, trigger.Reason)

	c, _ := inFlight()
	require.Empty(t, c.RequestFinal(time.Second, "a", "b", "a"), "one is in flight")
	require.Equal(t, []string{"a", "b"}, c.Unserved())
	many := make([]string, 0, MaxSavepoints)
	for i := range MaxSavepoints {
		many = append(many, string(rune('0'+i))+"x")
	}
	actions := c.RequestFinal(time.Second, many...)
	require.Len(t, actions, 2, "two of them are too many")
	require.IsType(t, Refused{}, actions[0])
}
