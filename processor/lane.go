package processor

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

const (
	// laneHurry is how many runs a copy may be behind before it is read early: chains of more than 16 are merged.
	laneHurry = 8
	// laneMost bounds the runs that a copy may be behind; what is older has most likely been deleted.
	laneMost = 64
)

// lane is the way of one task's copy from where it stands to the newest committed root. It does no I/O.
type lane struct {
	root  snapshot.RootRef   // the newest
	entry snapshot.TaskEntry // of the task in root

	known bool // at has been asked for
	at    store.LocalVersion
	// trusted: at was reached, or found on the committed chain, in this process. A process sees one line of committed
	// checkpoints only, so that ids on it are never taken twice.
	trusted bool
	owed    []snapshot.RunRef // lead from at to root; some may be merged by now, and their files on the way out
	lost    bool              // there is no way: the copy has to be built anew
	retry   time.Time         // not before this
	tried   time.Time         // when it was built anew last
	delay   time.Duration     // between then and retry
}

// versionOf is where a copy stands that holds exactly the entry of a root.
func versionOf(root snapshot.RootRef, entry snapshot.TaskEntry) store.LocalVersion {
	v := store.LocalVersion{Name: root.Name, Digest: root.Digest, ChainEnd: entry.ChainEnd()}
	if n := len(entry.Runs); n > 0 {
		v.Run = entry.Runs[n-1].Digest
	}
	return v
}

// versionAt is where a copy stands after run i of what it owed: at the root after the last, between two roots before.
func (l *lane) versionAt(i int) store.LocalVersion {
	if i == len(l.owed)-1 {
		return versionOf(l.root, l.entry)
	}
	r := l.owed[i]
	return store.LocalVersion{Name: element.CheckpointName{ID: r.To}, ChainEnd: r.To, Run: r.Digest}
}

func (l *lane) target() store.LocalVersion { return versionOf(l.root, l.entry) }

func (l *lane) behind() bool { return l.known && !l.lost && l.at != l.target() }

// hurry reports that what is owed may soon be gone.
func (l *lane) hurry() bool {
	if !l.behind() || len(l.owed) == 0 {
		return false
	}
	return len(l.owed) >= laneHurry || !slices.Contains(l.entry.Runs, l.owed[0])
}

// follow takes a newer root.
func (l *lane) follow(root snapshot.RootRef, entry snapshot.TaskEntry) {
	l.root, l.entry = root, entry
	if l.known && !l.lost {
		l.find()
	}
}

// start says where the copy stands, found on disk or just made.
func (l *lane) start(at store.LocalVersion, ok bool) {
	l.known, l.at, l.owed = true, at, nil
	if l.lost = !ok; ok {
		l.find()
	}
}

// find looks for the way from the copy to the newest root. The copy lies on the chain where a run ends at the same
// checkpoint and is the run that the copy took last, or replaces it: a full run of this process's own line.
func (l *lane) find() {
	runs := l.entry.Runs
	if l.at.ChainEnd == 0 { // an empty copy
		l.found(runs)
		return
	}
	for i, r := range runs {
		if r.To == l.at.ChainEnd && (r.Digest == l.at.Run || (l.trusted && r.Full)) {
			l.found(runs[i+1:])
			return
		}
	}
	if l.trusted && len(runs) > 0 && runs[0].Full {
		for i, r := range l.owed {
			if r.To == runs[0].To { // a merge has taken them; their files stay a while
				l.found(slices.Concat(l.owed[:i+1], runs[1:]))
				return
			}
		}
	}
	l.lost = true
}

func (l *lane) found(owed []snapshot.RunRef) {
	l.owed, l.trusted = owed, true
	l.lost = len(owed) > laneMost
}

// moved says that the copy has come to a version on its way.
func (l *lane) moved(at store.LocalVersion) {
	l.at, l.trusted = at, true
	l.owed = slices.DeleteFunc(slices.Clone(l.owed), func(r snapshot.RunRef) bool { return r.To <= at.ChainEnd })
}

// lose says that the copy cannot go on.
func (l *lane) lose() { l.known, l.lost, l.owed = true, true, nil }

// rebuild starts over at the newest root. Copies that are lost again soon, by failures or because the state changes
// faster than it can be copied, wait longer and longer for the next time.
func (l *lane) rebuild(now time.Time, least, most time.Duration) {
	l.at, l.trusted, l.owed, l.lost = l.target(), true, nil, false
	if now.Sub(l.tried) > least+2*l.delay {
		l.delay = least
	} else {
		l.delay = min(most, 2*l.delay)
	}
	l.tried, l.retry = now, now.Add(l.delay)
}

// size is the number of bytes that building the copy anew reads.
func (l *lane) size() int64 {
	var n int64
	for _, r := range l.entry.Runs {
		n += r.Length
	}
	return n
}
