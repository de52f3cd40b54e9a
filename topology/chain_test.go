package topology_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

func TestUnchangedBytesPassAsTheyAre(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", json.Any(), json.Any())
	keep := topology.Filter(s, "keep", func(any, any) bool { return true })
	topology.ToTopic(keep, "pass", "out1", json.Any(), json.Any())
	same := topology.Map(keep, "same", func(_, v any) any { return v })
	topology.ToTopic(same, "again", "out2", json.Any(), json.Any())
	task, env := drive(t, b)

	in := kv(7, `"k" `, `{"b": 1.0, "a": 2}`)
	require.NoError(t, task.Process(from, []element.Record{in}))
	out := env.Out[0][0]
	require.Same(t, unsafe.SliceData(in.Key), unsafe.SliceData(out.Key))
	require.Same(t, unsafe.SliceData(in.Value), unsafe.SliceData(out.Value))
	require.Equal(t, element.Record{Key: in.Key, Value: in.Value, Timestamp: 1007, Offset: 7}, out)

	out = env.Out[1][0]
	require.Same(t, unsafe.SliceData(in.Key), unsafe.SliceData(out.Key))
	require.Equal(t, `{"a":2,"b":1}`, string(out.Value), "a mapped value is encoded anew")
}

func TestAnotherCodecEncodesAnew(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Int64())
	topology.ToTopic(s, "json", "out", json.Of[string](), json.Of[int64]())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{rec(0, []byte("k"), []byte{0, 0, 0, 0, 0, 0, 0, 9})}))
	require.Equal(t, []string{`"k"=9`}, pairs(env.Out[0]))
}

func TestDecodeErrorsFollowTheirPolicy(t *testing.T) {
	build := func(opts ...topology.SourceOption) *topology.Builder {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.Int64(), json.Any(), opts...)
		topology.ToTopic(s, "out", "out", serde.Int64(), json.Any())
		return b
	}
	key := []byte{0, 0, 0, 0, 0, 0, 0, 1}
	records := []element.Record{rec(1, key, []byte("1")), rec(2, []byte("short"), []byte("2")), rec(3, key, []byte("{")), rec(4, key, []byte("4"))}

	task, _ := drive(t, build())
	err := task.Process(from, records)
	require.EqualError(t, err, "topic in partition 3 offset 2: step src: decode key as int64: int64 needs 8 bytes, got 5")
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))

	task, _ = drive(t, build(topology.OnError(topology.Skip)))
	require.Error(t, task.Process(from, records), "OnError is not about decoding")

	task, env := drive(t, build(topology.OnDecodeError(topology.Skip)))
	require.NoError(t, task.Process(from, records))
	require.Equal(t, []int64{1, 4}, offsets(env.Out[0]))
	require.Len(t, env.Skips, 2)
	require.EqualError(t, env.Skips[1].Reason, "topic in partition 3 offset 3: step src: decode value as json: unexpected end, want a key in quotes at byte 1")
}

func offsets(recs []element.Record) []int64 {
	out := make([]int64, len(recs))
	for i := range recs {
		out[i] = recs[i].Offset
	}
	return out
}

// failing is a serde and a set of functions that fail or panic at the value "bad".
type failing struct{ renamed }

func (failing) Append(dst []byte, v string) ([]byte, error) {
	if v == "bad" {
		return dst, errors.New("no bad values")
	}
	return append(dst, v...), nil
}

