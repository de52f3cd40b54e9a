package topology_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// straight is a graph of a source of bytes, a hash exchange that keeps the key, and a sink.
func straight(t require.TestingT, k, v serde.Serde[[]byte], opts ...topology.SourceOption) *graph {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.Bytes(), serde.Bytes(), opts...)
	f := topology.NewFeedback(b, "over", k, v) // a hash exchange that takes null keys, too
	f.From(in)
	topology.ToTopic(f.Stream(), "out", "out", serde.Bytes(), serde.Bytes())
	plan, err := b.Plan()
	require.NoError(t, err)
	return newGraph(t, plan, 1, 128, map[string]int{"over": 1}, nil)
}

// encoded gives the records that are in flight.
func (g *graph) encoded() [][]byte {
	flights, _ := g.snapshot()
	var out [][]byte
	for _, f := range flights {
		out = append(out, f.data)
	}
	return out
}

// over gives the task behind the exchange.
func (g *graph) over() *topology.Task { return g.tasks[element.TaskID{Source: "over"}].task }

func drawBytes(t *rapid.T, label string) []byte {
	return rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 300)).Draw(t, label)
}

func drawRecord(t *rapid.T) element.Record {
	r := element.Record{Key: drawBytes(t, "key"), Value: drawBytes(t, "value"), Timestamp: rapid.Int64().Draw(t, "timestamp"), Offset: rapid.Int64().Draw(t, "offset")}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, element.Header{Key: rapid.String().Draw(t, "header"), Value: drawBytes(t, "header value")})
	}
	return r
}

// What comes out of a snapshot of records in flight is what went in, to the last null.
func TestRecordsInFlightRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Also with values that carry no bytes in the exchange's codec, which are encoded for the snapshot.
		k, v := serde.Bytes(), serde.Bytes()
		if rapid.Bool().Draw(t, "other codecs") {
			k, v = renamedBytes{k}, renamedBytes{v}
		}
		var recs []element.Record
		for range rapid.IntRange(1, 5).Draw(t, "records") {
			recs = append(recs, drawRecord(t))
		}
		sent, restored := straight(t, k, v), straight(t, k, v)
		require.NoError(t, sent.process("in", 0, recs...))
		data := sent.encoded()
		require.Len(t, data, len(recs))
		require.NoError(t, sent.settle(first))

		p, err := restored.over().Restore(data)
		require.NoError(t, err)
		require.Equal(t, len(recs), p.Len())
		require.Positive(t, p.Size())
		var again [][]byte
		require.NoError(t, p.Encode(func(group int, d []byte) error {
			want := -1
			if key := recs[len(again)].Key; key != nil {
				want = element.KeyGroup(key, 128)
			}
			require.Equal(t, want, group)
			again = append(again, bytes.Clone(d))
			return nil
		}))
		require.Equal(t, data, again)
		require.NoError(t, restored.over().Receive(p))
		require.Equal(t, sent.out, restored.out)
		for i := range recs {
			if len(recs[i].Headers) == 0 {
				recs[i].Headers = nil
			}
		}
		require.Equal(t, recs, restored.out["out"])
	})
}

type renamedBytes struct{ serde.Serde[[]byte] }

func (renamedBytes) Name() string { return "renamed" }

var update = flag.Bool("update", false, "write the golden files of the current format version anew")

// goldenRecords are in testdata/inflight-v1.golden, one per line in hexadecimal.
func goldenRecords() []element.Record {
	return []element.Record{
		{Key: []byte("key"), Value: []byte("value"), Timestamp: 1700000000000, Offset: 42},
		{Key: nil, Value: []byte{}, Timestamp: 0, Offset: 0},
		{Key: []byte{}, Value: nil, Timestamp: -1, Offset: 1 << 40},
		{Key: []byte{0, 0xff}, Value: bytes.Repeat([]byte("v"), 200), Timestamp: 1, Offset: 7, Headers: []element.Header{
			{Key: "trace", Value: []byte("abc")}, {Key: "trace"}, {Key: "", Value: []byte{}},
		}},
	}
}

func TestGoldenInFlightFormat(t *testing.T) {
	g := straight(t, serde.Bytes(), serde.Bytes())
	require.NoError(t, g.process("in", 0, goldenRecords()...))
	var lines []string
	for _, d := range g.encoded() {
		lines = append(lines, hex.EncodeToString(d))
	}
	file := filepath.Join("testdata", "inflight-v1.golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	}
	golden, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(golden), strings.Join(lines, "\n")+"\n")

	var data [][]byte
	for line := range strings.Lines(string(golden)) {
		d, err := hex.DecodeString(strings.TrimSpace(line))
		require.NoError(t, err)
		data = append(data, d)
	}
	read := straight(t, serde.Bytes(), serde.Bytes())
	p, err := read.over().Restore(data)
	require.NoError(t, err)
	require.NoError(t, read.over().Receive(p))
	require.Equal(t, goldenRecords(), read.out["out"])
}

