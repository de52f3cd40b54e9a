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
	stay  uint64             // of the task on this instance; another one when it comes back
	root  snapshot.RootRef   // the newest
	entry snapshot.TaskEntry // of the task in root
	own   bool               // this process wrote root

	known bool // at has been asked for
	at    store.LocalVersion
	// trusted: at was reached, or found by its digest on the chain of a committed root, in this process. Together with
	// own it says that the way from there to root is this process's own, so that a full run on it is the merge of what
	// lies before. Ids alone say nothing: after a return to an older checkpoint they come twice, and the chain of a task
	// that was on another instance may have been merged there.
	trusted bool
	owed    []snapshot.RunRef // lead from at to root; some may be merged by now, and their files on the way out
	merged  bool              // what is on disk lies inside a merged run since: of no use to a restore
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
	if !l.behind() {
		return false
	}
	return l.merged || len(l.owed) >= laneHurry || len(l.owed) > 0 && !slices.Contains(l.entry.Runs, l.owed[0])
}

// follow takes a newer root; own says that this process wrote it.
func (l *lane) follow(root snapshot.RootRef, entry snapshot.TaskEntry, own bool) {
	l.root, l.entry, l.own = root, entry, own
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

// runsBehind gives the runs of an entry that lie behind a version of its task's copy: the copy's last run is on the
// chain, proven by its digest, or there is none in the copy. All of them are deltas then, with their deletions whole.
func runsBehind(at store.LocalVersion, entry snapshot.TaskEntry) ([]snapshot.RunRef, bool) {
	if at.ChainEnd == 0 {
		return entry.Runs, true
	}
	for i, r := range entry.Runs {
		if r.To == at.ChainEnd && r.Digest == at.Run {
			return entry.Runs[i+1:], true
		}
	}
	return nil, false
}

// find looks for the way from the copy to the newest root: by the digest of its last run, or by what a merge of this
// process made of it.
func (l *lane) find() {
	runs := l.entry.Runs
	if owed, ok := runsBehind(l.at, l.entry); ok {
		l.found(owed)
		return
	}
	if l.trusted && l.own && len(runs) > 0 && runs[0].Full {
		if runs[0].To == l.at.ChainEnd {
			l.merged = true
			l.found(runs[1:])
			return
		}
		for i, r := range l.owed {
			if r.To == runs[0].To { // a merge has taken them; their files stay a while
				l.merged = true
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
	l.at, l.trusted, l.owed, l.lost, l.merged = l.target(), true, nil, false, false
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