func TestErrorsAndPanicsOfUserCodeFollowThePolicy(t *testing.T) {
	type R = topology.Rec[string, string]
	boom := func(v string) string {
		if v == "bad" {
			panic(fmt.Sprintf("cannot stand %s", v))
		}
		return v
	}
	steps := map[string]struct {
		build  func(s topology.Stream[string, string])
		reason string
	}{
		"filter": {func(s topology.Stream[string, string]) {
			out := topology.Filter(s, "step", func(_, v string) bool { return boom(v) != "" })
			topology.ToTopic(out, "out", "out", serde.String(), serde.String())
		}, "panic: cannot stand bad"},
		"filterrec": {func(s topology.Stream[string, string]) {
			out := topology.FilterRec(s, "step", func(r *R) (bool, error) { return true, asError(r.Value) })
			topology.ToTopic(out, "out", "out", serde.String(), serde.String())
		}, "bad value"},
		"map": {func(s topology.Stream[string, string]) {
			out := topology.Map(s, "step", func(_, v string) string { return boom(v) })
			topology.ToTopic(out, "out", "out", serde.String(), serde.String())
		}, "panic: cannot stand bad"},
		"maprec": {func(s topology.Stream[string, string]) {
			out := topology.MapRec(s, "step", func(in, out *R) error { out.Value = in.Value; return asError(in.Value) })
			topology.ToTopic(out, "out", "out", serde.String(), serde.String())
		}, "bad value"},
		"sink": {func(s topology.Stream[string, string]) {
			topology.ToTopic(s, "step", "out", serde.String(), serde.Serde[string](failing{renamed{"failing"}}))
		}, "encode value as failing: no bad values"},
	}
	records := []element.Record{kv(1, "k", "a"), kv(2, "k", "bad"), kv(3, "k", "bad"), kv(4, "k", "b")}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			build := func(opts ...topology.SourceOption) *topology.Builder {
				b := topology.New("app")
				s := topology.FromTopic(b, "src", "in", serde.String(), serde.String(), opts...)
				step.build(s)
				return b
			}
			task, _ := drive(t, build(topology.OnDecodeError(topology.Skip)))
			err := task.Process(from, records)
			require.EqualError(t, err, "topic in partition 3 offset 2: step step: "+step.reason)
			want := fault.Restart // user code may fail for a reason that passes
			if name == "sink" {
				want = fault.Stop
			}
			require.Equal(t, want, fault.RecoveryOf(err))
			require.Equal(t, fault.BadRecord, fault.CodeOf(err))
			require.Equal(t, err, task.Process(from, nil), "a failed task stays failed")
			require.Equal(t, err, task.Flush())
			var rerr *topology.RecordError
			require.ErrorAs(t, err, &rerr)
			require.Equal(t, strings.HasPrefix(step.reason, "panic"), strings.Contains(rerr.Detail(), "chain_test.go"), rerr.Detail())

			task, env := drive(t, build(topology.OnError(topology.Skip)))
			require.NoError(t, task.Process(from, records))
			require.NoError(t, task.Flush())
			require.Equal(t, []string{"k=a", "k=b"}, pairs(env.Out[0]))
			require.Len(t, env.Skips, 2)
		})
	}
}

func asError(v string) error {
	if v == "bad" {
		return errors.New("bad value")
	}
	return nil
}

func TestARecordSkippedInOneBranchIsNotSkippedInAnother(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String(), topology.OnError(topology.Skip))
	strict := topology.FilterRec(s, "strict", func(r *topology.Rec[string, string]) (bool, error) { return true, asError(r.Value) })
	topology.ToTopic(strict, "strict", "out1", serde.String(), serde.String())
	topology.ToTopic(s, "all", "out2", serde.String(), serde.String())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "bad"), kv(1, "k", "good")}))
	require.Equal(t, []string{"k=good"}, pairs(env.Out[0]))
	require.Equal(t, []string{"k=bad", "k=good"}, pairs(env.Out[1]))
}

func TestAnErrorOfTheEngineIsNoRecordError(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String(), topology.OnError(topology.Skip), topology.OnDecodeError(topology.Skip))
	topology.ToTopic(s, "out", "out", serde.String(), serde.String())
	task, env := drive(t, b)
	env.EmitErr = fault.New(fault.Rejoin, fault.Failed, "lost the partition")
	err := task.Process(from, []element.Record{kv(0, "k", "v")})
	require.Equal(t, env.EmitErr, err)
	require.Empty(t, env.Skips)
}

func TestATaskRefusesAnotherPartitionAndUseAfterClose(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	topology.ToTopic(s, "out", "out", serde.String(), serde.String())
	task, _ := drive(t, b)
	require.Equal(t, element.TaskID{Source: "src", Partition: 3}, task.ID())
	require.EqualError(t, task.Process(element.TopicPartition{Topic: "in", Partition: 4}, nil), "task src-3 was given records of in/4")

	task, _ = drive(t, b)
	require.NoError(t, task.Close())
	require.EqualError(t, task.Process(from, nil), "task src-3 is closed")

	p, err := b.Plan()
	require.NoError(t, err)
	_, err = p.NewTask("none", 0, newMemEnv())
	require.EqualError(t, err, `topology "app" has no stage "none"`)
}

