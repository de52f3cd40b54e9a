package txn

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
)

// Who has a transaction open when they are listed, and is gone after that, is fenced. Nobody else is, also not one that
// joins and begins while it is looked who lives.
func TestOnlyWhoIsGoneIsFenced(t *testing.T) {
	e := newEnv(t)
	successor := e.manager()
	other := e.manager(func(c *Config) { c.Instance = "i2" })
	late := e.manager(func(c *Config) { c.Instance = "i3" })
	known := []string{"i1", "i2", "i3"}
	fence := func(living func() []string) []string {
		ids, err := successor.FenceGone(e.ctx, known, func(context.Context) ([]string, error) { return living(), nil })
		require.NoError(t, err)
		return ids
	}
	asked := 0
	require.Empty(t, fence(func() []string { asked++; return nil }))
	require.Zero(t, asked, "nothing is open: there is nothing to ask")

	e.produce(other, "1")
	require.NoError(t, other.current().cl.Flush(e.ctx))
	require.Empty(t, fence(func() []string { return []string{"i2"} }), "it lives")
	require.NoError(t, e.checkpoint(other, 1, "2"))

	e.produce(other, "3")
	require.NoError(t, other.current().cl.Flush(e.ctx))
	slot := other.machine.Current()
	require.Equal(t, []string{TransactionalID(e.group, "i2", slot)}, fence(func() []string {
		e.produce(late, "4") // it joined after the members were listed
		require.NoError(t, late.current().cl.Flush(e.ctx))
		return nil
	}))
	err := e.checkpoint(other, 2, "5")
	require.Equal(t, fault.Rejoin, fault.RecoveryOf(err), "%v", err)
	require.NoError(t, e.checkpoint(late, 2, "6"))
	require.ElementsMatch(t, []string{"1", "2", "4", "6"}, e.read(e.out))
}

// One that comes back while another one's transaction is being ended keeps its own.
func TestWhoLivesIsAskedBeforeEachFence(t *testing.T) {
	e := newEnv(t)
	successor := e.manager()
	other := e.manager(func(c *Config) { c.Instance = "i2" })
	back := e.manager(func(c *Config) { c.Instance = "i3" })
	for _, m := range []*Manager{other, back} {
		e.produce(m, m.cfg.Instance)
		require.NoError(t, m.current().cl.Flush(e.ctx))
	}
	slot := other.machine.Current()
	asked := 0
	ids, err := successor.FenceGone(e.ctx, []string{"i1", "i2", "i3"}, func(context.Context) ([]string, error) {
		if asked++; asked > 1 {
			return []string{"i3"}, nil
		}
		return nil, nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{TransactionalID(e.group, "i2", slot)}, ids)
	require.NoError(t, e.checkpoint(back, 1, "1"))
	require.ElementsMatch(t, []string{"i3", "1"}, e.read(e.out))
}

// What an instance with transactions has left open holds up readers, and the stable read of a successor without: that one ends
// it, too.
func TestPlainEndsWhatIsLeftByInstancesThatAreGone(t *testing.T) {
	e := newEnv(t)
	successor := e.plain()
	other := e.manager(func(c *Config) { c.Instance = "i2" })
	require.NoError(t, e.checkpoint(other, 1, "one"))
	e.produce(other, "of the dead")
	require.NoError(t, other.current().cl.Flush(e.ctx))
	fence := func(living ...string) []string {
		ids, err := successor.FenceGone(e.ctx, []string{"i1", "i2"}, func(context.Context) ([]string, error) { return living, nil })
		require.NoError(t, err)
		return ids
	}
	require.Empty(t, fence("i2"), "it lives")
	require.Equal(t, []string{TransactionalID(e.group, "i2", other.machine.Current())}, fence())
	require.NoError(t, e.plainCheckpoint(successor, 2, "two"))
	require.ElementsMatch(t, []string{"one", "two"}, e.read(e.out), "read fails if the transaction is still open")
	e.requireCommitted(2)
}
