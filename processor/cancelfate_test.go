package processor

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// mortal is an instance whose state goes with a cancel. The Taps are on its connections, and on those of the command.
type mortal struct {
	*bed
	app           string
	cfg           Config
	self, command testbed.Tap
	done          chan error
	stop          func() // as SIGTERM
}

func newMortal(t *testing.T, app string) *mortal {
	t.Helper()
	testbed.Alongside(t)
	m := &mortal{bed: newBed(t), app: app, done: make(chan error, 1)}
	m.groups[app] = true
	cfg, o := m.instance("a")
	cfg.Retention, cfg.MemoryThreshold = DeleteOnCancellation, -1
	m.cfg = cfg
	cfg.ClientOptions = []kgo.Opt{m.self.Opt()}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	m.stop = stop
	go func() { m.done <- Run(ctx, countByKey(t, app), cfg) }()
	o.says("/readyz", 200, "processing")
	m.put(100)
	require.Eventually(t, func() bool { return len(m.counts()) >= 100 && m.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NotEmpty(t, m.files())
	m.cfg.ClientOptions = []kgo.Opt{m.command.Opt()}
	return m
}

func (m *mortal) cancel(timeout time.Duration) (Outcome, error) {
	return SendAll(m.t.Context(), m.app, m.cfg, Send{Command: CancelCommand, Timeout: timeout})
}

func (m *mortal) files() []string {
	found, err := filepath.Glob(filepath.Join(m.cfg.CheckpointsDir, m.app, "*", "chk-*"))
	require.NoError(m.t, err)
	return found
}

// ends waits for the instance, which has deleted all.
func (m *mortal) ends() {
	m.t.Helper()
	select {
	case err := <-m.done:
		require.NoError(m.t, err)
	case <-time.After(20 * time.Second):
		m.t.Fatal("the instance does not end")
	}
	require.Empty(m.t, m.files())
}

// closing gives a channel that is closed at the latest with the test, so that no answer is held back any longer.
func closing(t *testing.T) (c chan struct{}, free func()) {
	var once atomic.Bool
	c = make(chan struct{})
	free = func() {
		if once.CompareAndSwap(false, true) {
			close(c)
		}
	}
	t.Cleanup(free)
	return c, free
}

// The instance has deleted all. The command is not let into the group in time, or does not get the answer: it does not say that
// nothing is deleted, also where the group does not tell what became of the state.
func TestACancelThatIsNotAnsweredSaysWhatTheInstanceDid(t *testing.T) {
	for name, deaf := range map[string]bool{"the group tells": false, "the group does not tell": true} {
		t.Run(name, func(t *testing.T) {
			m := newMortal(t, "unanswered")
			never, _ := closing(t)
			joins := m.command.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, Mute: never})
			if deaf {
				m.command.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetFetch}, When: func(kmsg.Request) bool { return joins.Hits() > 0 }, Mute: never})
			}
			out, err := m.cancel(4 * time.Second)
			m.ends()
			require.NoError(t, err)
			require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
			require.NotContains(t, out.Err().Error(), "nothing is deleted")
			want := "the state is given up, and the next run starts without it"
			if deaf {
				want = "the state is given up, or may be"
			}
			require.ErrorContains(t, out.Err(), want)
			require.ErrorContains(t, out.Err(), "cancel again")
		})
	}
}

// The instance ends the life, and hears of it late. Its reply is that it is stopping yet, and the state is given up; when it hears
// of it, it deletes the files.
func TestACancelSaysThatTheStateIsGivenUpBeforeTheInstanceHearsOfIt(t *testing.T) {
	m := newMortal(t, "hears-late")
	answer, free := closing(t)
	m.self.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, After: func(kmsg.Request, kmsg.Response) { <-answer }})
	out, err := m.cancel(4 * time.Second)
	require.NoError(t, err)
	require.NotEmpty(t, m.files())
	free()
	require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
	require.ErrorContains(t, out.Err(), ": the instance is stopping")
	require.ErrorContains(t, out.Err(), "the state is given up, and the next run starts without it")
	require.NotContains(t, out.Err().Error(), "nothing is deleted")
	m.ends()
}

// The instance is about to end the life: what is not deleted yet is going to be.
func TestACancelSaysThatAnInstanceMayDeleteYet(t *testing.T) {
	m := newMortal(t, "may-delete")
	hold, free := closing(t)
	m.self.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Before: func(kmsg.Request) error { <-hold; return nil }})
	out, err := m.cancel(4 * time.Second)
	require.NoError(t, err)
	require.NotEmpty(t, m.files())
	free()
	require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
	require.ErrorContains(t, out.Err(), "nothing is deleted yet, since an instance failed: cancel again when it has ended")
	m.ends()
}

// The answer to the end of the life is lost, and the next copy of it comes when the membership is over. The instance knows the
// end again as its own, and deletes the files.
func TestAnInstanceKnowsItsOwnEndOfTheLife(t *testing.T) {
	m := newMortal(t, "own-end")
	lost := m.self.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}})
	lost.Cut = true
	var sent atomic.Int64
	lost.When = func(kmsg.Request) bool { return sent.Add(1) == 1 }
	m.self.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Answer: func(kmsg.Request) *kerr.Error {
		if sent.Load() == 2 {
			return kerr.UnknownMemberID
		}
		return nil
	}})
	out, err := m.cancel(20 * time.Second)
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.GreaterOrEqual(t, sent.Load(), int64(2))
	m.ends()
	require.NotNil(t, out.Deleted)
	require.Zero(t, out.Deleted.Files, "the instance has deleted them")
}

// The answer to the command itself is lost: it has been given all the same.
func TestACommandWhoseAnswerIsLostMayHaveBeenGiven(t *testing.T) {
	m := newMortal(t, "maybe-given")
	never, _ := closing(t)
	m.command.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: never})
	out, err := m.cancel(4 * time.Second)
	m.ends()
	require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v %v", err, out)
	require.ErrorContains(t, err, "it is not known whether the command was given")
	require.ErrorContains(t, err, "the state is given up, and the next run starts without it")
}

// The command ends the life itself, since no instance runs, and its commit is not answered: taken or not, it does not say that
// nothing is deleted. Another cancel does the rest.
func TestACancelWhoseOwnCommitIsNotAnswered(t *testing.T) {
	for name, taken := range map[string]bool{"taken": true, "on its way": false} {
		t.Run(name, func(t *testing.T) {
			m := newMortal(t, "own-commit")
			m.stop()
			require.NoError(t, <-m.done)
			hold, free := closing(t)
			rule := &testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Mute: hold}
			want := "the state is given up, and the next run starts without it"
			if !taken {
				rule.Mute, rule.Before = nil, func(kmsg.Request) error { <-hold; return nil }
				want = "the state is given up, or may be; cancel again"
			}
			m.command.Add(rule)
			begun := time.Now()
			out, err := m.cancel(3 * time.Second)
			require.Less(t, time.Since(begun), 4*time.Second, "the farewell does not wait either")
			free()
			require.NoError(t, err)
			require.NotEmpty(t, m.files())
			require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
			require.ErrorContains(t, out.Err(), want)
			rule.Remove()
			out, err = m.cancel(20 * time.Second)
			require.NoError(t, err)
			require.NoError(t, out.Err())
			require.NotZero(t, out.Deleted.Files)
			require.Empty(t, m.files())
		})
	}
}
