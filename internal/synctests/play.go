//go:build synctests

package synctests

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// play does what the schedule says, each thing at its time.
func (w *World) play() {
	for _, e := range w.s.Events {
		if wait := time.Until(w.began.Add(e.At)); wait > 0 {
			time.Sleep(wait)
		}
		w.log("EVENT %v", e)
		w.do(e)
	}
	if wait := time.Until(w.began.Add(w.s.Load)); wait > 0 {
		time.Sleep(wait)
	}
}

func (w *World) do(e Event) {
	slot := w.slots[e.Slot]
	p := slot.current()
	switch e.Kind {
	case BrokerError:
		w.faults = append(w.faults, w.cluster.Fault(brokerFault(e)))
		return
	case Power:
		w.power(e)
		return
	case Move:
		if e.Coords {
			w.cluster.RehashCoordinators()
		} else {
			w.cluster.ShufflePartitionLeaders()
		}
		return
	case DiskError:
		w.mu.Lock()
		w.diskFaults = append(w.diskFaults, diskFault{e.Op, e.DiskErr, e.Count})
		w.mu.Unlock()
		return
	case Takeover:
		w.takeover(slot, e)
		return
	case Join:
		w.join(e)
		return
	}
	if p == nil {
		return // there is none at the moment
	}
	switch e.Kind {
	case Request:
		p.host.AddRule(Rule{Key: e.Key, Count: e.Count, Delay: e.For, Cut: e.Cut, Then: func() { w.count(func(c *Counts) { c.Requests++ }) }})
	case Kill:
		w.kill(slot, p, e)
	case Restart:
		p.cancel()
	case Pause:
		freeze := func() { w.freeze(p.host, e.For) }
		if e.AtReq {
			p.host.AddRule(Rule{Key: e.Key, Count: 1, Skip: e.Nth - 1, Then: freeze})
		} else {
			freeze()
		}
	case Unplug:
		p.host.Down(true, e.Lose)
		time.AfterFunc(e.For, func() { p.host.Down(false, false) })
	}
}

// kill ends a process now, or when it comes to a request or a file operation.
func (w *World) kill(slot *Slot, p *Process, e Event) {
	die := func() {
		if slot.current() == p {
			slot.Kill(e.Lose, e.For)
		}
	}
	switch {
	case e.AtReq:
		// What went out is lost as well, or not: with CutAfter the request at which it dies arrives.
		if e.Cut == CutAfter {
			e.Lose = false
		}
		p.host.AddRule(Rule{Key: e.Key, Count: 1, Skip: e.Nth - 1, Cut: e.Cut, Then: die})
	case e.AtOp:
		p.disk.At(e.Op, e.Nth, die)
	default:
		die()
	}
}

// power ends all processes at once, and takes from the disk what was not synced.
func (w *World) power(e Event) {
	for _, s := range w.slots {
		s.Kill(e.Lose, e.For)
	}
	w.disk.Crash(e.Keep, w.s.Seed)
	w.disk.SetFault(w.diskFault)
}

func (w *World) freeze(h *Host, most time.Duration) {
	w.log("%s is frozen for %v", h.name, most)
	h.Freeze(true)
	time.AfterFunc(most, func() {
		w.log("%s goes on", h.name)
		h.Freeze(false)
	})
}

// takeover lets the spare instance take the place of one that is frozen or dead for longer than its session.
func (w *World) takeover(slot *Slot, e Event) {
	spare := w.slots[len(w.slots)-1]
	if e.Killed {
		slot.Kill(e.Lose, e.For)
	} else if p := slot.current(); p != nil {
		w.freeze(p.host, e.For)
	}
	spare.Start(0)
	time.AfterFunc(e.For, func() { spare.Stop() })
}

// join lets the spare instance be one more for a while.
func (w *World) join(e Event) {
	spare := w.slots[len(w.slots)-1]
	spare.Start(0)
	time.AfterFunc(e.For, func() {
		if e.Killed {
			spare.Kill(e.Lose, -1)
		}
		spare.Stop()
	})
}

// heal ends all faults and leaves the processes running that the schedule wants.
func (w *World) heal() {
	w.log("HEAL")
	for _, f := range w.faults {
		f.Remove()
	}
	w.mu.Lock()
	w.diskFaults = nil
	w.mu.Unlock()
	for i, s := range w.slots {
		if p := s.current(); p != nil {
			p.host.Heal()
			p.disk.Heal()
		}
		if i < w.s.Instances {
			s.Start(0)
		} else {
			s.Stop()
		}
	}
}

// load writes the input: bursts of records, spread over the time of the load. Every burst is a transaction; some are
// aborted, so that the service must not count their records.
func (w *World) load(ctx context.Context) error {
	d := newDrawer(w.s.Seed, 0x6c6f6164)
	return w.loading(func(cl *kgo.Client) error {
		for range w.s.Bursts {
			time.Sleep(d.between(0, 2*w.s.Load/time.Duration(w.s.Bursts)))
			if err := w.burst(ctx, cl, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// last writes what can only be consumed when the service works again after the faults.
func (w *World) last(ctx context.Context) error {
	d := newDrawer(w.s.Seed, 0x6c617374)
	return w.loading(func(cl *kgo.Client) error {
		for range 3 {
			if err := w.burst(ctx, cl, d); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *World) loading(write func(*kgo.Client) error) error {
	cl, err := w.client(loader, kgo.TransactionalID(loader), kgo.DefaultProduceTopic(inTopic), kgo.TransactionTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := write(cl); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

func (w *World) burst(ctx context.Context, cl *kgo.Client, d drawer) error {
	abort := w.s.Aborts && d.chance(0.3)
	recs := make([]*kgo.Record, 1+d.IntN(w.s.PerBurst))
	for i := range recs {
		recs[i] = kgo.KeyStringRecord(fmt.Sprintf("key-%d", d.IntN(w.s.Keys)), "v")
	}
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	if err := cl.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		return err
	}
	if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(!abort)); err != nil || abort {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range recs {
		w.expected[string(r.Key)]++
		w.ends[r.Partition] = max(w.ends[r.Partition], r.Offset+1)
	}
	w.counts.Records += int64(len(recs))
	return nil
}
