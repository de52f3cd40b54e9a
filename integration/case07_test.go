//go:build unix

package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// narrow gives a site whose output topic takes 1,000 bytes, with 20 inputs, of which the one at offset 7 becomes too large.
func narrow(s *site) {
	s.out += "-narrow"
	s.topic(s.out, map[string]*string{"max.message.bytes": kmsg.StringPtr("1000")})
	for i := range 20 {
		value := fmt.Sprintf("v-%d", i)
		if i == 7 {
			value = "grow"
		}
		s.put(&kgo.Record{Key: fmt.Appendf(nil, "k-%d", i), Value: []byte(value)})
	}
}

// An output that the topic does not take is not tried for ever and is not left out: the service stops, nothing of the
// transaction is seen, and with a raised limit every input has its output once.
func outputTooLarge(s *site) {
	narrow(s)
	for range 2 {
		job := s.job("expand")
		job.await("msg=processing")
		code := job.exit(s.session) // no new attempt could do better, so none is made
		require.Equal(s.t, 30, code, job.stderr.tail(5))
		require.Zero(s.t, job.restarts(), job.stderr.String())
		require.Contains(s.t, job.stderr.tail(1), "max.message.bytes")
		require.Empty(s.t, s.read(s.out))
		require.Zero(s.t, s.committed()[0].At)
	}
	more := "100000"
	_, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &more}}, s.out)
	require.NoError(s.t, err)
	job := s.job("expand")
	s.caughtUp(job)
	job.stop()
	got := s.read(s.out)
	require.Len(s.t, got, 20)
	for i, r := range got {
		require.Equal(s.t, fmt.Sprintf("k-%d", i), string(r.Key))
		if i == 7 {
			require.Len(s.t, r.Value, 5000)
		} else {
			require.Equal(s.t, fmt.Sprintf("v-%d", i), string(r.Value))
		}
	}
}

func TestC07_OutputTooLarge(t *testing.T)     { t.Parallel(); outputTooLarge(fakeSite(t, 1)) }
func TestC07_RealOutputTooLarge(t *testing.T) { outputTooLarge(realSite(t, 1)) }

// The message says which input it was that grew, how large its output is, and what the topic takes.
func tooLargeIsNamed(s *site) {
	narrow(s)
	job := s.job("expand")
	job.await("msg=processing")
	require.Equal(s.t, 30, job.exit(s.session), job.stderr.tail(5))
	last := job.stderr.tail(1)
	require.Contains(s.t, last, "in-0, offset 7")
	require.Regexp(s.t, `\b50\d\d bytes`, last)
	require.Contains(s.t, last, "at most 1000")
}

func TestC07_OutputTooLargeIsNamed(t *testing.T)     { t.Parallel(); tooLargeIsNamed(fakeSite(t, 1)) }
func TestC07_RealOutputTooLargeIsNamed(t *testing.T) { tooLargeIsNamed(realSite(t, 1)) }

// Outputs that are small enough each are not refused for the size of the batch they come in.
func smallOutputsFit(s *site) {
	s.out += "-narrow"
	s.topic(s.out, map[string]*string{"max.message.bytes": kmsg.StringPtr("1000")})
	var recs []*kgo.Record
	for i := range 500 {
		recs = append(recs, &kgo.Record{Key: fmt.Appendf(nil, "k-%d", i), Value: fmt.Appendf(nil, "value %d", i*i*7919)})
	}
	s.put(recs...)
	job := s.job("expand")
	s.caughtUp(job)
	job.stop()
	require.Len(s.t, s.read(s.out), len(recs))
}

func TestC07_SmallOutputsFitIntoANarrowTopic(t *testing.T) {
	t.Parallel()
	smallOutputsFit(fakeSite(t, 1))
}
func TestC07_RealSmallOutputsFitIntoANarrowTopic(t *testing.T) { smallOutputsFit(realSite(t, 1)) }
