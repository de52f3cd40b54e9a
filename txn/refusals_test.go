package txn

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// refusedOf has a topic take batches up to take bytes from a client with batches up to asked, and gives the size of the
// first record, alone, that is refused; 0 = none is.
func refusedOf(records []int64, asked, take int64) int64 {
	const frame = 61
	size, largest := int64(frame), int64(0)
	for _, alone := range records {
		if alone > asked {
			return alone // by the client
		}
		if n := alone - frame; size+n > asked {
			size, largest = frame, 0
		}
		size += alone - frame
		if largest = max(largest, alone); size > take {
			return largest
		}
	}
	return 0
}

// TestALimitThatIsNotToldIsFound: whatever the topic takes, and also when that changes once, the records go through unless
// one of them is too large alone, and neither takes many attempts. What is told may be nothing, or more than is true.
func TestALimitThatIsNotToldIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r refusals
		for phase := range 2 {
			take := rapid.Int64Range(leastBatch, 4<<20).Draw(t, "takes")
			told := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(take, 16<<20)).Draw(t, "told")
			records := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(70, 300), rapid.Int64Range(70, min(16<<20, take+take/8)), rapid.Int64Range(70, take)), 1, 50).Draw(t, "records")
			tooLarge := false
			for _, n := range records {
				tooLarge = tooLarge || n > take
			}
			for attempt := 1; ; attempt++ {
				require.Less(t, attempt, 40)
				asked := max(leastBatch, r.limit("out", told, DefaultBatchMaxBytes))
				alone := refusedOf(records, asked, take)
				if alone == 0 {
					require.False(t, tooLarge, "phase %d", phase)
					break
				}
				most := int64(64 << 20)
				if told > 0 {
					most = told
				}
				if !r.hope("out", alone, asked, most) {
					require.True(t, tooLarge, "phase %d: a record of %d is given up, batches of %d are taken", phase, alone, take)
					return // the process ends
				}
				r.learn("out", alone, asked)
			}
		}
	})
}

// TestALimitThatExplainsARefusalCounts: what is read anew is believed when it is less than what was refused.
func TestALimitThatExplainsARefusalCounts(t *testing.T) {
	var r refusals
	r.learn("out", 100, 1<<20)
	require.EqualValues(t, 1<<18, r.limit("out", 1<<20, 1<<20), "the same as before: it is not the truth")
	require.EqualValues(t, 900_000, r.limit("out", 900_000, 1<<20))
	require.EqualValues(t, 2<<20, r.limit("out", 2<<20, 1<<20), "raised again")
}

// TestBatchesBecomeSmallerWhereNoLimitIsTold: the configuration of the topic may not be read, or says more than is true. A
// topic whose limit is lowered takes what fits all the same, a record that was refused alone ends the process, and in the
// other direction one above the usual limit goes to a topic that takes it.
func TestBatchesBecomeSmallerWhereNoLimitIsTold(t *testing.T) {
	for _, kind := range []string{"manager", "plain"} {
		for _, told := range []int32{0, 1 << 20} {
			t.Run(kind, func(t *testing.T) {
				e := newEnv(t)
				cfg := e.config()
				cfg.TopicMaxBytes = func(topic string) (int32, bool) { return told, told > 0 && topic == e.out }
				var c committer
				if kind == "plain" {
					c = e.plain(func(c *Config) { *c = cfg })
				} else {
					c = e.manager(func(c *Config) { *c = cfg })
				}
				id := element.CheckpointID(0)
				// until tries records again and again, until they are taken or given up.
				until := func(sizes ...int) error {
					for range 15 {
						recs := make([]kgo.Record, len(sizes)) // anew: the client of the attempt before may still hold its own
						for i, n := range sizes {
							recs[i] = kgo.Record{Topic: e.out, Value: make([]byte, n)}
						}
						id++
						err := c.ProduceBatch(e.ctx, recs)
						if err == nil {
							err = c.Seal(e.ctx, id)
						}
						require.NoError(t, c.Abort(e.ctx))
						require.NoError(t, c.Init(e.ctx))
						if err == nil || fault.RecoveryOf(err) != fault.Restart {
							return err
						}
						require.ErrorIs(t, err, kerr.MessageTooLarge)
						require.Equal(t, fault.BadRecord, fault.CodeOf(err))
					}
					require.Fail(t, "there is no end to it")
					return nil
				}
				many := make([]int, 200)
				for i := range many {
					many[i] = 100 + i
				}
				e.lower("3000")
				require.NoError(t, until(append(many, 2900)...))
				err := until(append(many, 2990)...)
				require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
				require.Equal(t, fault.BadRecord, fault.CodeOf(err))
				require.ErrorContains(t, err, "2990 bytes before compression")
				if told == 0 {
					e.lower("4000000")
					require.NoError(t, until(2<<20))
				}
			})
		}
	}
}

// TestAPolicyThatRefusesRecords: it will do so however often they come.
func TestAPolicyThatRefusesRecords(t *testing.T) {
	for _, kind := range []string{"manager", "plain"} {
		t.Run(kind, func(t *testing.T) {
			e := newEnv(t)
			e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Answer: testbed.Always(kerr.PolicyViolation)})
			var c committer
			if kind == "plain" {
				c = e.plain()
			} else {
				c = e.manager()
			}
			require.NoError(t, c.ProduceBatch(e.ctx, e.records("a")))
			err := c.Seal(e.ctx, 1)
			require.ErrorIs(t, err, kerr.PolicyViolation)
			require.ErrorContains(t, err, "a policy of the cluster refuses the record")
			require.Equal(t, fault.Stop, fault.RecoveryOf(err))
			require.Equal(t, fault.Denied, fault.CodeOf(err))
		})
	}
}
