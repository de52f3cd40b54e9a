package snapshot

import (
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// flying is a record in flight as tests write it.
type flying struct {
	group int
	data  string
}

// subtask is one of a stage behind an exchange.
func subtask(i int) element.TaskID { return element.TaskID{Source: "by-user", Partition: int32(i)} }

func inFlightOf(recs ...flying) func(func(int, []byte) error) error {
	return func(add func(int, []byte) error) error {
		for _, r := range recs {
			if err := add(r.group, []byte(r.data)); err != nil {
				return err
			}
		}
		return nil
	}
}

func restoreFlying(t require.TestingT, r *Repository, e TaskEntry, keep func(int) bool) []flying {
	var out []flying
	n, err := r.RestoreInFlight(ctx, e, keep, func(group int, data []byte) error {
		out = append(out, flying{group, string(data)})
		return nil
	})
	require.NoError(t, err)
	require.EqualValues(t, len(out), n)
	return out
}
