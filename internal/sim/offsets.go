package sim

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
)

// committed is the group's offset of one input partition.
type committed struct {
	found    bool
	offset   int64
	metadata string
	seq      int // order in which the commits were written
}

// pendingOffsets are offsets in a transaction that has not ended.
type pendingOffsets struct {
	txn     *txnState
	offsets []committed // by input partition
}

// offsetStore is the group's offsets, committed and in transactions.
type offsetStore struct {
	writes    int
	pending   []pendingOffsets
	committed []committed
	by        [maxPartitions]committer // who committed a partition last
	decisions map[string]bool          // handles whose transaction was decided to commit
	times     [maxPartitions]int       // how often each was committed, without transactions
	best      [maxPartitions]int64     // the highest offset of each that was, likewise
}

type committer struct {
	instance string
	gen      int32
}

func newOffsetStore(b *broker) offsetStore {
	return offsetStore{committed: make([]committed, b.w.cfg.Partitions), decisions: map[string]bool{}}
}

// commitOffsets is TxnOffsetCommit. The group checks member and generation, not who owns the partitions; without
// a member nothing is checked.
func (g *group) commitOffsets(txnID string, epoch int32, id string, gen int32, instance string, offsets []committed) reply {
	all := func(code int16) reply {
		codes := make([]int16, len(offsets))
		for i := range codes {
			codes[i] = code
		}
		return reply{codes: codes}
	}
	if id != "" || gen >= 0 {
		if m, code := g.refuse(id, instance); m == nil {
			return all(code)
		}
		if gen != g.gen {
			g.b.w.counts.StaleGenerations++
			return all(kerr.IllegalGeneration.Code)
		}
		for p, o := range offsets {
			if !o.found {
				continue
			}
			if by := g.by[p]; by.instance != "" && by.gen == gen && by.instance != instance {
				g.b.w.violation("I8", "%s commits in/%d in generation %d, in which %s has committed it", instance, p, gen, by.instance)
			}
			g.by[p] = committer{instance, gen}
		}
	}
	t := g.b.txn(txnID)
	if code := g.b.enter(t, epoch); code != 0 {
		return all(code)
	}
	if t.group {
		g.b.w.counts.Pieces++
	}
	t.group = true
	offsets = slices.Clone(offsets)
	for i := range offsets {
		g.writes++
		offsets[i].seq = g.writes
	}
	g.comeBack(instance, offsets)
	g.pending = append(g.pending, pendingOffsets{txn: t, offsets: offsets})
	return all(0)
}

// decided notes the handles of a transaction that is going to be committed.
func (g *offsetStore) decided(t *txnState) {
	for _, p := range g.pending {
		if p.txn == t {
			for _, c := range p.offsets {
				if c.found {
					g.decisions[c.metadata] = true
				}
			}
		}
	}
}

// effective is what a stable read will give: the committed offsets, and those of transactions that are decided and whose
// marker is on the way. What was written later wins, whichever transaction ended first.
func (g *offsetStore) effective() []committed {
	out := slices.Clone(g.committed)
	for _, p := range g.pending {
		if p.txn.state == preparing && p.txn.commit {
			overlay(out, p.offsets)
		}
	}
	return out
}

func overlay(to, from []committed) {
	for i, c := range from {
		if c.found && c.seq > to[i].seq {
			to[i] = c
		}
	}
}

// decide is the marker in the offsets log.
func (g *offsetStore) decide(t *txnState, commit bool) {
	keep := g.pending[:0]
	for _, p := range g.pending {
		switch {
		case p.txn != t:
			keep = append(keep, p)
		case commit:
			overlay(g.committed, p.offsets)
		}
	}
	g.pending = keep
}

// fetch is OffsetFetch; a stable one is refused while a transaction is open on one of the partitions.
func (g *offsetStore) fetch(parts mask, stable bool) reply {
	for _, p := range g.pending {
		for i, o := range p.offsets {
			if stable && o.found && parts.has(i) {
				return reply{code: kerr.UnstableOffsetCommit.Code}
			}
		}
	}
	return reply{committed: slices.Clone(g.committed)}
}
