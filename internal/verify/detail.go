package verify

import (
	"context"
	"fmt"
	"math"

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
	prefix []int64 // sum of the first k inputs, at k-1, as number.bits
	whole  int     // how many of the first sums are integers; those after them are floats
	total  float64 // of the inputs' absolute values
	inputs uint32  // as counted in the pass
	// known is how many of the first inputs have a right output. The next one has none, as its sum leaves int64 or float64, and
	// those after it neither, so no output of a count above known can be right.
	known int
	seen  []uint64
	most  int64 // highest count seen
	flags uint8 // of the entry
	found bool
	near  bool // an output's sum is only nearly right, see compare
	open  bool // the report does not count it as offending yet
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

// addOpen puts a key down of which it is not known yet that it is violated.
func (s *suspects) addOpen(e *entry) {
	if d := s.add(e); d != nil {
		d.open = true
	}
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
			v.addInput(d, it)
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
		if !d.found && !d.open {
			return fmt.Errorf("key %q failed the first look and passed the second one: the topics changed below their ends while they were read", text(d.key))
		}
		v.count(d)
	}
	return nil
}

// count brings the report's numbers of keys up to what is known of one now.
func (v *verifier) count(d *suspect) {
	switch {
	case d.tail:
	case !d.open:
		v.report.DetailedKeys++
	case d.found:
		v.report.OffendingKeys++
		v.report.DetailedKeys++
	}
	if d.open && d.flags&flagNoSum == 0 && (d.found || !d.near) {
		v.report.Inexact--
	}
}

// addInput adds one input of a suspect.
func (v *verifier) addInput(d *suspect, it *item) {
	n := len(d.prefix)
	sum, fits := it.n, true
	if n > 0 {
		sum, fits = d.sum(n).plus(it.n)
	}
	if !sum.float {
		d.whole++
	}
	d.prefix = append(d.prefix, sum.bits)
	d.total += math.Abs(it.n.value())
	switch {
	case d.known < n: // an input before it has no right output
	case fits:
		d.known++
	default:
		kind := "int64"
		if sum.float {
			kind = "float64"
		}
		v.report.example(v.cfg.Examples, Example{
			Kind: Unchecked, Topic: v.cfg.Input, Partition: it.partition, Offset: it.offset, Key: text(d.key),
			Expected: "a sum that is an " + kind, Got: fmt.Sprintf("the sum of %d inputs leaves %s", n+1, kind),
		})
	}
}

// sum gives that of the first k inputs.
func (d *suspect) sum(k int) number { return number{d.prefix[k-1], k > d.whole} }

// likeness is how an output's sum compares with that of the inputs.
type likeness int

const (
	other likeness = iota
	nearly
	equal
)

// compare compares the sum of an output with that of the first k inputs. A job may have added floats in another way, as
// decimals say, so what differs by no more than rounding can is neither right nor wrong.
func (d *suspect) compare(k int, got number) likeness {
	switch want := d.sum(k); {
	case got == want.plain():
		return equal
	case !want.float:
		return other
	case got.value() == want.value():
		return equal
	case math.Abs(got.value()-want.value()) <= float64(len(d.prefix)+2)*0x1p-52*d.total:
		return nearly
	}
	return other
}

// judgeOutput looks at one output of a suspect.
func (v *verifier) judgeOutput(d *suspect, it *item) {
	n := int64(len(d.prefix))
	count := it.count
	d.lastPart, d.lastPlace = it.partition, it.offset
	expected := func() string {
		switch next := d.most + 1; {
		case next <= int64(d.known):
			return v.total(next, d.sum(int(next)).plain())
		case next <= n:
			return fmt.Sprintf("nothing that is known after %d outputs", d.known)
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
	if count < d.most && d.flags&flagSplit == 0 { // outputs of a split key are read in no defined order
		v.report.OutOfOrder++
		v.violation(d, it, Disordered, expected())
	}
	v.judgeSum(d, it)
	d.most = max(d.most, count)
}

// judgeSum looks at the sum of an output whose count is right.
func (v *verifier) judgeSum(d *suspect, it *item) {
	want, known := d.sum(int(it.count)), int64(d.known)
	if it.count > known {
		if it.count == known+1 && !want.float && it.n == want { // wrapped around; a job that left the input out cannot have this sum
			v.report.Wrong++
			v.violation(d, it, Wrong, "no output with a sum that leaves int64")
		}
		return
	}
	expected := v.total(it.count, want.plain())
	switch d.compare(int(it.count), it.n) {
	case other:
		v.report.Wrong++
		v.violation(d, it, Wrong, expected)
	case nearly:
		if !d.near {
			d.near = true
			v.example(d, it, Unchecked, expected)
		}
	}
}

// judgeEnd looks at what a suspect lacks.
func (v *verifier) judgeEnd(d *suspect) {
	if d.flags&flagSplit != 0 {
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
	for i := range d.known {
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
	got := fmt.Sprintf("%d of %d outputs absent", missing, d.known)
	if d.lastPart >= 0 {
		got += fmt.Sprintf("; the key's last one is %s/%d@%d", v.cfg.Output, d.lastPart, d.lastPlace)
	}
	v.report.example(v.cfg.Examples, Example{
		Kind: Missing, Topic: v.cfg.Output, Partition: -1, Offset: -1, Key: text(d.key),
		Expected: v.total(first, d.sum(int(first)).plain()), Got: got,
	})
}

func (v *verifier) violation(d *suspect, it *item, kind Kind, expected string) {
	d.found = true
	v.example(d, it, kind, expected)
}

func (v *verifier) example(d *suspect, it *item, kind Kind, expected string) {
	v.report.example(v.cfg.Examples, Example{
		Kind: kind, Topic: v.cfg.Output, Partition: it.partition, Offset: it.offset,
		Key: text(d.key), Expected: expected, Got: v.total(it.count, it.n),
	})
}

// total gives an output's content as the topic has it.
func (v *verifier) total(count int64, sum number) string {
	if v.cfg.Format == Binary {
		return fmt.Sprintf("count=%d sum=%s", count, sum)
	}
	return fmt.Sprintf("%s=%d %s=%s", v.cfg.CountField, count, v.cfg.SumField, sum)
}
