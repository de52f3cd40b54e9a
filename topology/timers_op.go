package topology

import (
	"time"

	"github.com/millweir/millweir/serde"
)

// timerRun fires the timers of a Processor: a looper beside the one over records.
type timerRun[K, V, W any] struct {
	p   *processOp[K, V, W]
	fn  TimerProcessor[K, W]
	key serde.Serde[K]

	now, until int64
	most       int
	enough     func() bool
	fired      int
	at         timer     // at work
	rec        Rec[K, V] // what outputs carry on
}

func (t *timerRun[K, V, W]) nextTimer() (int64, bool) {
	next, ok := t.p.ctx.timers.next()
	return next.at, ok
}

func (t *timerRun[K, V, W]) fire(now, until int64, most int, enough func() bool) (int, error) {
	t.now, t.until, t.most, t.enough, t.fired = now, until, most, enough, 0
	t.p.in, t.p.out.From = nil, timerOrigin
	err := t.p.guard.loop(t, timerOrigin, most)
	return t.fired, err
}

func (t *timerRun[K, V, W]) run(from int) (int, error) {
	for i := from; i < t.most; i++ {
		t.p.guard.at = i
		t.p.out.start()
		next, ok := t.p.ctx.timers.next()
		if !ok || next.at > min(t.now, t.until) || t.fired > 0 && t.enough() {
			return t.most, nil
		}
		t.fired++
		if err := t.one(next); err != nil {
			return i, err
		}
		if len(t.p.out.Recs) >= segmentRecords {
			return i + 1, nil
		}
	}
	return t.most, nil
}

// one fires a timer. It is not pending any more, whatever happens.
func (t *timerRun[K, V, W]) one(next timer) error {
	t.at = next
	t.p.ctx.timers.take(next)
	key, err := t.key.Decode(next.key)
	if err != nil {
		return codecError("decode key as "+t.key.Name(), err)
	}
	t.rec = Rec[K, V]{Key: key, RawKey: next.key, Timestamp: next.at, Offset: -1}
	t.p.begin(&t.rec)
	if err := t.fn.OnTimer(t.p.ctx, key, time.UnixMilli(next.at), &t.p.col); err != nil {
		return err
	}
	return t.p.commit(&t.rec)
}

func (t *timerRun[K, V, W]) timerRef() *TimerRef {
	return &TimerRef{Key: t.at.key, At: time.UnixMilli(t.at.at)}
}

func (t *timerRun[K, V, W]) offset(int) int64 { return -1 }

func (t *timerRun[K, V, W]) undo() { t.p.undo() }

func (t *timerRun[K, V, W]) drain() error { return t.p.drain() }

func (t *timerRun[K, V, W]) release() { t.at, t.rec = timer{}, Rec[K, V]{} }
