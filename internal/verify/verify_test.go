package verify

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

func TestRightOutputsAreVerified(t *testing.T) {
	for _, format := range []Format{JSON, Binary} {
		for _, budget := range []int{0, 7} {
			w := rightWorld(500, 40)
			w.cfg.Format, w.cfg.KeyBudget = format, budget
			w.write(t)
			r := w.verify(t)
			require.Equal(t, Verified, r.Verdict, r.String())
			require.EqualValues(t, 500, r.RecordsIn)
			require.EqualValues(t, 500, r.RecordsOut)
			keys := map[string]bool{}
			for _, in := range w.in {
				keys[in.key] = true
			}
			require.EqualValues(t, len(keys), r.Keys)
			require.Equal(t, budget != 0, r.Passes > 1, "passes %d", r.Passes)
		}
	}
}

func TestEmptyTopicsAreVerified(t *testing.T) {
	w := &world{}
	w.write(t)
	require.Equal(t, Verified, w.verify(t).Verdict)
}

// Each case breaks one thing and names all figures that it must change.
func TestEachViolationIsFound(t *testing.T) {
	type figures struct{ dup, missing, wrong, disorder, unexpected, malformed, split int64 }
	cases := map[string]struct {
		spoil func(w *world)
		want  figures
		kind  Kind
		key   string
	}{
		"duplicated output": {func(w *world) { w.out = append(w.out, w.out[w.output("k1", 3)]) }, figures{dup: 1}, Duplicate, "k1"},
		"duplicated at once": {func(w *world) {
			i := w.output("k1", 3)
			w.out = slices.Insert(w.out, i, w.out[i])
		}, figures{dup: 1}, Duplicate, "k1"},
		"lost output": {func(w *world) { i := w.output("k4", 2); w.out = slices.Delete(w.out, i, i+1) }, figures{missing: 1}, Missing, "k4"},
		"lost last output": {func(w *world) {
			i := w.output("k4", 15)
			w.out = slices.Delete(w.out, i, i+1)
		}, figures{missing: 1}, Missing, "k4"},
		"all outputs of a key lost": {func(w *world) {
			w.out = slices.DeleteFunc(w.out, func(r rec) bool { return r.key == "k5" })
		}, figures{missing: 15}, Missing, "k5"},
		"swapped pair": {func(w *world) {
			i, j := w.output("k1", 3), w.output("k1", 4)
			w.out[i], w.out[j] = w.out[j], w.out[i]
		}, figures{disorder: 1}, Disordered, "k1"},
		"wrong sum": {func(w *world) { w.out[w.output("k1", 3)].b++ }, figures{wrong: 1}, Wrong, "k1"},
		"two sums exchanged": {func(w *world) {
			i, j := w.output("k1", 3), w.output("k1", 4)
			w.out[i].b, w.out[j].b = w.out[j].b, w.out[i].b
		}, figures{wrong: 2}, Wrong, "k1"},
		"count starts again": {func(w *world) {
			for i := range w.out {
				if r := &w.out[i]; r.key == "k1" && r.a > 10 {
					r.a -= 10
				}
			}
		}, figures{dup: 5, missing: 5}, Duplicate, "k1"},
		"unknown key":    {func(w *world) { w.out = append(w.out, rec{part: 1, key: "nobody", a: 1, b: 5}) }, figures{unexpected: 1}, Unexpected, "nobody"},
		"count too high": {func(w *world) { w.out = append(w.out, rec{part: 1, key: "k1", a: 16, b: 5}) }, figures{unexpected: 1}, Unexpected, "k1"},
		"count zero":     {func(w *world) { w.out = append(w.out, rec{part: 1, key: "k1", a: 0, b: 0}) }, figures{unexpected: 1}, Unexpected, "k1"},
		"no JSON":        {func(w *world) { w.out = append(w.out, rec{part: 1, key: "k1", raw: []byte("oops")}) }, figures{malformed: 1}, Malformed, "k1"},
		"no count":       {func(w *world) { w.out = append(w.out, rec{part: 1, key: "k1", raw: []byte(`{"spent":1}`)}) }, figures{malformed: 1}, Malformed, "k1"},
		"tombstone":      {func(w *world) { w.out = append(w.out, rec{part: 1, key: "k1", raw: []byte{}}) }, figures{malformed: 1}, Malformed, "k1"},
		"null key":       {func(w *world) { w.out = append(w.out, rec{part: 1, a: 1, b: 1}) }, figures{malformed: 1}, Malformed, "null"},
		"fraction": {func(w *world) {
			w.out = append(w.out, rec{part: 1, key: "k1", raw: []byte(`{"orders":1.5,"spent":1}`)})
		}, figures{malformed: 1}, Malformed, "k1"},
		"no number": {func(w *world) {
			w.out = append(w.out, rec{part: 1, key: "k1", raw: []byte(`{"orders":1,"spent":"1"}`)})
		}, figures{malformed: 1}, Malformed, "k1"},
		"fraction of whole amounts": {func(w *world) {
			i := w.output("k1", 3)
			w.out[i] = rec{part: 1, key: "k1", raw: fmt.Appendf(nil, `{"orders":3,"spent":%d.5}`, w.out[i].b)}
		}, figures{wrong: 1}, Wrong, "k1"},
		"other partition": {func(w *world) { w.out[w.output("k1", 15)].part = 2 }, figures{split: 1}, Split, "k1"},
	}
	for name, c := range cases {
		for _, budget := range []int{0, 4} {
			t.Run(name+"/budget "+strconv.Itoa(budget), func(t *testing.T) {
				w := evenWorld(20, 15)
				w.cfg.KeyBudget = budget
				c.spoil(w)
				w.write(t)
				r := w.verify(t)
				require.Equal(t, Violated, r.Verdict, r.String())
				require.Equal(t, c.want, figures{r.Duplicates, r.Missing, r.Wrong, r.OutOfOrder, r.Unexpected, r.Malformed, r.SplitKeys}, r.String())
				require.Equal(t, r.OffendingKeys, r.DetailedKeys)
				i := slices.IndexFunc(r.Examples, func(e Example) bool { return e.Kind == c.kind })
				require.GreaterOrEqual(t, i, 0, r.String())
				require.Equal(t, c.key, r.Examples[i].Key)
			})
		}
	}
}

