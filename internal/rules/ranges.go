package rules

import (
	"fmt"
	"strconv"
	"time"

	"github.com/millweir/millweir/internal/yamlx"
)

// Unit says what the figures of a range count.
type Unit uint8

// The units.
const (
	Count Unit = iota
	Millis
	Bytes
	Fraction
)

// Range is what a figure may be, both ends included.
type Range struct {
	Unit     Unit
	Min, Max float64
}

const (
	second = 1000.0
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour

	kb = 1024.0
	mb = 1024 * kb
	gb = 1024 * mb
)

var ranges = map[string]Range{
	"checkpointing.interval":             {Millis, 10, hour},
	"checkpointing.timeout":              {Millis, 100, day},
	"checkpointing.min-pause":            {Millis, 0, day},
	"checkpointing.max-concurrent":       {Count, 1, 64},
	"checkpointing.tolerable-failures":   {Count, 0, 1_000_000},
	"checkpointing.aligned-timeout":      {Millis, 0, hour},
	"state.backend.fs.memory-threshold":  {Bytes, 0, mb},
	"state.backend.fs.write-buffer-size": {Bytes, kb, 64 * mb},
	"state.backend.memory-limit":         {Bytes, mb, 1024 * gb},
	"state.checkpoints.num-retained":     {Count, 1, 1000},
	"state.uncommitted-limit":            {Bytes, mb, 16 * gb},
	"transaction.timeout":                {Millis, second, day},
	"group.session-timeout":              {Millis, second, day},
	"sink.hold-back-limit":               {Bytes, mb, 16 * gb},
	"shutdown.timeout":                   {Millis, second, hour},

	"restart-strategy.same-record-failures":                            {Count, 2, 1_000_000},
	"restart-strategy.exponential-delay.initial-backoff":               {Millis, 1, day},
	"restart-strategy.exponential-delay.max-backoff":                   {Millis, 1, day},
	"restart-strategy.exponential-delay.backoff-multiplier":            {Fraction, 1, 100},
	"restart-strategy.exponential-delay.reset-backoff-threshold":       {Millis, 1, 30 * day},
	"restart-strategy.exponential-delay.jitter-factor":                 {Fraction, 0, 1},
	"restart-strategy.exponential-delay.attempts-before-reset-backoff": {Count, 1, 1_000_000},
	"restart-strategy.fixed-delay.attempts":                            {Count, 1, 1_000_000},
	"restart-strategy.fixed-delay.delay":                               {Millis, 1, day},
	"restart-strategy.failure-rate.max-failures-per-interval":          {Count, 1, 10_000},
	"restart-strategy.failure-rate.failure-rate-interval":              {Millis, 1, 30 * day},
	"restart-strategy.failure-rate.delay":                              {Millis, 1, day},
}

// Of gives the range of a setting; ok is false when it has none.
func Of(path string) (r Range, ok bool) {
	r, ok = ranges[path]
	return r, ok
}

// Paths gives the settings that have a range, in no order.
func Paths() []string {
	out := make([]string, 0, len(ranges))
	for p := range ranges {
		out = append(out, p)
	}
	return out
}

// Check gives what is wrong with a value of the setting at path, in the unit of its range. A setting without a range
// takes every value.
func Check(path string, value float64) string {
	r, ok := ranges[path]
	if !ok || value >= r.Min && value <= r.Max {
		return ""
	}
	return fmt.Sprintf("%s is out of range: from %s to %s", r.Show(value), r.Show(r.Min), r.Show(r.Max))
}

// Show writes a figure of the range as the service file does.
func (r Range) Show(value float64) string {
	switch r.Unit {
	case Millis:
		return Duration(time.Duration(value * float64(time.Millisecond)))
	case Bytes:
		return Size(int64(value))
	}
	return strconv.FormatFloat(value, 'f', -1, 64)
}

// Duration writes d as the service file does, and by Go's rules when the file could not have it: below 0, or not whole
// milliseconds.
func Duration(d time.Duration) string {
	if d < 0 || d%time.Millisecond != 0 {
		return d.String()
	}
	return yamlx.FormatDuration(d)
}

// Size writes a number of bytes as the service file does.
func Size(v int64) string {
	if v < 0 {
		return strconv.FormatInt(v, 10)
	}
	return yamlx.FormatSize(v)
}

// MillisOf gives a duration as a figure of a range in milliseconds.
func MillisOf(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
