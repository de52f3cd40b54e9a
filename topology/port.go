package topology

import "errors"

// port is the input side of an operator.
type port[K, V any] interface {
	// push processes a batch, downstream included, before it returns. The batch is read-only and valid during the call.
	push(b *Batch[K, V]) error
	// release drops references that scratch batches hold, here and downstream.
	release()
	// close ends what user code opened, here and downstream.
	close() error
}

// joinPorts makes one port of the operators of all consumers of a stream.
func joinPorts[K, V any](down []any) port[K, V] {
	if len(down) == 1 {
		return down[0].(port[K, V])
	}
	t := make(tee[K, V], len(down))
	for i, d := range down {
		t[i] = d.(port[K, V])
	}
	return t
}

// tee hands a batch to several consumers, one after the other; to none for a stream that nobody consumes.
type tee[K, V any] []port[K, V]

func (t tee[K, V]) push(b *Batch[K, V]) error {
	for _, p := range t {
		if err := p.push(b); err != nil {
			return err
		}
	}
	return nil
}

func (t tee[K, V]) release() {
	for _, p := range t {
		p.release()
	}
}

func (t tee[K, V]) close() error {
	var err error
	for _, p := range t {
		err = errors.Join(err, p.close())
	}
	return err
}

// operator is what the operators between source and sink share: a guard, the batch at work, the output.
type operator[K, V, W any] struct {
	guard guard
	in    *Batch[K, V]
	out   scratch[K, W]
	down  port[K, W]
}

func (o *operator[K, V, W]) offset(i int) int64 { return o.in.Recs[i].Offset }

func (o *operator[K, V, W]) recordRef(i int) *TimerRef {
	return refOf(o.in.Recs[i].RawKey, o.in.Recs[i].Timestamp)
}

func (o *operator[K, V, W]) undo() { o.out.undo() }

func (o *operator[K, V, W]) drain() error { return o.out.drain(o.down) }

func (o *operator[K, V, W]) release() {
	o.in = nil
	o.out.release()
	o.down.release()
}

func (o *operator[K, V, W]) close() error { return o.down.close() }

// feed runs the operator l, which embeds o, over a batch.
func (o *operator[K, V, W]) feed(l looper, b *Batch[K, V]) error {
	o.in, o.out.From = b, b.From
	return o.guard.loop(l, b.From, len(b.Recs))
}

func newOperator[K, V, W any](c *compiler, n *node, down []any) operator[K, V, W] {
	return operator[K, V, W]{guard: c.guard(n), down: joinPorts[K, W](down)}
}