// evenWorld has each key's inputs spread evenly.
func evenWorld(keys, each int) *world {
	w := &world{}
	sum := map[string]int64{}
	for i := range keys * each {
		id := i % keys
		r := rec{part: int32(id % partitions), key: "k" + strconv.Itoa(id), a: int64(i%89) - 11}
		w.in = append(w.in, r)
		sum[r.key] += r.a
		w.out = append(w.out, rec{part: r.part, key: r.key, a: int64(i/keys) + 1, b: sum[r.key]})
	}
	return w
}

func TestAnExampleSaysWhatAndWhere(t *testing.T) {
	w := evenWorld(3, 4)
	w.cfg.Format = Binary
	i := w.output("k1", 3)
	want := w.out[i].b
	w.out[i].b += 7
	w.write(t)
	r := w.verify(t)
	require.Len(t, r.Examples, 1)
	e := r.Examples[0]
	require.Equal(t, Example{Kind: Wrong, Topic: w.outName, Partition: 1, Offset: 2, Key: "k1",
		Expected: "count=3 sum=" + strconv.FormatInt(want, 10), Got: "count=3 sum=" + strconv.FormatInt(want+7, 10)}, e)
	require.Contains(t, r.String(), `wrong: `+w.outName+`/1@2 key "k1"`)
	raw, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"verdict":"exactly-once: VIOLATED"`)
	require.Contains(t, string(raw), `"kind":"wrong"`)
}

func TestAbortedRecordsAreIgnored(t *testing.T) {
	w := evenWorld(6, 5)
	w.write(t)
	cl := producer(t, w.outName)
	stray := w.records(w.outName, []rec{{part: 0, key: "k0", a: 1, b: 1}, {part: 1, key: "zz", a: 9, b: 9}, {part: 2, key: "k2", a: 6, b: 0}}, true)
	txn(t, cl, kgo.TryAbort, stray...) // the topic ends with aborted records and abort markers
	require.Equal(t, Verified, w.verify(t).Verdict)

	aborted := producer(t, w.inName)
	txn(t, aborted, kgo.TryAbort, w.records(w.inName, w.in[:4], false)...)
	require.Equal(t, Verified, w.verify(t).Verdict)
}

// An answer that is full must not hide that transactions in it were aborted.
func TestAbortedRecordsInAFullAnswerAreIgnored(t *testing.T) {
	w := evenWorld(6, 5)
	w.write(t)
	cl, plain := producer(t, w.outName), producer(t, "")
	stray := w.records(w.outName, []rec{{part: 1, key: "k1", a: 3, b: 3}}, true)
	var more []rec
	count, sum := int64(5), int64(0)
	for _, r := range w.in {
		if r.key == "k1" {
			sum += r.a
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2)) // what compresses well would not fill an answer
	for i := range 2 * fetchBytes / (64 << 10) {
		var pad strings.Builder
		for range 4 << 10 {
			fmt.Fprintf(&pad, "%016x", rnd.Uint64())
		}
		count++
		sum += int64(i)
		more = append(more, rec{part: 1, key: "k1", raw: fmt.Appendf(nil, `{"orders":%d,"spent":%d,"pad":%q}`, count, sum, pad.String())})
		in := w.records(w.inName, []rec{{part: 1, key: "k1", a: int64(i)}}, false)
		require.NoError(t, plain.ProduceSync(within(t), in...).FirstErr())
	}
	txn(t, cl, kgo.TryAbort, stray...)
	txn(t, cl, kgo.TryCommit, w.records(w.outName, more, true)...)
	r := w.verify(t)
	require.Equal(t, Verified, r.Verdict, r.String())
}

// The last stable offset may stand behind aborted data whose marker is above it, and an open transaction may follow.
func TestTheEndIsReachedBehindAbortedDataAndOpenTransactions(t *testing.T) {
	w := evenWorld(6, 5)
	w.write(t)
	a, b := producer(t, w.outName+"a"), producer(t, w.outName+"b")
	stray := func() *kgo.Record { return w.records(w.outName, []rec{{part: 1, key: "k1", a: 3, b: 3}}, true)[0] }
	require.NoError(t, a.BeginTransaction())
	require.NoError(t, a.ProduceSync(within(t), stray(), stray()).FirstErr())
	require.NoError(t, b.BeginTransaction())
	require.NoError(t, b.ProduceSync(within(t), stray()).FirstErr())
	require.NoError(t, a.EndTransaction(within(t), kgo.TryAbort))
	start := time.Now()
	r := w.verify(t)
	require.Equal(t, Verified, r.Verdict, r.String())
	require.EqualValues(t, 2, r.OpenOffsets, "b's record and a's marker")
	require.Contains(t, r.String(), "not judged")
	require.Less(t, time.Since(start), 10*time.Second)
	require.NoError(t, b.EndTransaction(within(t), kgo.TryCommit))
	require.EqualValues(t, 1, w.verify(t).Duplicates)
}

func TestPartialAcceptsAPrefixOnly(t *testing.T) {
	w := evenWorld(5, 10)
	w.out = w.out[:33]
	w.write(t)
	r := w.verify(t)
	require.Equal(t, Violated, r.Verdict)
	require.EqualValues(t, 17, r.Missing)
	require.EqualValues(t, 5, r.OffendingKeys)
	w.cfg.Partial = true
	r = w.verify(t)
	require.Equal(t, Verified, r.Verdict, r.String())
	require.EqualValues(t, 17, r.Lag)
	require.Zero(t, r.Missing)

	none := evenWorld(5, 10)
	none.out = nil
	none.cfg.Partial = true
	none.write(t)
	r = none.verify(t)
	require.Equal(t, NoVerdict, r.Verdict, "nothing of it was there to check")
	require.EqualValues(t, 50, r.Lag)
	require.Contains(t, r.Failure(), "there is no output yet")

	hole := evenWorld(5, 10)
	hole.out = hole.out[:33]
	i := hole.output("k2", 3)
	hole.out = slices.Delete(hole.out, i, i+1)
	hole.cfg.Partial = true
	hole.write(t)
	r = hole.verify(t)
	require.Equal(t, Violated, r.Verdict)
	require.EqualValues(t, 1, r.Missing)
	require.EqualValues(t, 17, r.Lag)
}

func TestFilterAndKeyField(t *testing.T) {
	w := evenWorld(4, 5)
	w.cfg.WhereField, w.cfg.WhereValue, w.cfg.KeyField = "status", "paid", "customer"
	for i := range w.in {
		w.in[i].raw = w.value(w.in[i], false)
		w.in[i].key = "order" + strconv.Itoa(i)
	}
	w.in = append(w.in, rec{key: "x", raw: []byte(`{"customer":"k0","amount":5,"status":"open"}`)},
		rec{key: "x", raw: []byte(`{"customer":"k0","amount":5}`)},
		rec{key: "x", raw: []byte(`{"amount":5,"status":"paid"}`)},
		rec{key: "x", raw: []byte(`no json`)})
	w.write(t)
	r := w.verify(t)
	require.Equal(t, Verified, r.Verdict, r.String())
	require.EqualValues(t, 20, r.RecordsIn)
	require.EqualValues(t, 2, r.Filtered)
	require.EqualValues(t, 2, r.Skipped)
	w.cfg.WhereValue = "open"
	r = w.verify(t)
	require.EqualValues(t, 1, r.Wrong+r.Missing, r.String())
	require.Equal(t, Violated, r.Verdict)
}

func TestGroupLag(t *testing.T) {
	w := evenWorld(3, 4)
	w.write(t)
	w.cfg.Group = w.inName + "-group"
	require.EqualValues(t, 12, w.verify(t).GroupLag)
	adm := kadm.NewClient(producer(t, ""))
	var offsets kadm.Offsets
	offsets.AddOffset(w.inName, 0, 4, -1)
	offsets.AddOffset(w.inName, 1, 1, -1)
	_, err := adm.CommitOffsets(within(t), w.cfg.Group, offsets)
	require.NoError(t, err)
	require.EqualValues(t, 7, w.verify(t).GroupLag)
}

func TestTooManyOffendersAreCountedAndSaid(t *testing.T) {
	w := evenWorld(30, 10)
	for i := range w.out {
		w.out[i].b++
	}
	w.cfg.DetailRecords = 5 * (10 + keyCost)
	w.write(t)
	r := w.verify(t)
	require.EqualValues(t, 30, r.OffendingKeys)
	require.EqualValues(t, 5, r.DetailedKeys)
	require.EqualValues(t, 50, r.Wrong)
	require.Len(t, r.Examples, 5)
	require.Contains(t, r.String(), "the figures cover 5 of them")
}

func TestErrorsHaveTheirExitCodes(t *testing.T) {
	w := evenWorld(2, 2)
	w.write(t)
	for _, c := range []struct {
		change func(*Config)
		code   fault.Code
	}{
		{func(c *Config) { c.Input = "no-such-topic" }, fault.UnknownTopic},
		{func(c *Config) { c.Input = "" }, fault.Usage},
		{func(c *Config) { c.Format = "xml" }, fault.Usage},
		{func(c *Config) { c.AmountField = `a"b` }, fault.Usage},
		{func(c *Config) { c.CountField = "spent" }, fault.Usage},
		{func(c *Config) { c.Format, c.WhereField = Binary, "status" }, fault.Usage},
		{func(c *Config) {
			c.Kafka = kafka.Config{Brokers: []string{"127.0.0.1:1"}, Reach: 500 * time.Millisecond}
		}, fault.Unreachable},
	} {
		cfg := w.cfg
		c.change(&cfg)
		_, err := Verify(within(t), cfg)
		require.Error(t, err)
		require.Equal(t, c.code, fault.CodeOf(err), err)
	}
	adm := kadm.NewClient(producer(t, ""))
	var to kadm.Offsets
	to.AddOffset(w.inName, 0, 1, -1)
	_, err := adm.DeleteRecords(within(t), to)
	require.NoError(t, err)
	_, err = Verify(within(t), w.cfg)
	require.Equal(t, fault.OffsetGone, fault.CodeOf(err), err)
}

// A random single change of right outputs is always found, whatever the budget; replay with
// VERIFY_SEED=<seed> go test -run TestARandomChangeIsFound ./internal/verify
func TestARandomChangeIsFound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("VERIFY_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 25 {
		w := evenWorld(2+rnd.IntN(30), 1+rnd.IntN(12))
		w.cfg.KeyBudget = 3 + rnd.IntN(40)
		w.cfg.Partial = rnd.IntN(2) == 0
		i := rnd.IntN(len(w.out))
		switch rnd.IntN(4) {
		case 0:
			w.out[i].b ^= 1 << rnd.IntN(40)
		case 1:
			w.out[i].a ^= 1 << rnd.IntN(6)
		case 2:
			w.out = slices.Insert(w.out, rnd.IntN(len(w.out)), w.out[i])
		case 3:
			w.cfg.Partial = false
			w.out = slices.Delete(w.out, i, i+1)
		}
		w.write(t)
		r := w.verify(t)
		require.Equal(t, Violated, r.Verdict, r.String())
		require.NotEmpty(t, r.Examples)
	}
}
