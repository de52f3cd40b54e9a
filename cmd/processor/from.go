package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

// startFlags say what a start takes up besides what the group has committed.
type startFlags struct {
	from             []string
	claimMode        string
	allowDropped     bool
	acceptDuplicates bool
}

func (f *startFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.from, "from", "s", nil, "start from this `SAVEPOINT`, a directory (Flink: --fromSavepoint); repeated for one that several instances took part in")
	fs.StringVar(&f.claimMode, "claim-mode", string(processor.NoClaim), "what becomes of the savepoint of --from, `no-claim|claim`: no-claim leaves it as it is, claim disposes of it once its state is in checkpoints of this service")
	fs.BoolVarP(&f.allowDropped, "allow-dropped-state", "n", false, "let state go that is in the savepoint or checkpoint and that no step owns any more, or all of it with checkpointing.interval: disabled (Flink: --allowNonRestoredState)")
	fs.BoolVar(&f.acceptDuplicates, "accept-duplicates", false, "with --from: go back to the savepoint although the group has committed offsets, once; what was put out since then repeats")
}

// check refuses what does not go together.
func (f *startFlags) check(recovering bool) error {
	mode := processor.ClaimMode(strings.ReplaceAll(strings.ToLower(f.claimMode), "_", "-")) // Flink writes NO_CLAIM
	if mode != processor.NoClaim && mode != processor.Claim {
		return fault.Stopf(fault.Usage, "--claim-mode %q: no-claim or claim", f.claimMode)
	}
	f.claimMode = string(mode)
	for i := range f.from {
		if err := asPath(&f.from[i]); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		if _, err := snapshot.SavepointPath(f.from[i]); err != nil {
			return fault.Stopf(fault.Usage, "--from: %w", err)
		}
	}
	switch {
	case len(f.from) > 0 && recovering:
		return fault.Stopf(fault.Usage, "--from and --recover-from-store: the state is the savepoint's or the store's, leave one of them out")
	case len(f.from) == 0 && mode == processor.Claim:
		return fault.Stopf(fault.Usage, "--claim-mode claim without --from: which savepoint?")
	case len(f.from) == 0 && f.acceptDuplicates:
		return fault.Stopf(fault.Usage, "--accept-duplicates without --from: it is for going back to a savepoint; which one?")
	}
	return nil
}

func (f *startFlags) apply(cfg *processor.Config) {
	cfg.From, cfg.ClaimMode, cfg.AcceptDuplicates, cfg.AllowDroppedState = f.from, processor.ClaimMode(f.claimMode), f.acceptDuplicates, f.allowDropped
}

// wayOn adds to a refusal the flag or command that answers it.
func (f *startFlags) wayOn(err error, file string, set []string) error {
	refused := snapshot.RefusalOf(err)
	switch {
	case refused == nil:
		return err
	case refused.Has(snapshot.ReasonOtherCluster) && len(f.from) > 0:
		return fmt.Errorf("%w: offsets are of one cluster; start from it on the cluster that it is of (kafka.brokers), or leave --from out here", err)
	case refused.Has(snapshot.ReasonOtherLineage):
		return fmt.Errorf("%w; another name: `processor run %s --set application=NAME --from …`, repeated outputs: --accept-duplicates, a reset: `processor reset %s`", err, given(file, set, "application"), given(file, set))
	}
	return err
}
