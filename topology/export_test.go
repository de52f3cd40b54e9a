package topology

// HeapLen gives how many timers the heaps of a task hold, pending or not.
func HeapLen(t *Task) int {
	n := 0
	for _, op := range t.timed {
		n += len(op.(interface{ heap() []timer }).heap())
	}
	return n
}

// PendingTimers gives how many timers the steps of a task take for pending.
func PendingTimers(t *Task) int {
	n := 0
	for _, op := range t.timed {
		n += op.(interface{ pending() int }).pending()
	}
	return n
}

func (t *timerRun[K, V, W]) pending() int { return t.p.ctx.timers.live }

func (t *timerRun[K, V, W]) heap() []timer { return t.p.ctx.timers.heap }
