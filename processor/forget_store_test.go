package processor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/vfs"
	"github.com/millweir/millweir/snapshot"
)

// openings counts what is opened of a storage.
type openings struct {
	snapshot.Storage
	n int
}

func (o *openings) Open(ctx context.Context, name string) (snapshot.Object, error) {
	o.n++
	return o.Storage.Open(ctx, name)
}

// Whether a directory is the one of the committed handles is asked of it once, not for each of the partitions, and not at all
// where no handle names a checkpoint.
func TestTheStoreIsAskedOnceForItsID(t *testing.T) {
	mem := snapshot.NewLocal(vfs.NewMem(), "mem")
	repo, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Storage: mem, Application: "app", Instance: "i1", NumRetained: 1})
	require.NoError(t, err)
	defer repo.Close()
	st := &openings{Storage: mem}
	same := func(committed map[element.TopicPartition]kafka.Committed) error {
		_, err := sameStore(t.Context(), st, committed)
		return err
	}
	require.NoError(t, same(map[element.TopicPartition]kafka.Committed{{Topic: "in"}: {Found: true}}))
	require.Zero(t, st.n)
	kind := snapshot.HandleCheckpoint
	of := func(id string) map[element.TopicPartition]kafka.Committed {
		out := map[element.TopicPartition]kafka.Committed{}
		for p := range int32(50) {
			name := element.CheckpointName{ID: 1, Incarnation: 1}
			root := snapshot.RootRef{Name: name}
			if kind == snapshot.HandleCheckpoint {
				root.Path = "app/i1/chk-" + name.String() + ".root"
			}
			text, err := snapshot.Handle{Kind: kind, StoreID: id, Root: root}.Encode()
			require.NoError(t, err)
			out[element.TopicPartition{Topic: "in", Partition: p}] = kafka.Committed{Found: true, Metadata: text}
		}
		return out
	}
	require.NoError(t, same(of(repo.StoreID())))
	require.Equal(t, 1, st.n)
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(same(of("another"))))
	kind = snapshot.HandleEmpty // what a cancel has left says whose the files are
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(same(of("another"))))
}
