package processor

import "github.com/millweir/millweir/engine/restart"

// Gap is a setting that is read and checked, but that the process does not obey yet. It is refused where it asks for
// something else than what the process does.
type Gap struct {
	// Setting is the dotted name; with .* at the end all settings below it are meant.
	Setting string
	// Accepts is the single value that is accepted, as the service file writes it; "default" = that of the table of
	// settings; "" = none, the setting must be left out.
	Accepts string
	// Refuses is the single value that is refused, all others being obeyed. Accepts is "" then.
	Refuses string

	asked func(Config) bool // of a Config with its defaults: something else is wanted
}

// notYet is the only list of them. A line goes when the engine obeys the setting; nothing else has to change, but
// docs/settings.md is to be made anew.
var notYet = []Gap{
	{Setting: "checkpointing.interval", Refuses: "disabled", asked: func(c Config) bool { return c.DisabledCheckpoints }},
	{Setting: "checkpointing.mode", Accepts: "default", asked: func(c Config) bool { return c.Mode != ExactlyOnce }},
	{Setting: "checkpointing.max-concurrent", Accepts: "default", asked: func(c Config) bool { return c.MaxConcurrent != 1 }},
	{Setting: "checkpointing.tolerable-failures", Accepts: "default", asked: func(c Config) bool { return c.TolerableFailures != 0 }},
	{Setting: "checkpointing.unaligned", Accepts: "default", asked: func(c Config) bool { return c.Unaligned }},
	{Setting: "checkpointing.aligned-timeout", Accepts: "default", asked: func(c Config) bool { return c.AlignedTimeout != 0 }},
	{Setting: "checkpointing.retention", Accepts: "default", asked: func(c Config) bool { return c.Retention != RetainOnCancellation }},
	{Setting: "checkpointing.prefer-checkpoint-for-recovery", Accepts: "default", asked: func(c Config) bool { return c.PreferCheckpointForRecovery }},
	{Setting: "checkpointing.force", Accepts: "default", asked: func(c Config) bool { return c.ForceIterations }},
	{Setting: "state.backend.async", Accepts: "default", asked: func(c Config) bool { return c.SyncSnapshots }},
	{Setting: "state.backend.incremental", Accepts: "default", asked: func(c Config) bool { return c.FullSnapshots }},
	{Setting: "state.backend.fs.memory-threshold", asked: func(c Config) bool { return c.MemoryThreshold != 20<<10 }},
	{Setting: "state.backend.fs.write-buffer-size", asked: func(c Config) bool { return c.WriteBufferSize != 4096 }},
	{Setting: "state.backend.memory-limit", asked: func(c Config) bool { return c.MemoryLimit != 256<<20 }},
	{Setting: "state.savepoints.dir", asked: func(c Config) bool { return c.SavepointsDir != "" }},
	{Setting: "restart-strategy.same-record-failures", asked: func(c Config) bool { return c.Restart.SameRecord != 10 }},
	{Setting: "restart-strategy.*", Accepts: "default", asked: func(c Config) bool {
		c.Restart.SameRecord = 0
		return c.Restart.WithDefaults() != restart.Config{}.WithDefaults()
	}},
}

// Gaps gives the settings that the process does not obey yet.
func Gaps() []Gap { return append([]Gap(nil), notYet...) }
