package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/verify"
)

func init() { register(newVerify) }

func newVerify() *cobra.Command {
	var (
		cfg    verify.Config
		where  string
		format string
	)
	cmd := &cobra.Command{
		Use:   "verify --input TOPIC --output TOPIC",
		Short: "Check a topic of running totals against its input: each input exactly once",
		Long: `Check that the output topic has, for each key, the running count and sum of the records of the input topic: the counts
1…n, each once and in order, each with the sum of as many first inputs. It reads both topics as any read_committed
consumer does, from their beginning to where they end now, and shares no code with the engine.

Sums are checked within int64: where one leaves it, its key has no right output from there on, and there is no verdict
unless something is violated. From the first amount on with a fraction or an exponent a sum is a float64, and the right one is
that of adding the amounts in their order, as an aggregate does. One that differs by no more than rounding, as where decimals
are added, is neither verified nor violated; nor are amounts with a fraction where no output has one.

With --partial the job may still be at work: what is missing behind a key's last output is lag. Where inputs have no output at all
there is no verdict.

Exit code 0: verified. 1: violated, or no verdict for a reason without a code of its own.`,
		Example: `  processor verify --input orders --output order-totals
  processor verify --input orders --output order-totals --where status=paid \
    --partial --group order-totals --report json
  processor verify --input in --output out --format binary`,
		Args: exactArgs(),
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Input, "input", "", "`TOPIC` that the job reads; required")
	f.StringVar(&cfg.Output, "output", "", "`TOPIC` that the job writes; required")
	brokersFlag(cmd, &cfg.Kafka.Brokers, []string{"localhost:9092"}, "`HOST:PORT`s of brokers to start from; default also from KAFKA_BROKERS")
	f.StringVar(&format, "format", string(verify.JSON), "`json|binary`. json: objects; binary: int64 big-endian, the amount in the input's first 8 bytes, count and sum in the output's 16")
	f.StringVar(&cfg.AmountField, "amount-field", "amount", "input: `FIELD` that is summed")
	f.StringVar(&cfg.CountField, "count-field", "orders", "output: `FIELD` with the count")
	f.StringVar(&cfg.SumField, "sum-field", "spent", "output: `FIELD` with the sum")
	f.StringVar(&cfg.KeyField, "key-field", "", "input: `FIELD` that is the key (default: the record's key)")
	f.StringVar(&where, "where", "", "input: only records with `FIELD=VALUE` count, as after a filter")
	f.BoolVar(&cfg.Partial, "partial", false, "the job still runs: a key's last outputs may be missing, and count as lag")
	f.StringVar(&cfg.Group, "group", "", "consumer `GROUP` whose committed lag is reported")
	f.IntVar(&cfg.KeyBudget, "keys-in-memory", 4<<20, "keys of one pass, up to 80 bytes each; more keys take more passes")
	f.IntVar(&cfg.Examples, "examples", 5, "offending records shown of each kind")
	report := new(outputFlag)
	f.Var(report, "report", "form of the result") // elsewhere --output, which names a topic here
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.Input == "" || cfg.Output == "" {
			return fault.Stopf(fault.Usage, "both --input and --output are needed: the topics to compare (see processor verify --help)")
		}
		cfg.Format = verify.Format(format)
		cfg.Kafka.ClientID = "millweir-verify"
		if where != "" {
			field, value, ok := strings.Cut(where, "=")
			if !ok || field == "" {
				return fault.Stopf(fault.Usage, "--where %q: want FIELD=VALUE", where)
			}
			cfg.WhereField, cfg.WhereValue = field, value
		}
		if stderr := cmd.ErrOrStderr(); isTerminal(stderr) {
			cfg.Progress = func(p verify.Progress) { progress(stderr, p) }
			defer fmt.Fprint(stderr, "\r\x1b[K")
		}
		found, err := verify.Verify(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		if report.json {
			err = writeJSON(cmd.OutOrStdout(), found)
		} else {
			_, err = io.WriteString(cmd.OutOrStdout(), found.String())
		}
		if err == nil && !found.Exact() {
			err = fault.Stopf(fault.Failed, "%s", found.Failure())
		}
		return err
	}
	return cmd
}

func progress(w io.Writer, p verify.Progress) {
	fmt.Fprintf(w, "\r%s, pass %d: %d of %d\x1b[K", p.Stage, p.Pass, p.Records, p.Total)
}
