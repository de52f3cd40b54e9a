package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// verified is the verdict on one checkpoint.
type verified struct {
	Name     string   `json:"name"`
	Instance string   `json:"instance"`
	Status   string   `json:"status"`
	Whole    bool     `json:"whole"`
	Damage   []string `json:"damage"`
	Runs     int      `json:"runs"`
	Bytes    int64    `json:"bytes"`
}

// verifiedAnnouncements is the verdict on the files by which the instances are known.
type verifiedAnnouncements struct {
	Read   int      `json:"read"`
	Damage []string `json:"damage"`

	first error
}

func newCheckpointsVerify() *cobra.Command {
	var (
		f   storeFlags
		all bool
	)
	cmd := &cobra.Command{
		Use:   "verify [NAME…] FILE.yaml | verify [NAME…] --dir DIRECTORY",
		Short: "Read checkpoints completely and check everything",
		Long: `Read checkpoints completely: every root with its digest, its marker and its place in the lineage, every block and checksum of
every file that it names, and that its runs follow each other without a gap. Every file is named that is damaged, missing, no
file (a directory, a link, a pipe), or not to be read for lack of the right to.

Without names all are verified, and the announcements of the instances. Exit code 0: all whole. 22: something is damaged or missing, or there is no checkpoint at all. 20: the directory, or a file in it, cannot be read.
43: all, or one of those that are named, were removed by the service before they were read.`,
		Example: "  processor checkpoints verify orders.yaml\n  processor checkpoints verify 12 13 --dir /var/lib/orders/checkpoints",
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all checkpoints, which is also the default")
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		if all && len(f.names) > 0 {
			return fault.Stopf(fault.Usage, "either --all or names, not both")
		}
		repo, err := f.open(cmd)
		if err != nil {
			return err
		}
		defer repo.Close()
		return verifyCheckpoints(cmd, repo, &f, output.json)
	}
	return cmd
}

func verifyCheckpoints(cmd *cobra.Command, repo *snapshot.Repository, f *storeFlags, asJSON bool) error {
	want, committed, err := f.wanted(cmd.Context(), repo)
	if err != nil {
		return err
	}
	out, results, damaged := cmd.OutOrStdout(), []verified{}, 0
	var first error
	err = repo.VerifyAll(cmd.Context(), func(i snapshot.RootInfo) bool { return len(want) == 0 || want[i.Ref.Path] }, func(v snapshot.Verified) {
		v.Committed = v.Committed || committed[v.Ref.Path]
		res := verified{Name: v.Ref.Name.String(), Instance: v.Instance, Status: listedOf(v.RootInfo).Status, Whole: len(v.Damage) == 0, Damage: []string{}, Runs: v.Runs, Bytes: v.Bytes}
		for _, err := range v.Damage {
			res.Damage = append(res.Damage, err.Error())
		}
		if !res.Whole {
			worst := worstOf(v.Damage)
			res.Status = statusOf(worst)
			if damaged++; first == nil || statusOf(first) == statusUnreadable {
				first = worst
			}
		}
		if results = append(results, res); asJSON {
			return
		}
		if fmt.Fprintf(out, "%s  %s  %s, %s, %s\n", res.Name, res.Instance, res.Status, counted(res.Runs, "run"), bytesText(res.Bytes)); !res.Whole {
			for i, d := range res.Damage {
				fmt.Fprintf(out, "  %s: %s\n", statusOf(v.Damage[i]), d)
			}
		}
	})
	if err != nil {
		return err
	}
	signs := verifiedAnnouncements{Damage: []string{}}
	if len(f.names) == 0 {
		n, damage, err := repo.VerifyAnnouncements(cmd.Context())
		if err != nil {
			return err
		}
		signs.Read, signs.first = n, worstOf(damage)
		for _, err := range damage {
			signs.Damage = append(signs.Damage, err.Error())
			if !asJSON {
				fmt.Fprintf(out, "  %s: %v\n", statusOf(err), err)
			}
		}
	}
	if asJSON {
		whole := damaged == 0 && signs.first == nil && len(results) >= max(1, len(want))
		if err := writeJSON(out, map[string]any{"directory": repo.Location(), "application": f.application, "store_id": repo.StoreID(), "whole": whole, "checkpoints": results, "announcements": signs}); err != nil {
			return err
		}
	}
	switch {
	case signs.first != nil && (damaged == 0 || statusOf(first) == statusUnreadable && statusOf(signs.first) == statusDamaged):
		return verdict(len(signs.Damage), counted(signs.Read, "announcement"), signs.first)
	case damaged > 0:
		return verdict(damaged, counted(len(results), "checkpoint"), first)
	case len(results) < len(want):
		return fault.Stopf(fault.NotRunning, "%d of %s were removed before they were read: the service has newer ones", len(want)-len(results), counted(len(want), "checkpoint"))
	case len(results) == 0:
		return fault.Stopf(fault.Corrupt, "there is no checkpoint of %s in %s", f.application, repo.Location())
	case !asJSON:
		fmt.Fprintf(out, "%s whole\n", counted(len(results), "checkpoint"))
	}
	return nil
}

// wanted gives the paths of the named roots, none for all, and of those that are known to be committed.
func (f *storeFlags) wanted(ctx context.Context, repo *snapshot.Repository) (want, committed map[string]bool, err error) {
	want, committed = map[string]bool{}, map[string]bool{}
	if len(f.names)+len(f.brokers) == 0 {
		return want, committed, nil // the root files are read anyway
	}
	infos, _, err := f.look(ctx, repo)
	if err != nil {
		return nil, nil, err
	}
	for _, info := range infos {
		committed[info.Ref.Path] = info.Committed
	}
	for _, name := range f.names {
		info, err := find(infos, name)
		if err != nil {
			return nil, nil, err
		}
		want[info.Ref.Path] = true
	}
	return want, committed, nil
}

// worstOf gives the first error that is damage, or the first; nil for none.
func worstOf(errs []error) error {
	for _, err := range errs {
		if statusOf(err) == statusDamaged {
			return err
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// verdict says how many are damaged, or not to be read where nothing worse is known.
func verdict(n int, of string, worst error) error {
	if statusOf(worst) == statusUnreadable {
		return fault.Stopf(fault.CheckpointDir, "%d of %s cannot be read: %w", n, of, worst)
	}
	return fault.Stopf(fault.Corrupt, "%d of %s damaged: %w", n, of, worst)
}
