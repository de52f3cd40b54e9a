//go:build synctests

package synctests

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
	"github.com/twmb/franz-go/pkg/kgo"
)

// backoff is how long the supervisor of a slot waits before it starts a process again that ended by itself.
const backoff = time.Second

// Slot is a place for one process after the other, all of one instance id, with a supervisor as an init system is one.
type Slot struct {
	w        *World
	instance string
	index    int

	mu      sync.Mutex
	cur     *Process
	want    bool
	starts  int
	pending *time.Timer // the next start
}

// Process is one life of the service.
type Process struct {
	slot   *Slot
	host   *Host
	disk   *Disk
	cancel context.CancelFunc
	killed atomic.Bool
	done   chan struct{}
	err    error // after done
}

// Start wants a process and starts it after a while, unless one runs.
func (s *Slot) Start(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = true
	s.startLater(after)
}

// startLater is called with mu held.
func (s *Slot) startLater(after time.Duration) {
	if s.pending != nil {
		s.pending.Stop()
	}
	s.pending = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.want && s.cur == nil {
			s.start()
		}
	})
}

// start is called with mu held.
func (s *Slot) start() {
	w := s.w
	s.starts++
	name := fmt.Sprintf("%s.%d", s.instance, s.starts)
	host := w.net.Host(name, w.s.Latency, w.s.Seed+uint64(s.starts*100+s.index))
	w.mu.Lock()
	w.hosts[name] = host
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{slot: s, host: host, disk: newDisk(w.disk, host, w.s.Fsync, w.s.Plant == noSync), cancel: cancel, done: make(chan struct{})}
	s.cur = p
	w.log("%s starts", name)
	w.processes.Add(1)
	go func() {
		defer w.processes.Done()
		defer close(p.done)
		p.err = p.run(ctx, name)
		cancel()
		host.Kill(false)
		s.ended(p)
	}()
}

func (p *Process) run(ctx context.Context, name string) error {
	w := p.slot.w
	dir, err := os.MkdirTemp(w.dir, name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	decorate, err := planted(w.s.Plant)
	if err != nil {
		return err
	}
	return processor.Run(ctx, w.plan, processor.Config{
		Brokers: w.brokers, DataDir: dir, Storage: snapshot.NewLocal(p.disk, "mem"), Backend: processor.Memory,
		InstanceID: p.slot.instance, SessionTimeout: w.s.Session, Interval: w.s.Interval, CheckpointTimeout: w.s.Checkpoint, TransactionTimeout: w.s.Txn, MaxConcurrent: w.s.Concurrent,
		AdminListen:     "off", // who waits for a connection keeps the time of a bubble from going on
		ShutdownTimeout: shutdown, Logger: w.logger(name), ClientOptions: []kgo.Opt{kgo.Dialer(p.host.Dial)}, Decorate: decorate,
		Listener: engine.Listener{
			CheckpointCompleted: func(checkpoint.CheckpointStats) { w.count(func(c *Counts) { c.Checkpoints++ }) },
			AttemptStarted:      func(engine.AttemptInfo) { w.count(func(c *Counts) { c.Attempts++ }) },
		},
	})
}

// ended is the supervisor's reaction to the end of a process.
func (s *Slot) ended(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.killed.Load() {
		s.w.log("%s.%d, killed, has wound down", s.instance, s.starts)
		return
	}
	again := s.w.exit(s.instance, p.err)
	if s.cur != p {
		return
	}
	s.cur = nil
	if s.want && again {
		s.startLater(backoff)
	}
}

// Kill ends the process so that nothing it does has any effect from now on. It starts again after a while.
func (s *Slot) Kill(lose bool, again time.Duration) {
	s.mu.Lock()
	p := s.cur
	s.cur = nil
	if p != nil {
		s.w.log("%s.%d is killed", s.instance, s.starts)
		p.killed.Store(true)
		p.disk.Kill()
	}
	if s.want && again >= 0 {
		s.startLater(again)
	}
	s.mu.Unlock()
	if p != nil {
		s.w.count(func(c *Counts) { c.Kills++ })
		p.host.Kill(lose)
		p.cancel()
	}
}

// Stop ends the process gracefully and wants none any more; the channel is closed when it has ended.
func (s *Slot) Stop() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = false
	if s.pending != nil {
		s.pending.Stop()
	}
	if s.cur == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	s.cur.cancel()
	return s.cur.done
}

// current gives the process that runs, nil when there is none.
func (s *Slot) current() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// tolerated are the exits that faults may cause; all others are found mistakes.
func tolerated(err error) bool {
	switch fault.CodeOf(err) {
	case fault.OK, fault.Failed, fault.Unreachable, fault.Fenced, fault.CheckpointDir:
		return true
	}
	return false
}
