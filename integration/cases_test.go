//go:build unix

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/serde/avro"
)

// A filter that drops everything, and a branch without a sink: the offsets are committed all the same, within two
// intervals, and a restart reads nothing again.
func dropEverything(s *site) {
	s.every = 500 * time.Millisecond
	var recs []*kgo.Record
	for i := range 1000 {
		recs = append(recs, &kgo.Record{Key: fmt.Appendf(nil, "key-%d", i%10), Value: []byte("x")})
	}
	job := s.job("drop-all")
	job.await("msg=processing")
	s.put(recs...)
	written := time.Now()
	s.caughtUp(job)
	took := time.Since(written)
	require.LessOrEqual(s.t, took, 2*s.every)
	job.kill()
	require.Empty(s.t, s.read(s.out))
	// It was killed when it had read everything and was started again: nothing is read, nothing is owed.
	for range 2 {
		job = s.job("drop-all")
		job.await("msg=processing")
		time.Sleep(3 * s.every)
		require.Zero(s.t, s.lag())
		job.stop()
		require.Equal(s.t, "read 0\n", job.stdout.String())
	}
	require.Empty(s.t, s.read(s.out))
	s.storeIsWhole()
	s.t.Logf("committed to the end %v after the write", took.Round(time.Millisecond))
}

func TestC01_DroppedRecordsAreCommitted(t *testing.T)     { dropEverything(embeddedSite(t, 2)) }
func TestC01_RealDroppedRecordsAreCommitted(t *testing.T) { dropEverything(realSite(t, 2)) }

// counts is COUNT: the running count per key.
const counts = settings + `sources:
  in: {topic: {{.In}}, key: string, value: string}
steps:
  counted: {from: in, aggregate: {n: count()}}
sinks:
  out: {from: counted, topic: {{.Out}}, key: string, value: json}
`

// countsAreExact wants the outputs of each key to be 1, 2, … up to the number of its inputs, each once and in order.
func (s *site) countsAreExact(inputs map[string]int) {
	s.t.Helper()
	got := map[string]int{}
	for _, r := range s.read(s.out) {
		key := string(r.Key)
		got[key]++
		require.Equal(s.t, `{"n":`+strconv.Itoa(got[key])+`}`, string(r.Value), "key %s, output %d", key, got[key])
	}
	require.Equal(s.t, inputs, got)
}

// inputs counts the records that are in the input, by key.
func (s *site) inputs() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	for _, r := range s.read(s.in) {
		out[string(r.Key)]++
	}
	return out
}

// A compacted log with gaps, transactions of one record each, and control markers at its end.
func gapsAndMarkers(s *site, compact func()) {
	set := kmsg.StringPtr
	s.in += "-compacted"
	s.topic(s.in, map[string]*string{
		"cleanup.policy": set("compact"), "segment.ms": set("300"), "min.cleanable.dirty.ratio": set("0.0001"), "min.compaction.lag.ms": set("0"),
	})
	tx, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.TransactionalID(s.app+".writer"))
	require.NoError(s.t, err)
	defer tx.Close()
	one := func(key, value string) *kgo.Record { return &kgo.Record{Key: []byte(key), Value: []byte(value)} }
	inTransaction := func(key string, end kgo.TransactionEndTry) {
		require.NoError(s.t, tx.BeginTransaction())
		r := one(key, "tx")
		r.Topic = s.in
		require.NoError(s.t, tx.ProduceSync(s.ctx, r).FirstErr())
		require.NoError(s.t, tx.EndTransaction(s.ctx, end))
	}
	s.put(one("first", "stays")) // at offset 0, and so the start of the log stays where it is
	for i := range 1000 {
		s.put(one("a", strconv.Itoa(i)))
		s.put(one("b", strconv.Itoa(i)))
	}
	for i := range 5 {
		inTransaction(fmt.Sprintf("tx-%d", i), kgo.TryCommit)
		s.put(one(fmt.Sprintf("plain-%d", i), "x"))
	}
	inTransaction("never", kgo.TryAbort)
	inTransaction("last", kgo.TryCommit) // two markers end the log
	require.Eventually(s.t, func() bool {
		compact()
		return len(s.read(s.in)) < 200
	}, 50*time.Second, 200*time.Millisecond, "the log is not compacted")
	survivors := s.inputs()
	for still := 0; still < 5; still++ { // the cleaner may not be done
		time.Sleep(200 * time.Millisecond)
		if now := s.inputs(); !equal(now, survivors) {
			survivors, still = now, 0
		}
	}
	require.NotContains(s.t, survivors, "never")

	file := s.file(counts)
	for round := range 4 {
		// Killed somewhere in between, then at rest: both times the next start must find its place.
		job := s.run(file)
		if round%2 == 0 {
			job.await("msg=processing")
			time.Sleep(time.Duration(round) * 40 * time.Millisecond)
			job.kill()
			continue
		}
		s.caughtUp(job)
		_, ends := s.ends(s.in)
		require.Equal(s.t, ends[0], s.committed()[0].At, "the committed offset passes gaps and markers")
		job.kill()
	}
	s.countsAreExact(survivors)
	// More of the same keys behind the gaps.
	for _, key := range []string{"a", "b", "first"} {
		s.put(one(key, "more"))
		survivors[key]++
	}
	job := s.run(file)
	s.caughtUp(job)
	job.stop()
	s.countsAreExact(survivors)
	s.nothingOpen(nil, time.Now())
	s.storeIsWhole()
	_, ends := s.ends(s.in)
	s.t.Logf("%d keys in %d offsets", len(survivors), ends[0])
}