func TestRestoreRefusesWhatItCannotRead(t *testing.T) {
	g := straight(t, serde.Bytes(), serde.Bytes())
	require.NoError(t, g.process("in", 0, goldenRecords()...))
	good := g.encoded()

	newer := bytes.Clone(good[0])
	newer[0] = 2
	_, err := g.over().Restore([][]byte{good[0], newer})
	require.ErrorIs(t, err, topology.ErrInFlightVersion)
	require.EqualError(t, err, "task over-0: restore record 2 of 2 in flight over exchange over: unknown version of the in-flight format: 2")

	other := straight(t, serde.Bytes(), renamedBytes{serde.Bytes()})
	_, err = other.over().Restore(good)
	require.ErrorIs(t, err, topology.ErrInFlightCodecs)
	require.ErrorContains(t, err, "now it is key bytes, value renamed")

	for _, d := range good {
		for n := range len(d) {
			_, err := g.over().Restore([][]byte{d[:n]})
			require.Error(t, err, "cut to %d bytes", n)
		}
		_, err := g.over().Restore([][]byte{append(bytes.Clone(d), 0)})
		require.ErrorIs(t, err, topology.ErrInFlightDamaged, "a byte too many")
	}

	_, err = g.tasks[element.TaskID{Source: "in"}].task.Restore(good)
	require.EqualError(t, err, "task in-0 has no exchange to receive from")
}

// A value that cannot be encoded says which record it is; so does one that cannot be decoded, by its number.
func TestRecordsInFlightNameTheRecordThatFails(t *testing.T) {
	g := straight(t, serde.Bytes(), unwilling{serde.Bytes()})
	require.NoError(t, g.process("in", 0, kv(4, "k", "fine"), kv(5, "k", "panic")))
	p := g.busy()[0].parcels[0]
	n := 0
	err := p.Encode(func(int, []byte) error { n++; return nil })
	require.Equal(t, 1, n)
	var rerr *topology.RecordError
	require.ErrorAs(t, err, &rerr)
	require.Equal(t, "topic in partition 0 offset 5: step over: panic: no such value", rerr.Error())

	full := errors.New("disk full")
	require.Equal(t, full, p.Encode(func(int, []byte) error { return full }))

	sent := straight(t, serde.Bytes(), serde.Serde[[]byte](named{serde.Bytes(), "failing"}))
	require.NoError(t, sent.process("in", 0, kv(4, "k", "panic")))
	_, err = g.over().Restore(sent.encoded())
	require.ErrorContains(t, err, "record 1 of 1 in flight over exchange over: panic: no such value")
}

type named struct {
	serde.Serde[[]byte]
	name string
}

func (n named) Name() string { return n.name }

// unwilling panics for the value "panic".
type unwilling struct{ serde.Serde[[]byte] }

func (unwilling) Name() string { return "failing" }

func (f unwilling) Append(dst, v []byte) ([]byte, error) {
	if string(v) == "panic" {
		panic("no such value")
	}
	return f.Serde.Append(dst, v)
}

func (f unwilling) Decode(b []byte) ([]byte, error) {
	if string(b) == "panic" {
		panic("no such value")
	}
	return f.Serde.Decode(b)
}

// FuzzRestoreInFlight: no input makes the decoder panic or allocate much more than its own length, and what it accepts is
// what Encode would have written.
func FuzzRestoreInFlight(f *testing.F) {
	g := straight(f, serde.Bytes(), serde.Bytes())
	require.NoError(f, g.process("in", 0, goldenRecords()...))
	good := g.encoded()
	for _, d := range good {
		f.Add(d)
	}
	f.Add(append(bytes.Clone(good[0][:6]), binary.AppendUvarint(nil, 1<<62)...))
	f.Add(append(append(bytes.Clone(good[2][:6]), 0), binary.AppendUvarint(nil, 1<<40)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := g.over().Restore([][]byte{data})
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64*len(data)+1<<20))
		if err != nil {
			return
		}
		require.Equal(t, 1, p.Len())
		require.Less(t, p.Size(), 64*len(data)+1024)
		require.NoError(t, p.Encode(func(_ int, again []byte) error {
			if !bytes.Equal(data, again) {
				return fmt.Errorf("%x was read, %x is written", data, again)
			}
			return nil
		}))
	})
}
