package hanging

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
)

// The values are String.hashCode of Java: 96354, -1808118735, -2147483648, and for a pair of surrogates 1772899.
func TestInternalPartitionIsTheBrokers(t *testing.T) {
	require.EqualValues(t, 96354%50, internalPartition("abc", 50))
	require.EqualValues(t, 1808118735%50, internalPartition("String", 50))
	require.EqualValues(t, 0, internalPartition("polygenelubricants", 50))
	require.EqualValues(t, 1772899%50, internalPartition("😀", 50))
	require.EqualValues(t, 0, internalPartition("", 50))
}

// A decision belongs to a transaction of version 2 by its epoch alone, and names the partition.
func TestADecisionIsThatOfTheTransaction(t *testing.T) {
	h := Transaction{TopicPartition: element.TopicPartition{Topic: "out", Partition: 3}, TransactionalID: "id", ProducerID: 7, ProducerEpoch: 4}
	value := func(change func(*kmsg.TxnMetadataValue)) *kmsg.TxnMetadataValue {
		topic := kmsg.NewTxnMetadataValueTopic()
		topic.Topic, topic.Partitions = "out", []int32{2, 3}
		v := &kmsg.TxnMetadataValue{ProducerID: 7, ProducerEpoch: 5, State: kmsg.TransactionStatePrepareCommit, ClientTransactionVersion: 2, Topics: []kmsg.TxnMetadataValueTopic{topic}}
		change(v)
		return v
	}
	require.True(t, decides(value(func(*kmsg.TxnMetadataValue) {}), h))
	require.True(t, decides(value(func(v *kmsg.TxnMetadataValue) { v.State = kmsg.TransactionStatePrepareAbort }), h))
	for name, change := range map[string]func(*kmsg.TxnMetadataValue){
		"another producer":      func(v *kmsg.TxnMetadataValue) { v.ProducerID = 8 },
		"the transaction after": func(v *kmsg.TxnMetadataValue) { v.ProducerEpoch = 6 },
		"many have this epoch":  func(v *kmsg.TxnMetadataValue) { v.ClientTransactionVersion = 1 },
		"not decided":           func(v *kmsg.TxnMetadataValue) { v.State = kmsg.TransactionStateOngoing },
		"complete":              func(v *kmsg.TxnMetadataValue) { v.State = kmsg.TransactionStateCompleteCommit },
		"not there":             func(v *kmsg.TxnMetadataValue) { v.Topics[0].Partitions = []int32{2} },
	} {
		require.False(t, decides(value(change), h), name)
	}
}
