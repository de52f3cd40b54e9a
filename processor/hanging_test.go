package processor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/hanging"
)

// A transaction that a coordinator is done with hangs for sure. One whose producer no coordinator knows may be of one that is
// still loading; it is told of when that stays so.
func TestAHangingTransactionOfAForgottenProducerIsToldOf(t *testing.T) {
	sure := hanging.Transaction{TopicPartition: element.TopicPartition{Topic: "out"}, TransactionalID: "app-a-1", ProducerID: 7}
	unknown := hanging.Transaction{TopicPartition: element.TopicPartition{Topic: "out", Partition: 1}, ProducerID: 8, Start: 40}
	both := hanging.Findings{Hanging: []hanging.Transaction{sure}, Unsure: []hanging.Transaction{unknown}}
	h := &hangingLook{}
	for range hangingTries - 1 {
		require.Equal(t, []hanging.Transaction{sure}, h.certain(both))
	}
	require.Empty(t, h.certain(hanging.Findings{}), "its coordinator has it again")
	for range hangingTries - 1 {
		require.Equal(t, []hanging.Transaction{sure}, h.certain(both))
	}
	require.Equal(t, []hanging.Transaction{sure, unknown}, h.certain(both))
	require.Equal(t, []hanging.Transaction{sure, unknown}, h.certain(both))
}
