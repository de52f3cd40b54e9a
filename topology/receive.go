package topology

import "fmt"

// receiver is the receiving side of an exchange as its task sees it.
type receiver interface {
	receive(p Parcel) error
	restore(data [][]byte) (Parcel, error)
}

// receiveOp is the root of an exchange's stage.
type receiveOp[K, V any] struct {
	task *Task
	x    *exchange[K, V]
	down port[K, V]
	out  Batch[K, V]
	// groups is the number of key groups, 0 when records come here whatever their key is.
	groups int
}

// receive hands the records of a parcel on, without a copy, and recycles it.
func (r *receiveOp[K, V]) receive(p Parcel) error {
	in, ok := p.(*parcel[K, V])
	if !ok || in.x != r.x {
		return fmt.Errorf("exchange %s was given a parcel of another one (%T)", r.x.name, p)
	}
	at := 0
	for _, run := range in.runs {
		for at < run.end {
			next := min(at+batchRecords, run.end)
			r.out.From, r.out.Recs = run.from, in.recs[at:next:next]
			if err := r.down.push(&r.out); err != nil {
				return err
			}
			at = next
		}
	}
	r.release()
	r.x.recycle(in)
	return nil
}

// restore makes a parcel of encoded records.
func (r *receiveOp[K, V]) restore(data [][]byte) (Parcel, error) {
	total := 0
	for _, d := range data {
		total += len(d)
	}
	memory := make([]byte, 0, total) // what is decoded may alias it
	p := &parcel[K, V]{x: r.x, groups: r.groups, recs: make([]Rec[K, V], 0, len(data))}
	for i, d := range data {
		at := len(memory)
		memory = append(memory, d...)
		if err := r.x.decode(p, memory[at:len(memory):len(memory)]); err != nil {
			return nil, fmt.Errorf("restore record %d of %d in flight over exchange %s: %w", i+1, len(data), r.x.name, err)
		}
	}
	return p, nil
}

func (r *receiveOp[K, V]) release() {
	r.task.round++
	r.out.Recs = nil
	r.down.release()
}

func (r *receiveOp[K, V]) close() error { return r.down.close() }
