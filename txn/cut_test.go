package txn

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// TestCutPiecesAreTheSameOffsets: what is cut is what was not accepted, in order, and goes down to one partition.
func TestCutPiecesAreTheSameOffsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, MaxHandle), 1, 200).Draw(t, "handles")
		offsets := make([]checkpoint.OffsetCommit, len(lengths))
		for i, n := range lengths {
			offsets[i] = checkpoint.OffsetCommit{Metadata: strings.Repeat("m", n)}
			offsets[i].Position.Partition = int32(i)
		}
		var s sizes
		ps := s.begin("g", offsets)
		for at := 0; at < len(ps); {
			if len(ps[at]) == 1 || rapid.Bool().Draw(t, "accepted") {
				at++
				continue
			}
			was := len(ps[at])
			ps = s.cut("g", offsets, ps, at)
			require.Less(t, len(ps[at]), was)
			var all []checkpoint.OffsetCommit
			for _, p := range ps {
				all = append(all, p...)
			}
			require.Equal(t, offsets, all)
		}
	})
}

// TestTheBoundOfPiecesComesBack: a refusal that had another reason does not cost for ever.
func TestTheBoundOfPiecesComesBack(t *testing.T) {
	offsets := make([]checkpoint.OffsetCommit, 8)
	var s sizes
	ps := s.begin("g", offsets)
	require.Len(t, ps, 1)
	require.Len(t, s.cut("g", offsets, ps, 0), 2)
	for range calmAfter {
		require.Len(t, s.begin("g", offsets), 2)
	}
	require.Len(t, s.begin("g", offsets), 1)
	for range 64 * calmAfter {
		s.begin("g", offsets)
	}
	require.Equal(t, pieceBytes, s.most())
}

// offsetsTake lets the broker write no more than so many bytes of offsets at once, which it says with a code of its own or
// the given one. 0 is as before.
func (w *wide) offsetsTake(bytes int, says *kerr.Error) {
	set := kadm.AlterConfig{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kmsg.StringPtr(strconv.Itoa(bytes))}
	if bytes == 0 {
		set = kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "max.message.bytes"}
	}
	if testbed.Real() {
		got, err := w.bed.Admin().AlterTopicConfigs(w.ctx, []kadm.AlterConfig{set}, kafka.OffsetsTopic)
		require.NoError(w.t, err)
		require.NoError(w.t, got[0].Err)
		time.Sleep(time.Second) // the broker applies it some time after its answer
		return
	}
	w.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.OffsetCommit}, Answer: func(r kmsg.Request) *kerr.Error {
		if len(r.AppendTo(nil)) > bytes {
			return says
		}
		return nil
	}})
}

// TestOffsetsTopicThatTakesLess: the pieces become smaller until they are taken, within the one commit, and stay so.
func TestOffsetsTopicThatTakesLess(t *testing.T) {
	for name, plain := range map[string]bool{"transactions": false, "plain": true} {
		for _, says := range []*kerr.Error{kerr.UnknownServerError, kerr.InvalidCommitOffsetSize, kerr.RecordListTooLarge} {
			t.Run(name+" "+says.Message, func(t *testing.T) {
				if testbed.Real() && (plain || says != kerr.UnknownServerError) {
					t.Skip("a broker of today says UNKNOWN_SERVER_ERROR, and only within a transaction: else it cuts the batch itself")
				}
				w := newWide(t)
				m := w.either(plain)
				w.offsetsTake(20_000, says)
				if testbed.Real() {
					defer w.offsetsTake(0, nil)
				}
				require.NoError(t, m.ProduceBatch(w.ctx, w.records("a")))
				require.NoError(t, m.Seal(w.ctx, 7))
				require.NoError(t, m.Commit(w.ctx, w.commit(7)))
				require.Equal(t, map[int64]int{7: wideParts}, w.stands())
				first := len(w.sends)
				require.Greater(t, first, 70)
				w.sends = nil
				require.NoError(t, m.Seal(w.ctx, 8))
				require.NoError(t, m.Commit(w.ctx, w.commit(8)))
				require.Equal(t, map[int64]int{8: wideParts}, w.stands())
				require.Less(t, len(w.sends), first, "what was found out is kept")
				require.Equal(t, []string{"a"}, w.read(w.out))
			})
		}
	}
}