func TestC13_GapsAndMarkers(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 1)
	gapsAndMarkers(s, s.fake.Compact)
}

func TestC13_RealGapsAndMarkers(t *testing.T) {
	s := realSite(t, 1)
	gapsAndMarkers(s, func() { // each append may roll the segment, and only rolled ones are cleaned
		s.put(&kgo.Record{Key: []byte("roll"), Value: []byte("r")})
	})
}

const point = `{"type":"record","name":"Point","fields":[{"name":"v","type":"long"}]}`

// schema writes a schema file and gives its path.
func (s *site) schema(text string) string {
	path := filepath.Join(s.t.TempDir(), "value.avsc")
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func encoded(t *testing.T, schema string, v any) []byte {
	codec, err := avro.New(schema)
	require.NoError(t, err)
	b, err := codec.Append(nil, v)
	require.NoError(t, err)
	return b
}

// byOffset wants the records of one partition to have these keys and values; nil is null.
func (s *site) wantRecords(topic string, want [][2][]byte) {
	s.t.Helper()
	got := s.read(topic)
	require.Len(s.t, got, len(want))
	for i, r := range got {
		require.Equal(s.t, want[i], [2][]byte{r.Key, r.Value}, "record %d", i)
	}
}

// Null and empty stay what they are, through Avro, through bytes and past a count.
func nullAndEmpty(s *site) {
	v1 := encoded(s.t, point, map[string]any{"v": int64(1)})
	k, empty := []byte("k"), []byte{}
	pass := settings + `sources:
  in: {topic: {{.In}}, key: string, value: FORMAT}
sinks:
  out: {from: in, topic: {{.Out}}, key: string, value: FORMAT}
`
	schema := "avro, value-schema: " + s.schema(point)
	run := func(file string, recs ...*kgo.Record) {
		s.put(recs...)
		job := s.run(file)
		s.caughtUp(job)
		job.stop()
	}
	run(s.file(pass, "FORMAT", schema),
		&kgo.Record{Key: k, Value: v1}, &kgo.Record{Key: k}, &kgo.Record{}, &kgo.Record{Value: v1}, &kgo.Record{Key: empty, Value: v1})
	want := [][2][]byte{{k, v1}, {k, nil}, {nil, nil}, {nil, v1}, {empty, v1}}
	s.wantRecords(s.out, want)

	// A zero-length value is no Avro of this schema: it goes to the policy, not to null. Other formats carry it.
	for _, format := range []string{"string", "bytes"} {
		run(s.file(pass, "FORMAT", format), &kgo.Record{Key: k, Value: empty}, &kgo.Record{Key: k})
		want = append(want, [2][]byte{k, empty}, [2][]byte{k, nil})
	}
	s.wantRecords(s.out, want)
	s.put(&kgo.Record{Key: k, Value: empty})
	job := s.run(s.file(pass, "FORMAT", schema))
	require.Equal(s.t, 30, job.exit(20*time.Second))
	require.Contains(s.t, job.stderr.tail(1), fmt.Sprintf("topic %s partition 0 offset %d: step in: decode value as avro", s.in, len(want)))
	s.wantRecords(s.out, want)
}

func TestC20_NullAndEmptyStay(t *testing.T)     { nullAndEmpty(embeddedSite(t, 1)) }
func TestC20_RealNullAndEmptyStay(t *testing.T) { nullAndEmpty(realSite(t, 1)) }

// A null key has no place in a keyed step: the policy decides, and nothing panics.
func nullKeyInACount(s *site) {
	k := []byte("k")
	s.put(&kgo.Record{Key: k, Value: []byte("x")}, &kgo.Record{Key: k}, &kgo.Record{Key: k, Value: []byte{}}, &kgo.Record{}, &kgo.Record{Value: []byte("x")}, &kgo.Record{Key: k, Value: []byte("x")})
	job := s.run(s.file(counts))
	require.Equal(s.t, 30, job.exit(20*time.Second), job.stderr.tail(5))
	require.Equal(s.t, fmt.Sprintf("processor: topic %s partition 0 offset 3: step counted: null key", s.in), job.stderr.tail(1))
	require.NotContains(s.t, job.stderr.String(), "panic")
	require.NotContains(s.t, job.stderr.String(), "goroutine ")

	job = s.run(s.file(counts, "value: string}", "value: string, on-error: skip}"))
	s.caughtUp(job)
	job.stop()
	// A tombstone is no record that counts; an empty value is one.
	s.wantRecords(s.out, [][2][]byte{{k, []byte(`{"n":1}`)}, {k, []byte(`{"n":2}`)}, {k, []byte(`{"n":3}`)}})
	require.Contains(s.t, job.stderr.String(), "null key")
	require.Contains(s.t, job.stderr.String(), "skipped=")
}

func TestC20_NullKeyInACount(t *testing.T)     { nullKeyInACount(embeddedSite(t, 1)) }
func TestC20_RealNullKeyInACount(t *testing.T) { nullKeyInACount(realSite(t, 1)) }

// Headers keep order, repeats, and null apart from empty.
func headersStay(s *site) {
	in := []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte("2")}, {Key: "a", Value: []byte{}}}
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	value := encoded(s.t, point, map[string]any{"v": int64(7)})
	var want [][]kgo.RecordHeader
	seen := func() {
		s.t.Helper()
		got := s.read(s.out)
		require.Len(s.t, got, len(want))
		for i, r := range got {
			require.Equal(s.t, want[i], r.Headers, "record %d", i)
		}
	}
	run := func(start func() *process, headers ...kgo.RecordHeader) {
		s.put(&kgo.Record{Key: []byte("k"), Value: value, Headers: headers, Timestamp: time.UnixMilli(1_700_000_000_123)})
		job := start()
		s.caughtUp(job)
		job.stop()
	}
	pass := settings + `sources:
  in: {topic: {{.In}}, key: bytes, value: bytes}
sinks:
  out: {from: in, topic: {{.Out}}, key: bytes, value: bytes}
`
	run(func() *process { return s.run(s.file(pass)) }, in...)
	want = append(want, in)
	seen()

	recode := settings + `sources:
  in: {topic: {{.In}}, key: string, value: avro, value-schema: IN}
steps:
  more: {from: in, map: {v: value.v, w: '"x"'}}
sinks:
  out: {from: more, topic: {{.Out}}, key: string, value: avro, value-schema: OUT}
`
	wide := `{"type":"record","name":"Wide","fields":[{"name":"w","type":"string"},{"name":"v","type":"long"}]}`
	run(func() *process { return s.run(s.file(recode, "IN", s.schema(point), "OUT", s.schema(wide))) }, in...)
	want = append(want, in)
	seen()
	last := s.read(s.out)[1]
	require.Equal(s.t, encoded(s.t, wide, map[string]any{"v": int64(7), "w": "x"}), last.Value)
	require.EqualValues(s.t, 1_700_000_000_123, last.Timestamp.UnixMilli())

	// One rule for setting: all of that key go, the new one comes last.
	set := func() *process { return s.job("set-header") }
	run(set, in...)
	want = append(want, append(append([]kgo.RecordHeader{}, in...), header("c", "3")))
	run(set, append(append([]kgo.RecordHeader{}, in...), header("replace", ""))...)
	want = append(want, []kgo.RecordHeader{{Key: "b"}, header("replace", ""), header("c", "3"), header("a", "new")})
	seen()
}

func TestC21_HeadersStay(t *testing.T)     { headersStay(embeddedSite(t, 1)) }
func TestC21_RealHeadersStay(t *testing.T) { headersStay(realSite(t, 1)) }
