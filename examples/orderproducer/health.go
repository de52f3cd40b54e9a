package main

import (
	"fmt"
	"os"
	"time"
)

// pulse is a file that is touched while orders are acknowledged: what a health check in another process can look at, with
// nothing but this program in the image.
type pulse struct {
	file string // none when empty
	last time.Time
	seen int
}

// pulseEvery is the least time between two touches.
const pulseEvery = time.Second

// start removes what an earlier run has left.
func (p *pulse) start() error {
	if p.file == "" {
		return nil
	}
	if err := os.Remove(p.file); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("-health: %w", err)
	}
	return nil
}

// beat touches the file when more orders are acknowledged than at the last touch.
func (p *pulse) beat(acked int, now time.Time) error {
	if p.file == "" || acked == p.seen || now.Sub(p.last) < pulseEvery {
		return nil
	}
	if err := os.WriteFile(p.file, fmt.Appendln(nil, acked), 0o600); err != nil {
		return fmt.Errorf("-health: %w", err)
	}
	p.last, p.seen = now, acked
	return nil
}

// check fails unless the file was touched within a time.
func (p *pulse) check(within time.Duration, now time.Time) error {
	info, err := os.Stat(p.file)
	switch {
	case os.IsNotExist(err):
		return fmt.Errorf("no order was acknowledged so far: there is no %s", p.file)
	case err != nil:
		return err
	case now.Sub(info.ModTime()) > within:
		return fmt.Errorf("no order was acknowledged for %s", now.Sub(info.ModTime()).Round(time.Millisecond))
	}
	return nil
}
