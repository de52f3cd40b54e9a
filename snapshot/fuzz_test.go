package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// bounded runs fn and fails when it allocates more than the input may cause.
func bounded(t *testing.T, input int, fn func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20+64*uint64(input) {
		t.Fatalf("%d bytes allocated for an input of %d", got, input)
	}
}

// FuzzHandle: anyone who may commit offsets can write a handle. The input is tried as it is and as the body of a
// handle with a valid checksum.
func FuzzHandle(f *testing.F) {
	for name, b := range goldenFiles(f) {
		if bytes.HasPrefix([]byte(name), []byte("handle")) {
			f.Add(b)
			raw, err := handleText.DecodeString(string(b[len(handleHead):]))
			require.NoError(f, err)
			f.Add(raw[:len(raw)-4])
		}
	}
	for i := range 12 {
		s, err := rapid.Custom(drawHandle).Example(i).Encode()
		require.NoError(f, err)
		raw, err := handleText.DecodeString(s[len(handleHead):])
		require.NoError(f, err)
		f.Add(raw[:len(raw)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		forged := handleHead + handleText.EncodeToString(appendCRCForTest(bytes.Clone(b)))
		for _, s := range []string{string(b), forged} {
			var h Handle
			var err error
			bounded(t, len(s), func() { h, err = ParseHandle(s) })
			if err != nil {
				continue
			}
			again, err := h.Encode()
			require.NoError(t, err)
			require.Equal(t, s, again, "one value has one text")
		}
	})
}

// FuzzRoot tries the input as it is and as the body of a root with a valid checksum.
func FuzzRoot(f *testing.F) {
	for name, b := range goldenFiles(f) {
		if parseFilePath(name).kind == rootFile {
			f.Add(b)
			f.Add(b[len(rootMagic)+1 : len(b)-4])
		}
	}
	for i := range 12 {
		b := encodeRoot(rapid.Custom(drawRoot).Example(i))
		f.Add(b[len(rootMagic)+1 : len(b)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		forged := func(version string) []byte { return seal(append([]byte(rootMagic+version), b...)) }
		for _, in := range [][]byte{b, forged("\x01"), forged("\x02"), forged("\x03")} {
			var r *Root
			var err error
			bounded(t, len(in), func() { r, err = decodeRoot(in) })
			switch {
			case err != nil:
			case in[len(rootMagic)] >= plainVersion:
				require.Equal(t, in, encodeRoot(r), "one root has one encoding")
			default: // what an older version said is said in this one
				again, err := decodeRoot(encodeRoot(r))
				require.NoError(t, err)
				require.Equal(t, r, again)
			}
			if ref, err := decodeMarker(in); err == nil {
				require.Equal(t, in, encodeMarker(ref))
			}
			if id, err := decodeStoreID(string(in)); err == nil {
				require.Equal(t, string(in), encodeStoreID(id))
			}
		}
	})
}

// FuzzRun tries the input as it is and with all checksums made valid, as far as its lengths allow.
func FuzzRun(f *testing.F) {
	for name, b := range goldenFiles(f) {
		if k := parseFilePath(name).kind; k == packFile || k == fullFile {
			f.Add(b)
		}
	}
	for _, ch := range []change{{}, {"totals/acc|": val("")}, {"totals/acc|a": nil, "last/seen|a": val("1")}, {"last/seen|aaa": val("1"), "last/seen|aab": val("2"), "last/seen|b": nil}} {
		var buf bytes.Buffer
		d := delta(taskA, counts, 0, 1, ch)
		if _, err := writeDelta(newRunWriter(&buf), nameOf(1, 1), &d); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, in := range [][]byte{b, repairRun(bytes.Clone(b))} {
			ref := RunRef{Length: int64(len(in)), CRC: crc32c(in), Digest: digestOf(in)}
			if h, ok := headerOf(in); ok { // the reference agrees with the file, so that reading goes on
				ref.From, ref.To, ref.Full = h.From, h.To, h.Full
			}
			ref.Entries = footerEntries(in)
			bounded(t, len(in), func() { readRunForFuzz(t, in, ref) })
		}
	})
}

// FuzzInFlight: a run of records in flight as it is, and with its checksums repaired. What is read is what was written.
func FuzzInFlight(f *testing.F) {
	r := openInline(f, vfs.NewMem(), MaxMemoryThreshold)
	for _, recs := range [][]flying{{{0, ""}}, {{-1, "a"}, {127, "b"}}, {{3, "same"}, {3, "same"}, {-1, "x"}}} {
		parts, err := r.Persist(ctx, nameOf(1, 1), []TaskDelta{{Task: subtask(0), InFlight: inFlightOf(recs...)}})
		require.NoError(f, err)
		f.Add([]byte(parts[0].InFlight.Inline))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > MaxMemoryThreshold {
			return
		}
		for _, in := range [][]byte{b, repairRun(bytes.Clone(b))} {
			ref := RunRef{File: "shop/i-0/chk-1-0000000000000001.root", Inline: string(in), Length: int64(len(in)), CRC: crc32c(in), Digest: digestOf(in), From: 1, To: 1,
				Entries: footerEntries(in)}
			e := TaskEntry{Task: subtask(0), Parallelism: 1, MaxParallelism: 128, InFlight: []RunRef{ref}}
			var got []flying
			var err error
			bounded(t, len(in), func() {
				_, err = r.RestoreInFlight(ctx, e, nil, func(group int, data []byte) error {
					if group < -1 || group > 127 {
						t.Fatalf("group %d", group)
					}
					got = append(got, flying{group, string(data)})
					return nil
				})
			})
			if err == nil {
				parts, err := r.Persist(ctx, nameOf(1, 1), []TaskDelta{{Task: subtask(0), InFlight: inFlightOf(got...)}})
				require.NoError(t, err)
				require.Equal(t, got, restoreFlying(t, r, TaskEntry{Task: subtask(0), InFlight: []RunRef{parts[0].InFlight}}, nil))
			}
		}
	})
}