// TestAnIdleTaskPinsNoInput: the scratch batches must not keep the buffers of the last delivery alive.
func TestAnIdleTaskPinsNoInput(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	keep := topology.Filter(s, "keep", func(string, []byte) bool { return true })
	same := topology.Map(keep, "same", func(_ string, v []byte) []byte { return v })
	topology.ToTopic(same, "same", "out1", serde.String(), serde.Bytes())
	topology.ToTopic(topology.Last(keep, "last", serde.Bytes()), "last", "out2", serde.String(), serde.Bytes())
	joined := topology.Merge("joined", keep, same)
	proc := topology.Process(joined, "proc", func() topology.Processor[string, []byte, []byte] { return passOn{} })
	topology.ToTopic(proc, "proc", "out3", serde.String(), serde.Bytes())
	task, env := drive(t, b)
	env.Discard = true
	type buffer [1 << 10]byte
	var watch []weak.Pointer[buffer]
	for i := range int64(3) {
		recs := make([]element.Record, 300-100*i)
		for j := range recs {
			buf := new(buffer)
			watch = append(watch, weak.Make(buf))
			recs[j] = rec(i*1000+int64(j), buf[:4], buf[4:8])
		}
		require.NoError(t, task.Process(from, recs))
	}
	runtime.GC()
	for i, w := range watch {
		require.Nil(t, w.Value(), "input %d is still held", i)
	}
	runtime.KeepAlive(task)
}

type passOn struct{}

func (passOn) Open(*topology.ProcessContext) error { return nil }

func (passOn) Process(_ *topology.ProcessContext, in *topology.Rec[string, []byte], out *topology.Collector[string, []byte]) error {
	out.Emit(in.Value)
	return nil
}

func TestMapRecCannotMoveARecordToAnotherKey(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	moved := topology.MapRec(s, "moved", func(in, out *topology.Rec[string, string]) error {
		out.Key, out.RawKey, out.Offset = "other", []byte("other"), 99
		out.Timestamp = 5
		out.Value = in.Value
		return nil
	})
	topology.ToTopic(moved, "out", "out", json.Of[string](), serde.String())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(1, "k", "v")}))
	require.Equal(t, []string{`"k"=v`}, pairs(env.Out[0]))
	require.Equal(t, int64(1), env.Out[0][0].Offset)
	require.Equal(t, int64(5), env.Out[0][0].Timestamp)
}

// TestBranchesSeeTheSameRecordsWhateverTheBatches runs one input in random deliveries through branches and compares each
// with a plain loop.
func TestBranchesSeeTheSameRecordsWhateverTheBatches(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
		short := topology.Filter(s, "short", func(_, v string) bool { return len(v) < 3 })
		upper := topology.Map(short, "upper", func(k, v string) string { return strings.ToUpper(k + v) })
		topology.ToTopic(upper, "upper", "out1", serde.String(), serde.String())
		topology.ToTopic(short, "short", "out2", serde.String(), serde.String())
		topology.ToTopic(s, "all", "out3", renamed{"renamed"}, serde.String())
		p, err := b.Plan()
		require.NoError(rt, err)
		env := newMemEnv()
		task, err := p.NewTask("src", from.Partition, env)
		require.NoError(rt, err)

		var want [3][]string
		offset := int64(0)
		for range rapid.IntRange(1, 5).Draw(rt, "deliveries") {
			recs := make([]element.Record, rapid.SampledFrom([]int{0, 1, 2, 255, 256, 257, 600}).Draw(rt, "records"))
			for i := range recs {
				k, v := fmt.Sprint(offset%7), strings.Repeat("x", int(offset%5))
				recs[i] = kv(offset, k, v)
				if len(v) < 3 {
					want[0] = append(want[0], k+"="+strings.ToUpper(k+v))
					want[1] = append(want[1], k+"="+v)
				}
				want[2] = append(want[2], k+"="+v)
				offset++
			}
			require.NoError(rt, task.Process(from, recs))
		}
		for sink := range want {
			require.Equal(rt, append([]string{}, want[sink]...), pairs(env.Out[sink]))
		}
		require.NoError(rt, env.Check())
		require.NoError(rt, task.Close())
	})
}

// What the same record gives every time ends the service at once: also errors of user code that it marks so.
func TestErrorsThatNeverPassAreFinal(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	topology.ToTopic(topology.MapRec(s, "step", func(_, _ *topology.Rec[string, string]) error {
		return topology.Permanent(errors.New("never"))
	}), "out", "out", serde.String(), serde.String())
	task, _ := drive(t, b)
	err := task.Process(from, []element.Record{{Key: []byte("k"), Value: []byte("x"), Offset: 4}})
	require.ErrorContains(t, err, "step step: never")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.NoError(t, topology.Permanent(nil))

	b = topology.New("app") // and a null key in a keyed step
	s = topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Count(s, "step"), "out", "out", serde.String(), serde.Int64())
	task, _ = drive(t, b)
	err = task.Process(from, []element.Record{{Value: []byte("x"), Offset: 4}})
	require.ErrorIs(t, err, topology.ErrNullKey)
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
}
