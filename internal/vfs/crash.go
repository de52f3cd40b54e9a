package vfs

import (
	"math/rand/v2"
	"path"
	"sort"
)

// Crash cuts the power and starts the machine again: synced bytes under synced names are there; of everything else
// each name change and each block is kept with probability keep (0 = nothing, 1 = all), drawn from the seed. A block
// that was not kept reads as its last synced content, zeros when there is none; a file may come back with any length
// between the synced and the written one. Files opened before are dead. The fault function and the limit are removed.
func (m *Mem) Crash(keep float64, seed uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 0x6d696c6c))
	m.epoch++
	m.fault, m.limit, m.halted, m.open = nil, 0, false, 0

	paths := make([]string, 0, len(m.dirs))
	for p := range m.dirs {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	for _, p := range paths {
		m.dirs[p].settle(keep, rng)
	}
	settled := map[*memNode]bool{}
	for _, p := range paths {
		d := m.dirs[p]
		for _, name := range sortedNames(d.now) {
			if n := d.now[name]; !n.dir && !settled[n] {
				settled[n] = true
				n.settle(keep, rng)
			}
		}
	}
	m.dropUnreachable()
}

// settle decides for each name that changed since the last SyncDir whether the change survived.
func (d *memDir) settle(keep float64, rng *rand.Rand) {
	all := map[string]*memNode{}
	for name := range d.now {
		all[name] = nil
	}
	for name := range d.durable {
		all[name] = nil
	}
	next := map[string]*memNode{}
	for _, name := range sortedNames(all) {
		n := d.durable[name]
		if now := d.now[name]; now != n && rng.Float64() < keep {
			n = now
		}
		if n != nil {
			next[name] = n
		}
	}
	d.now = next
	d.durable = make(map[string]*memNode, len(next))
	for name, n := range next {
		d.durable[name] = n
	}
}

// settle decides which unsynced blocks of a file survived.
func (n *memNode) settle(keep float64, rng *rand.Rand) {
	if len(n.dirty) == 0 && len(n.lost) == 0 {
		return
	}
	size := len(n.durable)
	if grown := len(n.data) - size; grown > 0 {
		if rng.Float64() < keep {
			size += grown
		} else if keep > 0 {
			size += rng.IntN(grown + 1)
		}
	}
	next := make([]byte, size)
	copy(next, n.durable)
	for b := 0; b*memBlock < size; b++ {
		if (n.dirty[b] || n.lost[b]) && rng.Float64() < keep {
			lo := b * memBlock
			copy(next[lo:min(lo+memBlock, size)], n.data[lo:])
		}
	}
	n.data = next
	n.durable = append([]byte(nil), next...)
	clear(n.dirty)
	clear(n.lost)
}

// dropUnreachable forgets directories whose name did not survive.
func (m *Mem) dropUnreachable() {
	reach := map[string]*memDir{}
	var walk func(at string)
	walk = func(at string) {
		d := m.dirs[at]
		reach[at] = d
		for name, n := range d.now {
			if n.dir {
				sub := path.Join(at, name)
				if m.dirs[sub] == nil { // removed, but the removal did not survive
					m.dirs[sub] = newMemDir()
				}
				walk(sub)
			}
		}
	}
	walk(".")
	m.dirs = reach
}

func sortedNames(m map[string]*memNode) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