// footerEntries is the number of entries that a run's footer says, 0 when it cannot be read.
func footerEntries(in []byte) int64 {
	if len(in) > runTail {
		if n := int(binary.BigEndian.Uint32(in[len(in)-runTail:])); n >= 0 && n <= len(in) {
			if foot, err := decodeFooter(in[len(in)-n:]); err == nil {
				return foot.entries
			}
		}
	}
	return 0
}

func readRunForFuzz(t *testing.T, in []byte, ref RunRef) {
	r, err := newRunReader(bytes.NewReader(in), ref)
	if err != nil {
		return
	}
	n, state := int64(0), -1
	var last []byte
	err = r.each(func(e *Entry) error {
		if e.State < state || e.State >= len(r.head.States) || (e.State == state && bytes.Compare(e.Key, last) <= 0) {
			t.Fatalf("entry out of order")
		}
		state, last = e.State, append(last[:0], e.Key...)
		n++
		return nil
	})
	if err == nil && n != ref.Entries {
		t.Fatalf("%d entries given out, the footer says %d", n, ref.Entries)
	}
}

func headerOf(b []byte) (runHeader, bool) {
	head := len(runMagic) + 5
	if len(b) < head {
		return runHeader{}, false
	}
	n := binary.BigEndian.Uint32(b[head-4:])
	if int64(n) > int64(len(b)-head) {
		return runHeader{}, false
	}
	h, err := decodeRunHeader(b[head : head+int(n)])
	return h, err == nil
}

// repairRun writes right checksums where the lengths say that checksums are.
func repairRun(b []byte) []byte {
	at := len(runMagic) + 5
	if len(b) < at+4 {
		return b
	}
	copy(b, runMagic+"\x01")
	n := binary.BigEndian.Uint32(b[at-4:])
	if int64(n) > int64(len(b)-at-4) {
		return b
	}
	at += int(n)
	binary.BigEndian.PutUint32(b[at:], crc32c(b[:at]))
	at += 4
	for len(b)-at >= blockHead {
		n := int64(binary.BigEndian.Uint32(b[at:]))
		if n > int64(len(b)-at-blockHead) {
			return b
		}
		end := at + blockHead + int(n)
		binary.BigEndian.PutUint32(b[at+12:], crc32.Update(crc32c(b[at:at+12]), castagnoli, b[at+blockHead:end]))
		at = end
		if n == 0 {
			break
		}
	}
	if len(b)-at >= runTail {
		binary.BigEndian.PutUint32(b[len(b)-8:], uint32(len(b)-at))
		binary.BigEndian.PutUint32(b[len(b)-4:], crc32c(b[at:len(b)-4]))
	}
	return b
}

func TestRootRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRoot(rt)
		require.NoError(rt, r.validate())
		b := encodeRoot(r)
		got, err := decodeRoot(b)
		require.NoError(rt, err)
		require.Equal(rt, r, got)
	})
}

func drawRoot(rt *rapid.T) *Root {
	name := nameOf(rapid.IntRange(10, 1<<40).Draw(rt, "id"), rapid.IntRange(0, 1<<60).Draw(rt, "inc"))
	r := &Root{Name: name, Application: "shop", Instance: "i-0", ClusterID: rapid.StringN(0, 20, 60).Draw(rt, "cluster"), StoreID: "s",
		CreatedUnixMilli: rapid.Int64Min(0).Draw(rt, "created")}
	if rapid.Bool().Draw(rt, "pred") {
		p := nameOf(9, 1)
		r.Predecessor = &RootRef{Name: p, Path: "shop/i-1/chk-" + p.String() + ".root", Digest: digestOf([]byte("p"))}
	}
	for i := range rapid.IntRange(0, 5).Draw(rt, "tasks") {
		e := TaskEntry{Task: element.TaskID{Source: "orders", Partition: int32(i)}}
		for j := range rapid.IntRange(0, 3).Draw(rt, "positions") {
			p := position(int32(j), rapid.Int64Min(0).Draw(rt, "offset"))
			p.LeaderEpoch = rapid.Int32Min(-1).Draw(rt, "epoch")
			e.Positions = append(e.Positions, p)
		}
		if rapid.Bool().Draw(rt, "states") {
			e.States = append([]StateInfo(nil), counts...)
		}
		at := 0
		for range rapid.IntRange(0, 4).Draw(rt, "runs") {
			length := rapid.Int64Range(1, 1<<40).Draw(rt, "length")
			off := rapid.Int64Range(0, 1<<40).Draw(rt, "off")
			e.Runs = append(e.Runs, RunRef{File: "shop/i-2/chk-" + nameOf(at+1, 3).String() + ".data", FileSize: off + length, Offset: off, Length: length,
				CRC: rapid.Uint32().Draw(rt, "crc"), Digest: digestOf([]byte{byte(at)}), From: element.CheckpointID(at), To: element.CheckpointID(at + 1),
				Full: at == 0 && rapid.Bool().Draw(rt, "full"), Entries: rapid.Int64Min(0).Draw(rt, "entries")})
			at++
		}
		r.Tasks = append(r.Tasks, e)
	}
	parallelism := rapid.IntRange(0, 3).Draw(rt, "parallelism")
	kind := rapid.SampledFrom([]ExchangeKind{UnknownExchange, GroupByExchange, RebalanceExchange}).Draw(rt, "kind")
	for i := range parallelism {
		e := TaskEntry{Task: element.TaskID{Source: "z", Partition: int32(i)}, Parallelism: parallelism, MaxParallelism: 7, States: counts}
		if rapid.Bool().Draw(rt, "inline") {
			e.Runs = []RunRef{drawInline(rt, 0, 3)}
		}
		for range rapid.IntRange(0, 2).Draw(rt, "in flight") {
			e.InFlight, e.Exchange = append(e.InFlight, drawInline(rt, 10, 10)), kind
		}
		r.Tasks = append(r.Tasks, e)
	}
	for i := range rapid.IntRange(0, 2).Draw(rt, "savepoints") {
		r.Savepoints = append(r.Savepoints, SavepointRef{ID: string(rune('a' + i)), Path: rapid.StringN(1, 20, 60).Draw(rt, "path"), Digest: digestOf([]byte{byte(i)})})
	}
	for i := range rapid.IntRange(0, 2).Draw(rt, "origin") {
		r.Origin = append(r.Origin, SavepointRef{ID: "o", Path: rapid.StringN(1, 20, 60).Draw(rt, "path"), Digest: Digest{byte(i + 1)}})
	}
	return r
}

func drawInline(rt *rapid.T, from, to element.CheckpointID) RunRef {
	b := rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(rt, "bytes")
	return RunRef{File: "shop/i-0/chk-" + nameOf(int(to), 3).String() + ".root", Inline: string(b), Length: int64(len(b)), CRC: crc32c(b), Digest: digestOf(b),
		From: from, To: to, Entries: rapid.Int64Min(0).Draw(rt, "entries")}
}
