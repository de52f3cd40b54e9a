package verify

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// suspects are the keys to read again, bounded by the number of their inputs.
type suspects struct {
	keys   map[keyHash]*suspect
	room   int
	tailed int
}

// suspect is what the exact look keeps of one key.
type suspect struct {
	key    []byte  // known once a record of it was read
	prefix []int64 // sum of the first k inputs, at k-1
	inputs uint32  // as counted in the pass
	seen   []uint64
	most   int64 // highest count seen
	flags  uint8
	found  bool
	// tail: all outputs are right, only the last ones are missing; its figures are in the report already.
	tail      bool
	lastPart  int32 // of its last output
	lastPlace int64
}

// keyCost is what a suspect costs beside its inputs, in inputs.
const keyCost = 32

func newSuspects(room int) *suspects {
	return &suspects{keys: map[keyHash]*suspect{}, room: room}
}

// add puts a key down, if there is room.
func (s *suspects) add(e *entry) *suspect {
	cost := int(e.in) + keyCost
	if cost > s.room {
		return nil
	}
	s.room -= cost
	d := &suspect{inputs: e.in, flags: e.flags, lastPart: -1, lastPlace: -1}
	s.keys[e.key] = d
	return d
}

// addTail puts a key down of which only the last outputs are missing, up to a number of such keys.
func (s *suspects) addTail(e *entry, limit int) {
	if s.tailed >= limit {
		return
	}
	if d := s.add(e); d != nil {
		d.tail = true
		s.tailed++
	}
}

// keyed passes on only records of suspects, with the record that names the key.
type keyed struct {
	decoder
	keys map[keyHash]*suspect // only read here
}

func (k keyed) decode(r *kgo.Record, it *item) bool {
	if !k.decoder.decode(r, it) || it.err != nil {
		return false
	}
	if k.keys[it.key] == nil {
		return false
	}
	it.rec = r
	if j, ok := k.decoder.(*jsonDecoder); ok && j.key != nil {
		it.rec = &kgo.Record{Key: []byte(plain(*j.key))}
	}
	return true
}

// detail reads the suspects' records again and names each violation.
func (v *verifier) detail(ctx context.Context) error {
	keys := v.suspect.keys
	if len(keys) == 0 {
		return nil
	}
	wrap := func(newDecoder func() decoder) func() decoder {
		return func() decoder { return keyed{newDecoder(), keys} }
	}
	err := v.scan(ctx, v.in, "details", wrap(v.inputDecoder), func(b *batch) error {
		for i := range b.items {
			it := &b.items[i]
			d := keys[it.key]
			if d.key == nil {
				d.key = append([]byte{}, it.rec.Key...)
			}
			if len(d.prefix) == int(d.inputs) {
				return fmt.Errorf("%s changed below its end while it was read", v.cfg.Input)
			}
			sum := it.a
			if n := len(d.prefix); n > 0 {
				sum += d.prefix[n-1]
			}
			d.prefix = append(d.prefix, sum)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = v.scan(ctx, v.out, "details", wrap(v.outputDecoder), func(b *batch) error {
		for i := range b.items {
			it := &b.items[i]
			d := keys[it.key]
			if d.key == nil {
				d.key = append([]byte{}, it.rec.Key...)
			}
			v.judgeOutput(d, it)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range keys {
		v.judgeEnd(d)
		if !d.found {
			return fmt.Errorf("key %q failed the first look and passed the second one: the topics changed below their ends while they were read", text(d.key))
		}
		if !d.tail {
			v.report.DetailedKeys++
		}
	}
	return nil
}

// judgeOutput looks at one output of a suspect.
func (v *verifier) judgeOutput(d *suspect, it *item) {
	n := int64(len(d.prefix))
	count, sum := it.a, it.b
	d.lastPart, d.lastPlace = it.partition, it.offset
	expected := func() string {
		if next := d.most + 1; next <= n {
			return v.total(next, d.prefix[next-1])
		}
		return fmt.Sprintf("nothing after %d outputs", n)
	}
	if count < 1 || count > n {
		v.report.Unexpected++
		v.violation(d, it, Unexpected, expected())
		return
	}
	if d.seen == nil {
		d.seen = make([]uint64, (n+63)/64)
	}
	word, bit := (count-1)/64, uint64(1)<<((count-1)%64)
	if d.seen[word]&bit != 0 {
		v.report.Duplicates++
		v.violation(d, it, Duplicate, expected())
		return
	}
	d.seen[word] |= bit
	if count < d.most && d.flags == 0 { // outputs of a split key are read in no defined order
		v.report.OutOfOrder++
		v.violation(d, it, Disordered, expected())
	}
	if want := d.prefix[count-1]; sum != want {
		v.report.Wrong++
		v.violation(d, it, Wrong, v.total(count, want))
	}
	d.most = max(d.most, count)
}

// judgeEnd looks at what a suspect lacks.
func (v *verifier) judgeEnd(d *suspect) {
	if d.flags != 0 {
		d.found = true
		v.report.SplitKeys++
		side, topic := "inputs", v.cfg.Input
		if d.flags&flagSplitIn == 0 {
			side, topic = "outputs", v.cfg.Output
		}
		v.report.example(v.cfg.Examples, Example{
			Kind: Split, Topic: topic, Partition: -1, Offset: -1, Key: text(d.key),
			Expected: "all " + side + " in one partition", Got: side + " in several",
		})
	}
	var missing, lag, first int64
	for i := range d.prefix {
		count := int64(i) + 1
		if d.seen != nil && d.seen[i/64]&(1<<(i%64)) != 0 {
			continue
		}
		if v.cfg.Partial && count > d.most {
			lag++
			continue
		}
		if missing++; first == 0 {
			first = count
		}
	}
	if !d.tail {
		v.report.Missing += missing
		v.report.Lag += lag
	}
	if missing == 0 {
		return
	}
	d.found = true
	got := fmt.Sprintf("%d of %d outputs absent", missing, len(d.prefix))
	if d.lastPart >= 0 {
		got += fmt.Sprintf("; the key's last one is %s/%d@%d", v.cfg.Output, d.lastPart, d.lastPlace)
	}
	v.report.example(v.cfg.Examples, Example{
		Kind: Missing, Topic: v.cfg.Output, Partition: -1, Offset: -1, Key: text(d.key),
		Expected: v.total(first, d.prefix[first-1]), Got: got,
	})
}

func (v *verifier) violation(d *suspect, it *item, kind Kind, expected string) {
	d.found = true
	v.report.example(v.cfg.Examples, Example{
		Kind: kind, Topic: v.cfg.Output, Partition: it.partition, Offset: it.offset,
		Key: text(d.key), Expected: expected, Got: v.total(it.a, it.b),
	})
}

// total gives an output's content as the topic has it.
func (v *verifier) total(count, sum int64) string {
	if v.cfg.Format == Binary {
		return fmt.Sprintf("count=%d sum=%d", count, sum)
	}
	return fmt.Sprintf("%s=%d %s=%d", v.cfg.CountField, count, v.cfg.SumField, sum)
}
