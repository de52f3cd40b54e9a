package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
)

func init() { register(newTransactions) }

// transactionsTimeout bounds the search, and the reading of what was decided.
const transactionsTimeout = time.Minute

func newTransactions() *cobra.Command {
	var (
		set []string
		end bool
	)
	cmd := &cobra.Command{
		Use:   "transactions FILE.yaml",
		Short: "Find transactions of which the brokers have lost the end",
		Long: `Find hanging transactions in the output topics of a service and in its group's partition of __consumer_offsets: a partition
holds one open although its coordinator is done with it, so readers of committed records stop before it, and a service that
has to read offsets from there waits for ever. Kafka makes one when it loses the marker of the end, as Kafka 4.4 does for a
partition that has no leader at that moment. What is listed is certain, also while the service runs, but for one without a
transactional id: no coordinator knows its producer.

DECISION is what the coordinator decided, from the brokers' transaction log; it is unknown where the log does not have it any
more, or where nothing was decided, as for records that were written by a transaction which no coordinator had begun. --end
writes the lost markers accordingly, and none where the decision is unknown. Do not use kafka-transactions.sh abort instead
for one that was decided to commit: its output would be lost, and the offsets, where their marker was not, would stay
committed. It is the way out where the decision is unknown, if kafka-transactions.sh describe shows that the transactional id
has no transaction under way: of what may have been committed elsewhere this partition then lacks its part.

The user needs READ of the topics, of __consumer_offsets and of __transaction_state, and for --end CLUSTER_ACTION.

Exit code 0: there is none, or all have been ended. 1: some hang.`,
		Example: "  processor transactions orders.yaml\n  processor transactions orders.yaml --end",
		Args:    exactArgs("FILE.yaml"),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting, as in run; may be repeated")
	cmd.Flags().BoolVar(&end, "end", false, "end them as was decided")
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		svc, err := load(cmd, args[0], set)
		if err != nil {
			return err
		}
		cfg := svc.Processor()
		if cfg.Logger, err = newLogger(io.Discard, "error", "text"); err != nil {
			return err
		}
		ctx, cancel := contextWithTimeout(cmd, transactionsTimeout)
		defer cancel()
		found, err := processor.HangingTransactions(ctx, svc.Plan, cfg, end)
		if err != nil {
			return err
		}
		if output.json {
			err = writeJSON(cmd.OutOrStdout(), found)
		} else {
			err = printHanging(cmd.OutOrStdout(), found)
		}
		if err != nil {
			return err
		}
		return stillHanging(found)
	}
	return cmd
}

// stillHanging is the error that tells of those that were not ended.
func stillHanging(found []processor.HangingTransaction) error {
	left, why := 0, "--end ends those of which the decision is known"
	for _, t := range found {
		if !t.Ended {
			left++
		}
		if t.Error != "" {
			why = t.Error
		}
	}
	if left == 0 {
		return nil
	}
	return fault.Stopf(fault.Failed, "%s: %s", counted(left, "hanging transaction"), why)
}

func printHanging(out io.Writer, found []processor.HangingTransaction) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, "no transaction hangs")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tFROM\tPRODUCER\tTRANSACTIONAL ID\tDECISION\tENDED")
	for _, t := range found {
		id := t.TransactionalID
		if id == "" {
			id = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%t\n", t.Topic, t.Partition, t.Start, t.ProducerID, id, t.Decision, t.Ended)
	}
	return w.Flush()
}
