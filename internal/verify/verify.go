package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Config says what to compare. The zero value of each optional field means its default.
type Config struct {
	Kafka  kafka.Config
	Input  string // topic of the inputs
	Output string // topic of the running totals

	Format Format // JSON (default) or Binary

	// JSON only. KeyField is the input field that the job groups by; empty = the record's key. WhereField and
	// WhereValue leave out inputs whose field has another value (strings compared without quotes), as a filter before
	// the totals does.
	AmountField string // of the input; default "amount"
	CountField  string // of the output; default "orders"
	SumField    string // of the output; default "spent"
	KeyField    string
	WhereField  string
	WhereValue  string

	// Partial accepts that a key's last inputs have no output yet.
	Partial bool
	// Group, if named, has its committed lag reported.
	Group string

	KeyBudget     int // keys in memory at once; default 4 Mi (about 330 MB at most)
	DetailRecords int // inputs of failing keys kept for the exact look; default 16 Mi (128 MB)
	Examples      int // kept of each kind; default 5
	// Stalled ends a read without progress; default 30 s.
	Stalled time.Duration
	// Progress, if set, is told about once per second how far the reading is.
	Progress func(Progress)
}

// Progress is how far Verify is.
type Progress struct {
	Stage   string // "outputs", "inputs" or "details"
	Pass    int    // from 1
	Records int64  // read in this stage
	Total   int64  // offsets of this stage; markers included, so Records may stay below it
}

func (c *Config) defaults() error {
	if c.Input == "" || c.Output == "" {
		return fault.Stopf(fault.Usage, "both the input and the output topic must be named")
	}
	for _, s := range []struct {
		field *string
		value string
	}{{(*string)(&c.Format), string(JSON)}, {&c.AmountField, "amount"}, {&c.CountField, "orders"}, {&c.SumField, "spent"}} {
		if *s.field == "" {
			*s.field = s.value
		}
	}
	switch c.Format {
	case JSON:
		for _, name := range []string{c.AmountField, c.CountField, c.SumField, c.KeyField, c.WhereField} {
			if name != "" && !fieldName.MatchString(name) {
				return fault.Stopf(fault.Usage, "%q cannot be a field name: 1 to 128 characters out of a-z A-Z 0-9 _ . $ -", name)
			}
		}
		if c.CountField == c.SumField || c.AmountField == c.KeyField || c.AmountField == c.WhereField {
			return fault.Stopf(fault.Usage, "one field cannot have two roles")
		}
	case Binary:
		if c.KeyField != "" || c.WhereField != "" {
			return fault.Stopf(fault.Usage, "the binary format has no fields: no key field and no condition")
		}
	default:
		return fault.Stopf(fault.Usage, "format %q: json or binary", c.Format)
	}
	for _, n := range []struct {
		field *int
		value int
	}{{&c.KeyBudget, 4 << 20}, {&c.DetailRecords, 16 << 20}, {&c.Examples, 5}} {
		if *n.field <= 0 {
			*n.field = n.value
		}
	}
	if c.Stalled <= 0 {
		c.Stalled = defaultStalled
	}
	return nil
}

// verifier is one run.
type verifier struct {
	cfg     Config
	in, out *scanner
	seeds   seeds
	report  Report
	suspect *suspects
	told    time.Time
	// fractions says that an output has a sum with a fraction, or a float that is beyond int64, so amounts with one count.
	fractions bool
}

// Verify reads both topics up to their ends at the start and judges them. An error means that no verdict was
// reached; a violation is no error but the report's verdict.
func Verify(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.defaults(); err != nil {
		return Report{}, err
	}
	start := time.Now()
	cl, err := kafka.NewClient(cfg.Kafka)
	if err != nil {
		return Report{}, fault.Stopf(fault.Usage, "Kafka client: %w", err)
	}
	defer cl.Close()
	v := &verifier{cfg: cfg, seeds: newSeeds(), told: start}
	v.report = Report{Input: cfg.Input, Output: cfg.Output, Partial: cfg.Partial, GroupLag: -1, Examples: []Example{}}
	v.suspect = newSuspects(cfg.DetailRecords)
	if err := v.open(ctx, cl); err != nil {
		return Report{}, err
	}
	if err := v.passes(ctx); err != nil {
		return Report{}, err
	}
	if err := v.detail(ctx); err != nil {
		return Report{}, err
	}
	v.report.Elapsed = time.Since(start)
	v.report.conclude()
	return v.report, nil
}

// open fixes what will be read, the output's ends first.
func (v *verifier) open(ctx context.Context, cl *kgo.Client) error {
	// Probe rather than a plain request: it says within a bound, and with the address, that no broker answers.
	cluster, err := kafka.Probe(ctx, v.cfg.Kafka, kafka.Need{Topics: []string{v.cfg.Input, v.cfg.Output}})
	if err != nil {
		return err
	}
	scan := func(topic string) (*scanner, error) {
		return newScanner(ctx, cl, topic, cluster.Topics[topic].ID, v.cfg.Stalled)
	}
	if v.out, err = scan(v.cfg.Output); err != nil {
		return err
	}
	if v.in, err = scan(v.cfg.Input); err != nil {
		return err
	}
	if v.report.OpenOffsets, err = v.out.open(ctx); err != nil {
		return err
	}
	if v.cfg.Group == "" {
		return nil
	}
	var committed kadm.OffsetResponses
	err = kafka.Again(ctx, cl, func(ctx context.Context) (err error) {
		if committed, err = kadm.NewClient(cl).FetchOffsets(ctx, v.cfg.Group); err == nil {
			err = committed.Error()
		}
		return err
	})
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return kafka.Classify(err, "read the offsets of group %s", v.cfg.Group)
	}
	v.report.GroupLag = 0
	for _, sp := range v.in.spans {
		o, _ := committed.Lookup(v.cfg.Input, sp.partition) // a partition without an offset is at its start
		v.report.GroupLag += max(0, sp.end-max(sp.start, o.At))
	}
	return nil
}

