package processor

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
)

// Mistake is one thing that is wrong with a Config.
type Mistake struct {
	// Setting is the dotted name that the service file has for it.
	Setting string
	// Text says what is wrong, to be read behind the name.
	Text string
}

// String gives the mistake as one line.
func (m Mistake) String() string { return m.Setting + ": " + m.Text }

// mistakes collects.
type mistakes []Mistake

func (ms *mistakes) add(setting, format string, args ...any) {
	*ms = append(*ms, Mistake{setting, fmt.Sprintf(format, args...)})
}

// form adds what a check of package rules has against a text.
func (ms *mistakes) form(setting, value, text string) {
	if text != "" {
		ms.add(setting, "%q %s", value, text)
	}
}

// Check gives every mistake of the settings, each on its own and what does not fit together. It is the one check for
// the service file and for a Config that a program has filled in.
func (c Config) Check() []Mistake {
	var ms mistakes
	c = c.withDefaults()
	c.checkForms(&ms)
	c.checkFigures(&ms)
	c.checkFrom(&ms)
	if len(ms) == 0 {
		c.checkTogether(&ms)
	}
	for _, p := range c.Restart.Check() {
		ms.add("restart-strategy."+p.Option, "%s", p.Text)
	}
	return ms
}

// checkForms checks what is text.
func (c Config) checkForms(ms *mistakes) {
	if len(c.Brokers) == 0 {
		ms.add("kafka.brokers", "no broker is given")
	}
	for _, b := range c.Brokers {
		ms.form("kafka.brokers", b, rules.Broker(b))
	}
	ms.form("data-dir", c.DataDir, rules.Path(c.DataDir))
	c.checkAdmin(ms)
	if c.Storage == nil {
		ms.form("state.checkpoints.dir", c.CheckpointsDir, rules.Path(c.CheckpointsDir))
	}
	ms.form("state.savepoints.dir", c.SavepointsDir, rules.Path(c.SavepointsDir))
	seen := map[string]bool{}
	for _, d := range c.LocalDirs {
		ms.form("state.local.root-dirs", d, rules.Path(d))
		if seen[filepath.Clean(d)] {
			ms.add("state.local.root-dirs", "%q is named twice", d)
		}
		seen[filepath.Clean(d)] = true
	}
	if c.InstanceID != "" {
		ms.form("instance.id", c.InstanceID, rules.Name(c.InstanceID))
	}
	word(ms, "state.backend", c.Backend, Badger, Memory)
	word(ms, "checkpointing.mode", c.Mode, ExactlyOnce, AtLeastOnce)
	word(ms, "checkpointing.retention", c.Retention, RetainOnCancellation, DeleteOnCancellation)
}

func word[T ~string](ms *mistakes, setting string, got, a, b T) {
	if got != a && got != b {
		ms.add(setting, "unknown value %q; allowed: %s, %s", string(got), string(a), string(b))
	}
}

// checkAdmin checks the listener. Without a token only this machine may reach it.
func (c Config) checkAdmin(ms *mistakes) {
	if c.AdminToken != "" {
		if text := rules.Token(c.AdminToken); text != "" {
			ms.add("admin.token", "the value %s", text)
		}
	}
	if c.AdminListen == "" {
		return
	}
	if text := rules.Listen(c.AdminListen); text != "" {
		ms.form("admin.listen", c.AdminListen, text)
	} else if c.AdminToken == "" && c.AdminListen != rules.Off && !admin.Loopback(c.AdminListen) {
		ms.add("admin.listen", "%s can be reached from other machines: set admin.token, or listen on 127.0.0.1", c.AdminListen)
	}
}

