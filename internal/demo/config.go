package demo

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/fault"
)

// Sabotage is a fault that can be planted into the job, to see that the check finds it.
type Sabotage struct {
	Name string
	Help string // one line
}

// Sabotages are those that the hidden command demo-job knows. The command sets the list: the faults themselves are
// decorators of engine interfaces, which this package does not know.
var Sabotages []Sabotage

// Config says how the demo runs. The zero value of each field means its default.
type Config struct {
	Dir      string        // for all files; must be empty or absent. Default: a temporary one, removed after success or when ctx ends
	Brokers  []string      // a real Kafka; default: the embedded broker
	Seed     uint64        // default: drawn
	Rate     int           // orders per second; default 12000
	Kills    int           // default 5; -1 for none
	Duration time.Duration // of the stream of orders; default 40 s
	Sabotage string        // name of a planted fault

	Plain bool      // lines instead of the view in place
	Quiet bool      // nothing but the result (which the caller prints)
	Out   io.Writer // of the view

	// Command makes the job's process; default DefaultCommand. Its Dir, Env and output are set by it.
	Command func(Job) (*exec.Cmd, error)
	// Topology is the service file; default the built-in example. Its names must be the example's.
	Topology []byte
	// Checkpoint reads the number of a checkpoint out of the metadata of a committed offset; nil = not shown.
	Checkpoint func(metadata string) (uint64, bool)
	// Stall ends waits without progress: for the first output after a start, and for the last ones. Default 20 s.
	Stall time.Duration
}

const (
	defaultRate     = 12_000
	defaultKills    = 5
	defaultDuration = 40 * time.Second
	defaultStall    = 20 * time.Second
	maxRate         = 1_000_000
	maxKills        = 100
)

func (c *Config) defaults() error {
	for _, n := range []struct {
		field *int
		value int
	}{{&c.Rate, defaultRate}, {&c.Kills, defaultKills}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Duration, defaultDuration}, {&c.Stall, defaultStall}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	if c.Command == nil {
		c.Command = DefaultCommand
	}
	c.Kills = max(c.Kills, 0)
	switch {
	case c.Rate < 1 || c.Rate > maxRate:
		return fault.Stopf(fault.Usage, "a rate of %d orders per second is not in 1…%d", c.Rate, maxRate)
	case c.Kills > maxKills:
		return fault.Stopf(fault.Usage, "%d kills are more than %d", c.Kills, maxKills)
	case c.Duration < 0:
		return fault.Stopf(fault.Usage, "the duration %v is negative", c.Duration)
	case c.Kills > 0 && c.Duration/time.Duration(c.Kills) < 500*time.Millisecond:
		return fault.Stopf(fault.Usage, "%d kills in %v: allow at least 500ms for each", c.Kills, c.Duration)
	}
	return c.checkSabotage()
}

func (c *Config) checkSabotage() error {
	if c.Sabotage == "" {
		return nil
	}
	var names []string
	for _, s := range Sabotages {
		if s.Name == c.Sabotage {
			return nil
		}
		names = append(names, s.Name)
	}
	return fault.Stopf(fault.Usage, "no sabotage is named %q; there are: %s", c.Sabotage, strings.Join(names, ", "))
}

// SabotageHelp lists the faults for a help text, one per line.
func SabotageHelp() string {
	var b strings.Builder
	for _, s := range Sabotages {
		fmt.Fprintf(&b, "  %-14s %s\n", s.Name, s.Help)
	}
	return b.String()
}
