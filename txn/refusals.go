package txn

import (
	"math"
	"sync"
)

// refusals is what refused batches have taught of their topics: it counts where a topic's own limit is not known, and where
// a limit that was read anew allows what the broker refuses. It is the process's, one attempt's clients go by what those
// before it met. A nil one knows nothing and learns nothing.
//
// The broker says no number, so it is looked for: after a refusal batches are a quarter as large, but never less than the
// largest record that was refused, which is then alone in its batch. One that is refused alone is too large. The client
// itself refuses a record that is larger than its batches, which the broker may take: they become larger for it, unless the
// broker has refused as much already.
//
//	0 ─────────── batches ──────────── refused ──────>  bytes of a batch
//	   the limit may be anywhere here ─┘
//
// Both bounds move towards each other, and by factors, so that it takes a few attempts.
type refusals struct {
	mu     sync.Mutex
	topics map[string]*refusal // under mu
}

type refusal struct {
	batch   int64 // as large as batches are made
	refused int64 // batches made for so much were refused
	probed  int64 // a record that was let try although as much had been refused before: the limit may have been raised
}

// nothingRefused is refusal.refused before the first one.
const nothingRefused = math.MaxInt64

// limit gives the largest batch for a topic of which told is known, 0 = nothing, and usual is the limit else. A limit below
// what was refused explains the refusal, which is forgotten then.
func (r *refusals) limit(topic string, told, usual int64) int64 {
	if told > 0 {
		usual = told
	}
	if r == nil {
		return usual
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.topics[topic]
	switch {
	case t == nil:
		return usual
	case told > 0 && told < t.refused:
		t.batch, t.refused = told, nothingRefused
		return told
	case told > 0:
		return min(told, t.batch)
	}
	return t.batch
}

// hope says whether a record, so large as a batch of its own, may be taken after it was refused: by the broker, in a batch
// for which asked was the limit, or by the client. most is what no batch can be above.
func (r *refusals) hope(topic string, alone, asked, most int64) bool {
	switch {
	case alone > most:
		return false
	case alone <= asked:
		return asked > max(alone, leastBatch)
	case r == nil:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.topics[topic]
	return t == nil || alone < t.refused || alone > t.probed
}

// learn notes a refusal that there is hope for. It is called once for each.
func (r *refusals) learn(topic string, alone, asked int64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.topics[topic]
	if t == nil {
		t = &refusal{batch: asked, refused: nothingRefused}
		if r.topics == nil {
			r.topics = make(map[string]*refusal)
		}
		r.topics[topic] = t
	}
	switch {
	case alone <= asked:
		t.refused = min(t.refused, asked)
		t.batch = min(t.batch, max(asked/4, alone, leastBatch))
	case alone < t.refused/2:
		t.batch = max(t.batch, 2*alone)
	case alone < t.refused:
		t.batch = max(t.batch, alone) // no more, to know whether this is taken
	default:
		t.batch, t.refused, t.probed = alone, nothingRefused, alone
	}
}
