//go:build unix

package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRefusedDisabledOverState: a start without checkpoints where one holds state changes nothing, unless it may let that go.
// Then it is gone, and who has checkpoints again says why.
func TestRefusedDisabledOverState(t *testing.T) {
	s := embeddedSite(t, 2)
	file, off := s.file(totals), s.file(totals, "interval: {{.Interval}}", "interval: disabled")
	s.orders(0, 500, 50)
	s.goesOn(file)
	s.orders(500, 100, 50)
	before, at := s.files(), s.committed()
	refused(t, s.run(off), 23, "checkpointing.interval is disabled", "tasks orders-0, orders-1", "--allow-dropped-state")
	require.Equal(t, before, s.files())
	require.Equal(t, at, s.committed())
	s.goesOn(file)

	p := s.run(off, "--allow-dropped-state")
	p.await("STATE IS LET GO")
	p.await("msg=processing")
	p.stop()
	p = s.run(file)
	p.await("TASKS BEGIN WITHOUT STATE")
	p.await("msg=processing")
	p.stop()
	require.NotContains(t, p.stderr.String(), "as was committed there")
}

// TestRefusedRenamedSource: the state is another source's, nothing is damaged, and it goes on request.
func TestRefusedRenamedSource(t *testing.T) {
	s := embeddedSite(t, 2)
	s.orders(0, 500, 50)
	s.goesOn(s.file(totals))
	before := s.files()
	renamed := s.file(totals, "orders: {topic", "sales: {topic", "from: orders", "from: sales")
	refused(t, s.run(renamed), 23, "belongs to source orders", "as source sales now", "rename the source back", "--allow-dropped-state")
	refused(t, s.run(s.file(totals, "orders: {topic: {{.In}}", "orders: {topics: [{{.In}}]")), 23, "belongs to source orders", "as source orders."+s.in+" now", "<name>.<topic>")
	require.Equal(t, before, s.files())
	s.goesOn(s.file(totals))
	p := s.run(renamed, "--allow-dropped-state")
	p.await("state is let go, as allowed")
	p.await("msg=processing")
	s.orders(500, 100, 50)
	s.caughtUp(p)
	p.stop()
	p = s.run(renamed) // it is that source's from then on
	p.await("msg=processing")
	p.stop()
}
