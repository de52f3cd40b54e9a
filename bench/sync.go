package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/store"
)

// syncPhase measures what a task stands still for at a barrier, the freeze of its state, with the same number of
// changed keys in states of different sizes.
func syncPhase() error {
	const dirty, rounds = 50_000, 50
	for _, keys := range []int{100_000, 1_000_000} {
		s := store.New(store.Config{})
		t, err := s.Table("count", "bytes")
		if err != nil {
			return err
		}
		key := make([]byte, 0, 16)
		for i := range keys {
			key = fmt.Appendf(key[:0], "key-%08d", i)
			if err := s.Load("count", key, make([]byte, 16)); err != nil {
				return err
			}
		}
		took := make([]time.Duration, 0, rounds)
		for round := range rounds {
			for i := range dirty {
				key = fmt.Appendf(key[:0], "key-%08d", (i*(keys/dirty)+round)%keys)
				v, _ := t.Upsert(key, 16)
				v[0]++
			}
			id := element.CheckpointID(round + 1)
			start := time.Now()
			f := s.Freeze(id)
			took = append(took, time.Since(start))
			if f.Len() != dirty {
				return fmt.Errorf("%d changes frozen, want %d", f.Len(), dirty)
			}
			s.Commit(id)
		}
		slices.Sort(took)
		fmt.Printf("synchronous phase: %8d keys, %d changed: median %s, p99 %s\n", keys, dirty, took[len(took)/2], took[len(took)-1])
	}
	return nil
}
