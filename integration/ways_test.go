//go:build unix

package integration

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
)

// What a message names as a way to begin empty leads there, also where the group still has offsets of other partitions,
// whose handles name the directory.
func TestTheWayToBeginEmpty(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 2).impatient()
	file := worked(s)
	set := kadm.TopicsSet{}
	set.Add(s.in, 1)
	got, err := s.adm.DeleteOffsets(s.ctx, s.app, set)
	require.NoError(t, err)
	require.NoError(t, got.Error())
	refused(t, s.run(file), 21, "move the checkpoint directory away and delete the group's offsets to start empty")
	require.NoError(t, os.Rename(s.checkpoints(), s.checkpoints()+"-away"))
	s.deleteOffsets()
	job := s.run(file)
	job.await("msg=processing")
	s.caughtUp(job)
	job.stop()

	// The directory is lost, with all that the offsets name, also where they are met by a partition that was added.
	require.NoError(t, os.RemoveAll(s.checkpoints()))
	lost := "where it is lost, reset the application, or start under another application name"
	refused(t, s.run(file), 21, "state.checkpoints.dir", lost)
	_, err = s.adm.CreatePartitions(s.ctx, 1, s.in)
	require.NoError(t, err)
	s.parts++
	refused(t, s.run(file), 21, "the checkpoints of "+s.in, "state.checkpoints.dir", lost)
	reset := startProcess(t, processorBinary(t), []string{"reset", file, "--yes"})
	require.Zero(t, reset.exit(s.session*20), reset.stderr.String())
	job = s.run(file)
	job.await("msg=processing")
	s.caughtUp(job)
	job.stop()
}
