//go:build unix

package integration

import (
	"testing"
)

func TestRefusedSameDataDirectory(t *testing.T) {
	t.Parallel()
	s := embeddedSite(t, 2)
	file := s.file(totals)
	s.orders(0, 500, 50)
	first := s.run(file)
	s.caughtUp(first)
	refused(t, s.run(file), 40, "data directory "+s.dir+" is in use by another process")
	s.orders(500, 500, 50)
	s.caughtUp(first)
	first.stop()
	s.goesOn(file)
}
