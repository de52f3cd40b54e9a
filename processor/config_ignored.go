package processor

import (
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/topology"
)

// Ignored names the settings that were changed from their defaults and have no effect with the chosen backend and mode: one
// line each, for the log of the start. The configuration has passed Check.
func Ignored(c Config) []string {
	def := Config{DataDir: c.DataDir, Interval: c.Interval, MinPause: c.MinPause, CheckpointTimeout: c.CheckpointTimeout}.withDefaults()
	c = c.withDefaults()
	var out []string
	note := func(changed bool, setting string, value any, why string) {
		if changed {
			out = append(out, fmt.Sprintf("%s %v: %s", setting, value, why))
		}
	}
	switch {
	case c.DisabledCheckpoints:
		ignoredWithout(c, def, note)
	case c.Mode == AtLeastOnce:
		const why = "checkpointing.mode at-least-once uses no transactions and holds no output back"
		note(c.TransactionTimeout != def.TransactionTimeout, "transaction.timeout", rules.Duration(c.TransactionTimeout), why)
		note(c.HoldBackLimit != def.HoldBackLimit, "sink.hold-back-limit", rules.Size(c.HoldBackLimit), why)
	}
	if !c.DisabledCheckpoints {
		note(c.WriteBufferSize != def.WriteBufferSize && c.WriteBufferSize < c.inlineBelow(), "state.backend.fs.write-buffer-size", rules.Size(c.WriteBufferSize),
			"state.backend.fs.memory-threshold "+rules.Size(c.inlineBelow())+" is larger and counts")
	}
	if c.Backend == Memory {
		const why = "state.backend memory keeps no local copy"
		note(!slices.Equal(c.LocalDirs, def.LocalDirs), "state.local.root-dirs", c.LocalDirs, why)
		note(c.MemoryLimit != def.MemoryLimit, "state.backend.memory-limit", rules.Size(c.MemoryLimit), "state.backend memory keeps all state in memory")
	}
	return out
}

// ignoredBy names, likewise, what has no effect with a topology.
func ignoredBy(plan *topology.Plan, c Config) []string {
	if c.DisabledCheckpoints || !c.Unaligned || plan.HasExchange() {
		return nil
	}
	const why = "the topology has no exchange, so no barrier waits behind records in a channel"
	out := []string{"checkpointing.unaligned true: " + why}
	if c.AlignedTimeout != 0 {
		out = append(out, "checkpointing.aligned-timeout "+rules.Duration(c.AlignedTimeout)+": "+why)
	}
	return out
}

// Limited says which of the settings have less effect than one may think, likewise: one line each.
func Limited(c Config) []string {
	def := Config{DataDir: c.DataDir}.withDefaults()
	c = c.withDefaults()
	if c.DisabledCheckpoints && c.Storage == nil && c.CheckpointsDir != def.CheckpointsDir {
		return []string{fmt.Sprintf("state.checkpoints.dir %s: checkpointing.interval disabled writes no checkpoints there; what is there is read at the start, which refuses to lose it", c.CheckpointsDir)}
	}
	if !c.DisabledCheckpoints && c.RetainedCheckpoints < c.retained() {
		return []string{fmt.Sprintf("state.checkpoints.num-retained %d: checkpointing.mode at-least-once keeps %d, since the offsets may be those of the last but one", c.RetainedCheckpoints, c.retained())}
	}
	if c.DisabledCheckpoints || c.Mode == AtLeastOnce || c.TolerableFailures == 0 {
		return nil
	}
	// Two timeouts: that of the checkpoint that fails, and that of the one which covers it, after another pause. Both begin
	// somewhat later than they might.
	least := max(c.Interval, c.MinPause) + c.CheckpointTimeout + c.MinPause + c.CheckpointTimeout + time.Second
	if c.TransactionTimeout >= least {
		return nil
	}
	cure := "with " + rules.Duration(least) + " it does"
	if rules.Check("transaction.timeout", rules.MillisOf(least)) != "" {
		cure = "lower checkpointing.timeout, for no transaction.timeout does"
	}
	return []string{fmt.Sprintf("checkpointing.tolerable-failures %s: a checkpoint that times out is not tolerated, since transaction.timeout %s leaves no time for another; %s",
		countOf(c.TolerableFailures), rules.Duration(c.TransactionTimeout), cure)}
}

// Idle names the defaults that have no effect with the chosen backend and mode: nobody need have asked for them.
func Idle(c Config) []string {
	switch {
	case c.NoLocalRecovery:
		return nil
	case c.Backend == Memory:
		return []string{"state.backend.local-recovery true: state.backend memory keeps no local copy"}
	case c.DisabledCheckpoints:
		return []string{"state.backend.local-recovery true: checkpointing.interval disabled keeps no local copy"}
	}
	return nil
}

// ignoredWithout names what has no effect without checkpoints.
func ignoredWithout(c, def Config, note func(changed bool, setting string, value any, why string)) {
	const why = "checkpointing.interval disabled takes no checkpoints"
	note(c.Mode != def.Mode, "checkpointing.mode", c.Mode, why)
	note(c.CheckpointTimeout != Config{}.withDefaults().CheckpointTimeout, "checkpointing.timeout", rules.Duration(c.CheckpointTimeout), why)
	note(c.MinPause != 0, "checkpointing.min-pause", rules.Duration(c.MinPause), why)
	note(c.MaxConcurrent != def.MaxConcurrent, "checkpointing.max-concurrent", c.MaxConcurrent, why)
	note(c.TolerableFailures != 0, "checkpointing.tolerable-failures", countOf(c.TolerableFailures), why)
	note(c.Unaligned, "checkpointing.unaligned", c.Unaligned, why)
	note(c.AlignedTimeout != 0, "checkpointing.aligned-timeout", rules.Duration(c.AlignedTimeout), why)
	note(c.Retention != def.Retention, "checkpointing.retention", c.Retention, why)
	note(c.PreferCheckpointForRecovery, "checkpointing.prefer-checkpoint-for-recovery", true, why)
	note(c.ForceIterations, "checkpointing.force", true, why)
	note(c.SyncSnapshots, "state.backend.async", false, why)
	note(c.FullSnapshots, "state.backend.incremental", false, why)
	note(c.MemoryThreshold != def.MemoryThreshold, "state.backend.fs.memory-threshold", rules.Size(c.inlineBelow()), why)
	note(c.WriteBufferSize != def.WriteBufferSize, "state.backend.fs.write-buffer-size", rules.Size(c.WriteBufferSize), why)
	note(c.RetainedCheckpoints != def.RetainedCheckpoints, "state.checkpoints.num-retained", c.RetainedCheckpoints, why)
	note(c.UncommittedLimit != def.UncommittedLimit, "state.uncommitted-limit", rules.Size(c.UncommittedLimit), why)
	note(c.TransactionTimeout != def.TransactionTimeout, "transaction.timeout", rules.Duration(c.TransactionTimeout), why)
	note(c.HoldBackLimit != def.HoldBackLimit, "sink.hold-back-limit", rules.Size(c.HoldBackLimit), why)
}

func countOf(n int) string {
	if n < 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}