// TestOffsetsTopicThatTakesNone: where not even one partition's offset is taken, the process ends and says why.
func TestOffsetsTopicThatTakesNone(t *testing.T) {
	for name, plain := range map[string]bool{"transactions": false, "plain": true} {
		for _, says := range []*kerr.Error{kerr.UnknownServerError, kerr.InvalidCommitOffsetSize} {
			t.Run(name+" "+says.Message, func(t *testing.T) {
				if testbed.Real() && (plain || says != kerr.UnknownServerError) {
					t.Skip("a broker of today says UNKNOWN_SERVER_ERROR, and only within a transaction: else it cuts the batch itself")
				}
				w := newWide(t)
				m := w.either(plain)
				w.offsetsTake(3000, says)
				if testbed.Real() {
					defer w.offsetsTake(0, nil)
				}
				c := w.commit(7)
				c.Offsets = c.Offsets[:3]
				tries := 0
				for {
					tries++
					require.NoError(t, m.Seal(w.ctx, 7))
					err := m.Commit(w.ctx, c)
					require.ErrorContains(t, err, kafka.OffsetsTopic)
					require.ErrorContains(t, err, "max.message.bytes")
					require.ErrorIs(t, err, says)
					if fault.RecoveryOf(err) != fault.Stop {
						require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
						require.NoError(t, m.Init(w.ctx))
						continue
					}
					require.Equal(t, fault.Denied, fault.CodeOf(err))
					require.ErrorContains(t, err, "4096 of them the checkpoint's handle")
					break
				}
				if testbed.Real() || says == kerr.InvalidCommitOffsetSize {
					require.Equal(t, 1, tries, "the limit is known")
				} else {
					require.Equal(t, mostAlone, tries)
				}
				require.Empty(t, w.stands())
			})
		}
	}
}

// TestAnUnknownErrorThatPasses: where the limit is known and allows it, the broker has another trouble, which may pass.
func TestAnUnknownErrorThatPasses(t *testing.T) {
	w := newWide(t)
	broker := w.bed.Fake("a broker with an internal error")
	broker.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		return offsetsTopicOf(r, "1000000"), nil, true
	})
	m := w.manager()
	rule := w.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Answer: testbed.Always(kerr.UnknownServerError)})
	for range 2 * mostAlone {
		require.NoError(t, m.Seal(w.ctx, 7))
		err := m.Commit(w.ctx, w.commit(7))
		require.ErrorIs(t, err, kerr.UnknownServerError)
		require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
		require.NoError(t, m.Init(w.ctx))
	}
	rule.Remove()
	w.sends = nil
	require.NoError(t, m.Seal(w.ctx, 8))
	require.NoError(t, m.Commit(w.ctx, w.commit(8)))
	require.Less(t, len(w.sends), 10, "the pieces are as large as before")
}

// offsetsTopicOf answers a request for configurations.
func offsetsTopicOf(r kmsg.Request, most string) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, asked := range r.(*kmsg.DescribeConfigsRequest).Resources {
		res := kmsg.NewDescribeConfigsResponseResource()
		res.ResourceType, res.ResourceName = asked.ResourceType, asked.ResourceName
		if asked.ResourceName == kafka.OffsetsTopic {
			c := kmsg.NewDescribeConfigsResponseResourceConfig()
			c.Name, c.Value = "max.message.bytes", &most
			res.Configs = append(res.Configs, c)
		}
		resp.Resources = append(resp.Resources, res)
	}
	return resp
}

// TestMetadataThatTheBrokersRefuse: both modes end at once, with the setting and both sizes.
func TestMetadataThatTheBrokersRefuse(t *testing.T) {
	for name, plain := range map[string]bool{"transactions": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			w := newWide(t)
			w.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.OffsetCommit}, Answer: testbed.Always(kerr.OffsetMetadataTooLarge)})
			m := w.either(plain)
			require.NoError(t, m.Seal(w.ctx, 7))
			err := m.Commit(w.ctx, w.commit(7))
			require.ErrorIs(t, err, kerr.OffsetMetadataTooLarge)
			require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
			require.Equal(t, fault.Denied, fault.CodeOf(err))
			for _, want := range []string{"offset.metadata.max.bytes", "has up to 4096 bytes"} {
				require.ErrorContains(t, err, want)
			}
			require.Len(t, w.sends, 1, "nothing is tried again")
		})
	}
}
