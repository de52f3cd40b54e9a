//go:build unix

package integration

import (
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/kafka"
)

var realKafka = flag.Bool("kafka", false, "run against a real Kafka too (as REAL_KAFKA=1 and KAFKA_BROKERS do)")

// fact is one thing that the design takes for granted about Kafka or about kgo in front of it.
type fact struct {
	name string
	// want is what Kafka shows.
	want string
	// observe does it and says what was seen, in the words of want.
	observe func(e *env) string
}

var facts = []fact{
	{"a raw TxnOffsetCommit through the producer commits offset, epoch and metadata", "offset 7, epoch 0, metadata handle-7", rawCommit},
	{"metadata of 4096 characters comes back as it was", "NONE, 4096 characters, equal", metadata(`{"a":1} `, 4096)},
	{"metadata of 4097 characters is refused", "OFFSET_METADATA_TOO_LARGE, 0 characters, different", metadata(`{"a":1} `, 4097)},
	{"metadata may have more than 4096 bytes if they are fewer characters", "NONE, 4096 characters, equal", metadata("zwölf ", 4096)},
	{"a commit needs the topic id at version 6", "without UNKNOWN_TOPIC_ID, with NONE", topicID},
	{"a wrong generation is refused", "older ILLEGAL_GENERATION, newer ILLEGAL_GENERATION, right NONE", wrongGeneration},
	{"an unknown member is refused", "UNKNOWN_MEMBER_ID", unknownMember},
	{"another member id under a static instance id is refused", "FENCED_INSTANCE_ID", fencedInstance},
	{"an empty member with generation -1 passes every fence", "NONE", noFence},
	{"the broker does not check who owns a partition", "NONE", foreignPartition},
	{"an offsets-only transaction is invisible to kgo: its commit sends nothing", "commit nil, offsets still open", offsetsOnly},
	{"the aborted offsets of an offsets-only transaction are committed by the next one", "abort nil, next commit nil, offset 5", offsetsLeak},
	{"with a marker record abort drops outputs and offsets", "abort nil, 0 records, no offset", abortDrops},
	{"with a marker record commit shows outputs and offsets", "commit nil, 2 records, offset 5", commitShows},
	{"InitProducerID of the same id aborts what was open and fences the former holder", "no offset, produce INVALID_PRODUCER_EPOCH, commit OPERATION_NOT_ATTEMPTED", takeOver},
	{"a raw EndTxn makes kgo's client useless", "end NONE, next produce INVALID_PRODUCER_EPOCH", rawEndTxn},
	{"a stable fetch waits for the open transaction", "unstable read 3, stable read waits, then 9", stableWaits},
	{"a stable fetch of named partitions sees a first commit that is still open", "UNSTABLE_OFFSET_COMMIT", firstCommitNamed},
	{"a stable fetch of all partitions does not see a first commit that is still open", "absent", firstCommitAll},
	{"a stable fetch of a group without members or offsets waits for its first commit too", "waits true", memberlessFirst},
	{"of two open commits the one written later stays, whatever is ended last", "offset 20", commitOrder},
	{"a reader of committed records sees up to the oldest open transaction", "before end 0, after 2", oldestOpen},
	{"aborted records are never read, and the position passes them", "records a b, next 6", abortedUnread},
	{"a commit after the member has left is legal once the offsets were accepted", "left nil, commit nil, offset 5", lateCommit},
	{"a commit under a cancelled context leaves the client usable by an abort", "commit failed, again failed, abort nil, begin nil", cancelledCommit},
	{"a transaction timeout above the maximum is refused by InitProducerID", "INVALID_TRANSACTION_TIMEOUT", longTimeout},
	{"inside the revoke callback the new generation is known, and only it commits", "generation grew true, old ILLEGAL_GENERATION, new NONE", revokeGeneration},
	{"a static member that starts again gets its partitions back at once, unnoticed by the others", "same partitions true, in a second true, unnoticed true", restartInPlace},
	{"an explicit leave moves the partitions of a static member at once", "in five seconds true", leaveMoves},
}

// differences are the facts that kfake shows otherwise. A test that rests on one of them must run on Kafka.
var differences = map[string]struct{ kfake, reason string }{
	"metadata of 4097 characters is refused": {
		"NONE, 4097 characters, equal", "kfake has no offset.metadata.max.bytes; the limit is checked on our side"},
	"of two open commits the one written later stays, whatever is ended last": {
		"offset 10", "kfake applies offsets when EndTxn comes, Kafka by their place in the offsets log; one checkpoint at a time, in order, makes both agree"},
	"a stable fetch of a group without members or offsets waits for its first commit too": {
		"waits false", "kfake answers GROUP_ID_NOT_FOUND; the reader of offsets is a member of the group"},
}

func TestTransactionConformance(t *testing.T) {
	t.Run("kfake", func(t *testing.T) {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		conform(t, c.ListenAddrs(), false)
	})
	t.Run("kafka", func(t *testing.T) {
		needReal(t)
		b := kafkatest.Start(t, kafkatest.Options{Properties: map[string]string{"group.min.session.timeout.ms": "1000"}})
		conform(t, strings.Split(b.Addr, ","), true)
	})
}

// needReal skips where no real Kafka is wanted.
func needReal(t *testing.T) {
	t.Helper()
	if !*realKafka && os.Getenv("REAL_KAFKA") == "" && os.Getenv("KAFKA_BROKERS") == "" {
		t.Skip("-kafka, REAL_KAFKA=1 or KAFKA_BROKERS runs it")
	}
}

func conform(t *testing.T, brokers []string, real bool) {
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() && os.Getenv("KAFKA_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	cfg := kafka.Config{Brokers: brokers, Logger: log}
	cluster, err := kafka.Probe(t.Context(), cfg, kafka.Need{TransactionTimeout: 15 * time.Minute})
	require.NoError(t, err, "the checks at start must accept the cluster")
	require.GreaterOrEqual(t, cluster.TransactionVersion, int16(2))
	require.Equal(t, 15*time.Minute, cluster.TransactionMaxTimeout)
	require.NotEmpty(t, cluster.ID)
	for i, f := range facts {
		t.Run(f.name, func(t *testing.T) {
			want, reason := f.want, ""
			if d, differs := differences[f.name]; differs && !real {
				want, reason = d.kfake, d.reason
			}
			require.Equal(t, want, f.observe(newEnv(t, cfg, i)), reason)
		})
	}
}

// A difference whose name is no fact's would hide nothing and mislead.
func TestDifferencesNameFacts(t *testing.T) {
	names := map[string]bool{}
	for _, f := range facts {
		require.False(t, names[f.name], "twice: %s", f.name)
		names[f.name] = true
	}
	for name, d := range differences {
		require.True(t, names[name], name)
		require.NotEmpty(t, d.reason)
	}
}
