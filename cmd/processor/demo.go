package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/demo"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/sabotage"
	"github.com/millweir/millweir/snapshot"
)

func init() { register(newDemo) }

func newDemo() *cobra.Command {
	demo.Sabotages = demo.Sabotages[:0]
	for _, f := range sabotage.Faults {
		demo.Sabotages = append(demo.Sabotages, demo.Sabotage{Name: f.Name, Help: f.Help})
	}
	var cfg demo.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See exactly-once: a job killed again and again, then an independent check",
		Long: `See exactly-once in under a minute, with nothing installed.

A stream of orders flows into a topic; the job examples/orders.yaml, a process of its own, keeps running totals per
customer. It gets kill -9 at random moments and is started again at once. Then a checker that shares no code with the
engine reads both topics and says whether every order had its effect exactly once.

Exit code 0 only if that is verified, 1 if it is violated or no verdict was reached.

--sabotage plants a fault into the job, to see that the checker finds it:
` + demo.SabotageHelp(),
		Example: "  processor demo\n  processor demo --brokers localhost:9092\n  processor demo --sabotage lose-delta",
		Args:    exactArgs(),
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "dir", "", "new `DIRECTORY` for all files (default: a temporary one, removed when all was well)")
	f.StringSliceVar(&cfg.Brokers, "brokers", nil, "a real Kafka at these `HOST:PORT`s (default: a broker inside the demo); topics get names of this run")
	f.Uint64Var(&cfg.Seed, "seed", 0, "of the orders and the moments of the kills (default: drawn and printed)")
	f.IntVar(&cfg.Rate, "rate", 12000, "orders per second")
	f.IntVar(&cfg.Kills, "kills", 5, "how often the job gets kill -9")
	f.DurationVar(&cfg.Duration, "duration", 40*time.Second, "how long orders flow")
	f.BoolVar(&cfg.Plain, "plain", false, "lines instead of the view in place")
	f.StringVar(&cfg.Sabotage, "sabotage", "", "plant this `FAULT` into the job")
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.Rate < 1 || cfg.Kills < 0 || cfg.Duration <= 0 {
			return fault.Stopf(fault.Usage, "--rate and --duration must be positive, --kills not negative")
		}
		if cfg.Kills == 0 {
			cfg.Kills = -1 // 0 is the default there
		}
		cfg.Out, cfg.Quiet, cfg.Checkpoint = beneath(cmd.OutOrStdout()), output.json, checkpointOf
		result, err := demo.Run(cmd.Context(), cfg)
		if err != nil {
			if result.Dir != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the files of the run are in %s\n", result.Dir)
			}
			return err
		}
		if output.json {
			err = writeJSON(cmd.OutOrStdout(), result)
		} else {
			_, err = io.WriteString(cmd.OutOrStdout(), result.String())
		}
		if err == nil && !result.Exact() {
			err = fault.Stopf(fault.Failed, "%s", result.Report.Failure())
		}
		return err
	}
	return cmd
}

// checkpointOf reads the checkpoint's number out of the metadata of a committed offset.
func checkpointOf(metadata string) (uint64, bool) {
	h, err := snapshot.ParseHandle(metadata)
	return uint64(h.Root.Name.ID), err == nil
}
