package topology_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// lengths is a Folder that keeps the number of records and of bytes of a key, followed by pad more bytes, and passes on a
// text of both. Values of three bytes fail after the accumulator was appended, of four panic.
type lengths struct{ pad int }

func (l lengths) Fold(dst, old []byte, in *topology.Rec[string, []byte], out *string) ([]byte, error) {
	var n, sum uint64
	if old != nil {
		n, sum = binary.BigEndian.Uint64(old), binary.BigEndian.Uint64(old[8:])
	}
	n, sum = n+1, sum+uint64(len(in.Value))
	dst = binary.BigEndian.AppendUint64(dst, n)
	dst = binary.BigEndian.AppendUint64(dst, sum)
	*out = fmt.Sprintf("%d/%d", n, sum)
	switch {
	case in.Tombstone:
		*out += " gone"
	case len(in.Value) == 3:
		return dst, errors.New("three")
	case len(in.Value) == 4:
		panic("four")
	}
	if l.pad > 0 {
		dst = append(dst, strings.Repeat("x", int(n)%l.pad)...)
	}
	return dst, nil
}

func encoded(size, pad int, tombstones bool) topology.EncodedAggregate[string, []byte, string] {
	return topology.EncodedAggregate[string, []byte, string]{
		Codec: "lengths", Size: size, Tombstones: tombstones,
		New: func() topology.Folder[string, []byte, string] { return lengths{pad} },
	}
}

// TestEncodedAggregatesMatchATypedOne runs random records, failing ones and tombstones among them, through both ways of
// storing and through AggregateRec.
func TestEncodedAggregatesMatchATypedOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes(), topology.OnError(topology.Skip))
		seen := rapid.Bool().Draw(rt, "tombstones")
		fold := func(acc total, r *topology.Rec[string, []byte]) (total, error) {
			if n := len(r.Value); n == 3 || n == 4 || r.Tombstone && !seen {
				return acc, errors.New("left out")
			}
			return addTotal(acc, r.Value), nil
		}
		topology.ToTopic(topology.AggregateRec(s, "typed", totalSerde{}, fold), "typed", "out", serde.String(), totalSerde{})
		topology.ToTopic(topology.AggregateEncoded(s, "fixed", encoded(16, 0, seen)), "fixed", "out", serde.String(), serde.String())
		topology.ToTopic(topology.AggregateEncoded(s, "varies", encoded(0, 5, seen)), "varies", "out", serde.String(), serde.String())
		p, err := b.Plan()
		require.NoError(rt, err)
		env := newMemEnv()
		var gone, failed int
		for range rapid.IntRange(1, 3).Draw(rt, "tasks") {
			task, err := p.NewTask("src", from.Partition, env)
			require.NoError(rt, err)
			recs := make([]element.Record, rapid.IntRange(0, 300).Draw(rt, "records"))
			for i := range recs {
				var v []byte
				switch n := rapid.IntRange(-1, 6).Draw(rt, "bytes"); {
				case n < 0:
					gone++
				default:
					v = make([]byte, n)
					if n == 3 || n == 4 {
						failed++
					}
				}
				recs[i] = rec(int64(i), []byte(fmt.Sprintf("k%d", rapid.IntRange(0, 5).Draw(rt, "key"))), v)
			}
			require.NoError(rt, task.Process(from, recs))
			require.NoError(rt, task.Close())
		}
		require.NoError(rt, env.Check())
		require.Len(rt, env.Out[1], len(env.Out[0]))
		for i, typed := range env.Out[0] {
			v, err := totalSerde{}.Decode(typed.Value)
			require.NoError(rt, err)
			for sink := 1; sink <= 2; sink++ {
				got := strings.TrimSuffix(string(env.Out[sink][i].Value), " gone")
				require.Equal(rt, string(typed.Key)+fmt.Sprintf("=%d/%d", v.records, v.bytes), string(env.Out[sink][i].Key)+"="+got)
			}
		}
		for _, step := range []string{"fixed", "varies"} {
			require.Equal(rt, env.Tables["typed/aggregate"].Len(), env.Tables[step+"/aggregate"].Len(), "a failed first record leaves no key")
			for k, raw := range env.Tables["typed/aggregate"].All() {
				got, ok := env.Tables[step+"/aggregate"].Get(k)
				require.True(rt, ok)
				require.Equal(rt, raw, got[:16])
			}
			var skips, tombstones int
			for _, s := range env.Skips {
				if s.Step == step && errors.Is(s.Reason, topology.ErrTombstone) {
					tombstones++
				} else if s.Step == step {
					skips++
				}
			}
			require.Equal(rt, failed, skips)
			if !seen {
				require.Equal(rt, gone, tombstones)
			} else {
				require.Zero(rt, tombstones)
			}
		}
	})
}

func TestAnEncodedAggregateThatBreaksItsSizeFailsTheRecord(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	topology.ToTopic(topology.AggregateEncoded(s, "sum", encoded(15, 0, false)), "out", "out", serde.String(), serde.String())
	task, env := drive(t, b)
	require.EqualError(t, task.Process(from, []element.Record{kv(0, "k", "")}),
		"topic in partition 3 offset 0: step sum: accumulator: lengths needs 15 bytes, got 16")
	require.Zero(t, env.Tables["sum/aggregate"].Len())
}

func TestAnEncodedAggregateIsDrawnAsOneAndItsMistakesAreReported(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	topology.ToTopic(topology.AggregateEncoded(s, "sum", encoded(16, 0, false)), "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	require.Contains(t, p.Describe(), "aggregate sum: state sum/aggregate@lengths")

	topology.AggregateEncoded(s, "bad", topology.EncodedAggregate[string, []byte, string]{Size: -1})
	_, err = b.Plan()
	require.ErrorContains(t, err, `step "bad": the function is nil`)
	require.ErrorContains(t, err, `step "bad": the accumulator codec has an empty name`)
	require.ErrorContains(t, err, `step "bad": the accumulator has a size of -1 bytes`)

	for want, newFn := range map[string]func() topology.Folder[string, []byte, string]{
		"step sum: the function gives a nil Folder": func() topology.Folder[string, []byte, string] { return nil },
		"step sum: panic: no":                       func() topology.Folder[string, []byte, string] { panic("no") },
	} {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
		spec := encoded(16, 0, false)
		spec.New = newFn
		topology.ToTopic(topology.AggregateEncoded(s, "sum", spec), "out", "out", serde.String(), serde.String())
		p, err := b.Plan()
		require.NoError(t, err)
		_, err = p.NewTask("src", 0, newMemEnv())
		require.ErrorContains(t, err, want)
	}
}