// passes reads everything as often as the key budget asks for and judges each key by its digests.
func (v *verifier) passes(ctx context.Context) error {
	for lo, hi, more := uint64(0), uint64(math.MaxUint64), true; more; {
		v.report.Passes++
		t := newTable(v.cfg.KeyBudget, lo, hi)
		if err := v.pass(ctx, t); err != nil {
			return err
		}
		v.judge(t)
		lo, hi, more = t.next()
	}
	return nil
}

// pass fills a table, outputs first.
func (v *verifier) pass(ctx context.Context, t *table) error {
	first := v.report.Passes == 1
	var outputs, inputs int64
	err := v.scan(ctx, v.out, "outputs", v.outputDecoder, func(b *batch) error {
		outputs += b.read
		for i := range b.items {
			it := &b.items[i]
			if it.err != nil {
				if first {
					v.malformed(it)
				}
				continue
			}
			v.fractions = v.fractions || it.n.float
			if err := t.addOutput(it.key, it.partition, it.count, it.n); err != nil {
				return fmt.Errorf("%s: %w", v.cfg.Output, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = v.scan(ctx, v.in, "inputs", v.inputDecoder, func(b *batch) error {
		if first {
			v.report.Filtered += b.filtered
		}
		inputs += b.read - b.filtered
		for i := range b.items {
			it := &b.items[i]
			if it.err != nil {
				inputs--
				if first {
					v.skipped(it)
				}
				continue
			}
			if err := t.addInput(it.key, it.partition, it.n); err != nil {
				return fmt.Errorf("%s: %w", v.cfg.Input, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if first {
		v.report.RecordsIn, v.report.RecordsOut = inputs, outputs
	} else if inputs != v.report.RecordsIn || outputs != v.report.RecordsOut {
		return fault.Stopf(fault.OffsetGone, "the topics changed below their ends while they were read: %d inputs and %d outputs, then %d and %d",
			v.report.RecordsIn, v.report.RecordsOut, inputs, outputs)
	}
	return nil
}

func (v *verifier) malformed(it *item) {
	v.report.Malformed++
	v.report.example(v.cfg.Examples, Example{
		Kind: Malformed, Topic: v.cfg.Output, Partition: it.partition, Offset: it.offset,
		Key: text(it.rec.Key), Expected: "a count and a sum", Got: fmt.Sprintf("%s: %s", text(it.rec.Value), it.err),
	})
}

// skipped counts an input that must give no output.
func (v *verifier) skipped(it *item) {
	v.report.Skipped++
	if !errors.Is(it.err, errFraction) {
		return
	}
	v.report.Fractions++
	v.report.example(v.cfg.Examples, Example{
		Kind: Unchecked, Topic: v.cfg.Input, Partition: it.partition, Offset: it.offset,
		Key: text(it.rec.Key), Expected: "a whole amount, as the sums of all outputs are whole", Got: text(it.rec.Value),
	})
}

// judge closes a pass: keys whose digests agree are done, the others are put down for the exact look.
func (v *verifier) judge(t *table) {
	for i := range t.slots {
		e := &t.slots[i]
		if e.in == 0 && e.out == 0 {
			continue
		}
		v.report.Keys++
		behind := int64(e.in) - int64(e.out)
		switch {
		case e.flags&flagNoSum != 0:
			v.report.Unchecked++
			v.suspect.addOpen(e) // violated all the same, maybe
		case e.exactPrefix() && (behind == 0 || v.cfg.Partial):
			v.report.Lag += behind
		case e.exactPrefix():
			// The first outputs are right, so the figures are known already; a few keys serve as examples.
			v.report.OffendingKeys++
			v.report.DetailedKeys++
			v.report.Missing += behind
			v.suspect.addTail(e, v.cfg.Examples)
		case e.flags&(flagFloat|flagSplit) == flagFloat:
			v.report.Inexact++ // until it is looked at
			v.suspect.addOpen(e)
		default:
			v.report.OffendingKeys++
			v.suspect.add(e)
		}
	}
}

// scan reads one side and tells the progress.
func (v *verifier) scan(ctx context.Context, s *scanner, stage string, dec func() decoder, deliver func(*batch) error) error {
	p := Progress{Stage: stage, Pass: v.report.Passes}
	for _, sp := range s.spans {
		p.Total += sp.end - sp.start
	}
	return s.scan(ctx, dec, func(b *batch) error {
		p.Records += b.read
		if v.cfg.Progress != nil && time.Since(v.told) >= time.Second {
			v.told = time.Now()
			v.cfg.Progress(p)
		}
		return deliver(b)
	})
}

func (v *verifier) outputDecoder() decoder {
	if v.cfg.Format == Binary {
		return &binaryDecoder{seeds: v.seeds, output: true}
	}
	return newJSONDecoder(v.seeds, []string{v.cfg.CountField, v.cfg.SumField}, "", "", "")
}

func (v *verifier) inputDecoder() decoder {
	if v.cfg.Format == Binary {
		return &binaryDecoder{seeds: v.seeds}
	}
	d := newJSONDecoder(v.seeds, []string{v.cfg.AmountField}, v.cfg.KeyField, v.cfg.WhereField, v.cfg.WhereValue)
	d.wholeOnly = !v.fractions
	return d
}

// text gives a key or value for a message, cut to a readable length.
func text(b []byte) string {
	const most = 80
	if b == nil {
		return "null"
	}
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}
