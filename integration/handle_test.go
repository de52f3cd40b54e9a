//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/verify"
)

// worked is a site whose service has run and stopped, with more input waiting.
func worked(s *site) (file string) {
	s.t.Helper()
	file = s.file(totals)
	s.orders(0, 1000, 50)
	s.goesOn(file)
	s.orders(1000, 500, 50)
	return file
}

// commit does what another tool does that sets the group's offsets. The group takes it when it has no member any more.
func (s *site) commit(p int32, at int64, metadata string) {
	s.t.Helper()
	o := kadm.Offsets{}
	o.Add(kadm.Offset{Topic: s.in, Partition: p, At: at, LeaderEpoch: -1, Metadata: metadata})
	var err error
	require.Eventually(s.t, func() bool {
		err = s.adm.CommitAllOffsets(s.ctx, s.app, o)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "%v", &err)
}

func (s *site) deleteOffsets() {
	s.t.Helper()
	set := kadm.TopicsSet{}
	for p := range s.parts {
		set.Add(s.in, p)
	}
	got, err := s.adm.DeleteOffsets(s.ctx, s.app, set)
	require.NoError(s.t, err)
	require.NoError(s.t, got.Error())
}

// untouched wants that a refusal has changed neither files nor offsets nor output.
func (s *site) untouched(refusal func()) {
	s.t.Helper()
	files, offsets := s.files(), s.committed()
	ends, _ := s.ends(s.out)
	refusal()
	require.Equal(s.t, files, s.files())
	require.Equal(s.t, offsets, s.committed())
	after, _ := s.ends(s.out)
	require.Equal(s.t, ends, after)
}

// Offsets that other tools have set are refused, each with what is wrong; put back, all goes on.
func changedOffsets(s *site) {
	file := worked(s)
	good := s.committed()[1]
	back := func() { s.commit(1, good.At, good.Metadata) }

	s.commit(1, good.At-5, good.Metadata)
	s.untouched(func() { refused(s.t, s.run(file), 21, s.in+"/1", "another tool moved it; set it back") })
	s.commit(1, good.At+5, good.Metadata)
	s.untouched(func() { refused(s.t, s.run(file), 21, s.in+"/1", "another tool moved it; set it back") })
	s.commit(1, good.At, "")
	s.untouched(func() { refused(s.t, s.run(file), 21, "was not written by a checkpoint") })
	s.commit(1, good.At, "moved by a consumer")
	s.untouched(func() { refused(s.t, s.run(file), 21, "was not written by a checkpoint") })
	s.commit(1, good.At, good.Metadata[:len(good.Metadata)-3]+"abc")
	s.untouched(func() { refused(s.t, s.run(file), 21, "cannot be read") })
	s.commit(1, s.committed()[0].At, s.committed()[0].Metadata)
	s.untouched(func() { refused(s.t, s.run(file), 21, "carries the handle of partition 0") })
	back()
	s.goesOn(file)

	// All offsets gone, as after the retention of an idle group: the checkpoints tell that there was something.
	saved := s.committed()
	s.deleteOffsets()
	s.untouched(func() {
		refused(s.t, s.run(file), 21, "has no committed offset, but checkpoint ", "in the store holds the task")
	})
	for p, o := range saved {
		s.commit(p, o.At, o.Metadata)
	}
	s.orders(1500, 100, 50)
	s.goesOn(file)
}

func TestRefusedChangedOffsets(t *testing.T) {
	t.Parallel()
	changedOffsets(fakeSite(t, 2).impatient())
}
func TestRealRefusedChangedOffsets(t *testing.T) { changedOffsets(realSite(t, 2).impatient()) }

func TestRefusedOtherDirectory(t *testing.T) {
	s := embeddedSite(t, 2)
	file := worked(s)
	aside := s.checkpoints() + ".aside"
	require.NoError(t, os.Rename(s.checkpoints(), aside))
	offsets := s.committed()
	refused(t, s.run(file), 21, "belongs to a checkpoint directory with store id ", "set state.checkpoints.dir")
	refused(t, s.run(file, "--set", "state.checkpoints.dir="+filepath.Join(t.TempDir(), "other")), 21, "set state.checkpoints.dir")
	require.Equal(t, offsets, s.committed())
	s.goesOn(file, "--set", "state.checkpoints.dir="+aside)
}

// A topic that was deleted and made again has other records under the same offsets.
func recreatedTopic(s *site) {
	file := worked(s)
	_, err := s.adm.DeleteTopics(s.ctx, s.in)
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool {
		_, err := s.adm.CreateTopic(s.ctx, s.parts, 1, nil, s.in)
		return err == nil
	}, 20*time.Second, 100*time.Millisecond)
	require.Eventually(s.t, func() bool { // Kafka takes a moment to drop the offsets of the old topic; kfake keeps them
		details, err := s.adm.ListTopics(s.ctx, s.in)
		return err == nil && details[s.in].Err == nil && len(details[s.in].Partitions) == int(s.parts)
	}, 20*time.Second, 50*time.Millisecond)
	s.untouched(func() { refused(s.t, s.run(file), 21, "it was deleted and created again", "--allow-dropped-state") })
	// Wanted: the old state and its offsets go, the output too, and all begins anew.
	if len(s.committed()) > 0 {
		s.deleteOffsets()
	}
	s.cl.PurgeTopicsFromClient(s.in)
	s.out += "-anew"
	s.topic(s.out, nil)
	s.orders(0, 300, 20)
	s.goesOn(s.file(totals), "--allow-dropped-state")
	require.EqualValues(s.t, 270, s.exact(verify.Config{}).RecordsOut)
}

func TestRefusedRecreatedTopic(t *testing.T)     { recreatedTopic(embeddedSite(t, 2)) }
func TestRealRefusedRecreatedTopic(t *testing.T) { recreatedTopic(realSite(t, 2)) }