// checkFigures checks what has a range.
func (c Config) checkFigures(ms *mistakes) {
	for _, f := range []struct {
		setting string
		value   float64
	}{
		{"checkpointing.interval", rules.MillisOf(c.Interval)},
		{"checkpointing.timeout", rules.MillisOf(c.CheckpointTimeout)},
		{"checkpointing.min-pause", rules.MillisOf(c.MinPause)},
		{"checkpointing.max-concurrent", float64(c.MaxConcurrent)},
		{"checkpointing.tolerable-failures", float64(max(c.TolerableFailures, 0))},
		{"checkpointing.aligned-timeout", rules.MillisOf(c.AlignedTimeout)},
		{"state.backend.fs.memory-threshold", float64(c.inlineBelow())},
		{"state.backend.fs.write-buffer-size", float64(c.WriteBufferSize)},
		{"state.backend.memory-limit", float64(c.MemoryLimit)},
		{"state.checkpoints.num-retained", float64(c.RetainedCheckpoints)},
		{"state.uncommitted-limit", float64(c.UncommittedLimit)},
		{"group.session-timeout", rules.MillisOf(c.SessionTimeout)},
		{"sink.hold-back-limit", float64(c.HoldBackLimit)},
		{"shutdown.timeout", rules.MillisOf(c.ShutdownTimeout)},
	} {
		if text := rules.Check(f.setting, f.value); text != "" {
			ms.add(f.setting, "%s", text)
		}
	}
	c.checkTransactionTimeout(ms)
}

// checkTransactionTimeout checks the range of the timeout, which has no effect without transactions. One that is derived says
// from what.
func (c Config) checkTransactionTimeout(ms *mistakes) {
	const setting = "transaction.timeout"
	text := rules.Check(setting, rules.MillisOf(c.TransactionTimeout))
	switch {
	case text == "" || c.loose():
	case c.TransactionTimeout == minTransactionTimeout(c.Interval, c.MinPause, c.CheckpointTimeout):
		ms.add(setting, "%s; it is %s", text, c.transactionParts())
	default:
		ms.add(setting, "%s", text)
	}
}

// transactionParts says what the least transaction timeout is made of.
func (c Config) transactionParts() string {
	return fmt.Sprintf("the larger of checkpointing.interval (%s) and checkpointing.min-pause (%s), plus checkpointing.timeout (%s), plus %s",
		rules.Duration(c.Interval), rules.Duration(c.MinPause), rules.Duration(c.CheckpointTimeout), rules.Duration(transactionReserve))
}

// checkTogether checks what excludes each other, with both values in the message. Without checkpoints none of it has an
// effect, and Ignored names it.
func (c Config) checkTogether(ms *mistakes) {
	if c.DisabledCheckpoints {
		return
	}
	if c.Unaligned && c.Mode == AtLeastOnce {
		ms.add("checkpointing.unaligned", "true excludes checkpointing.mode at-least-once, where barriers wait for nothing; set the mode to exactly-once, or unaligned to false")
	}
	if c.Unaligned && c.MaxConcurrent > 1 {
		ms.add("checkpointing.unaligned", "true excludes checkpointing.max-concurrent %d: unaligned checkpoints are taken one at a time; set max-concurrent to 1, or unaligned to false", c.MaxConcurrent)
	}
	if c.AlignedTimeout > 0 && !c.Unaligned {
		ms.add("checkpointing.aligned-timeout", "%s has no effect with checkpointing.unaligned false; set unaligned to true, or leave aligned-timeout out", rules.Duration(c.AlignedTimeout))
	}
	if c.MinPause > 0 && c.MaxConcurrent > 1 {
		ms.add("checkpointing.min-pause", "%s excludes checkpointing.max-concurrent %d: a pause between checkpoints means one at a time; set max-concurrent to 1, or min-pause to 0s", rules.Duration(c.MinPause), c.MaxConcurrent)
	}
	if least := minTransactionTimeout(c.Interval, c.MinPause, c.CheckpointTimeout); c.Mode == ExactlyOnce && c.TransactionTimeout < least {
		ms.add("transaction.timeout", "%s is too short: %s needs at least %s", rules.Duration(c.TransactionTimeout), c.transactionParts(), rules.Duration(least))
	}
}

// validate reports every mistake at once, and what the process does not obey yet.
func (c Config) validate() error {
	var errs []error
	for _, m := range c.Check() {
		errs = append(errs, errors.New(m.String()))
	}
	for _, g := range notYet {
		if g.asked(c.withDefaults()) {
			errs = append(errs, fmt.Errorf("%s: not available yet; leave it out", g.Setting))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fault.Stopf(fault.BadFile, "configuration: %w", err)
	}
	return nil
}
