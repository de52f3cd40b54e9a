//go:build unix

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

// walkTotal is the state of a key.
type walkTotal struct {
	Orders int64 `json:"orders"`
	Spent  int64 `json:"spent"`
}

// account knows what the output has to be.
type account struct {
	level   accuracy
	why     string
	loose   bool                            // more may be counted than there was, as at-least-once does behind a merge
	base    map[string]walkTotal            // at the last check
	all     map[string]map[string]walkTotal // by topic and key: what is in it
	unread  map[string]map[string]walkTotal // what the service has still to count
	unsure  map[string]bool                 // topics of which it is not known what was counted
	parts   map[string]int                  // of the topics
	mixed   map[string]bool                 // topics that have grown: a key is in several partitions
	ever    map[string]int64                // orders of a key, in all topics that there were
	seen    map[int32]int64                 // the outputs that were checked
	dropped int                             // round of the last loss, see recovers
	checks  int
}

// accuracy is what the steps since the last check allow.
type accuracy int

const (
	exactly accuracy = iota // each input has one output
	repeats                 // outputs may come again, the state is exact
	anyhow                  // state may be gone
)

func newAccount() *account {
	return &account{base: map[string]walkTotal{}, all: map[string]map[string]walkTotal{}, unread: map[string]map[string]walkTotal{},
		unsure: map[string]bool{}, mixed: map[string]bool{}, parts: map[string]int{}, ever: map[string]int64{}, seen: map[int32]int64{}, dropped: -10}
}

func (a *account) allow(level accuracy, why string) {
	if level > a.level {
		a.level, a.why = level, why
	}
	if level == anyhow {
		a.dropped = a.checks
	}
}

// anew forgets a topic's records.
func (a *account) anew(topic string, parts int) {
	a.parts[topic] = parts
	a.all[topic], a.unread[topic] = map[string]walkTotal{}, map[string]walkTotal{}
}

// begin is a service without state, at the beginning of everything.
func (a *account) begin() {
	a.allow(repeats, "it begins anew")
	clear(a.base)
	for topic, all := range a.all {
		a.unread[topic] = maps.Clone(all)
	}
	clear(a.unsure)
}

// recovers is a start that goes back to an older checkpoint: outputs repeat, the state is exact, unless the checkpoint may be
// one from before a loss.
func (a *account) recovers() {
	a.allow(repeats, "it goes back")
	if a.checks-a.dropped < 4 {
		a.level, a.why = anyhow, "it goes back, perhaps behind a loss"
	}
}

const walkKeys = 12

// put writes each key so many times into the topics that the service reads.
func (w *operatorWalk) put(times int) {
	var recs []*kgo.Record
	topics := w.now.topics()
	for range times {
		for k := range walkKeys {
			key, amount := fmt.Sprintf("key-%d", k), 1+w.rnd.Int64N(100)
			topic := pick(w.rnd, topics)
			for _, of := range []map[string]map[string]walkTotal{w.book.all, w.book.unread} {
				of[topic][key] = walkTotal{of[topic][key].Orders + 1, of[topic][key].Spent + amount}
			}
			w.book.ever[key]++
			recs = append(recs, &kgo.Record{Topic: topic, Key: []byte(key), Value: fmt.Appendf(nil, `{"amount":%d}`, amount)})
		}
	}
	if w.producer == nil {
		var err error
		w.producer, err = kafka.NewClient(w.kafka(), kgo.ProducerLinger(2*time.Millisecond))
		require.NoError(w.t, err)
		w.t.Cleanup(w.producer.Close)
	}
	require.NoError(w.t, w.producer.ProduceSync(w.ctx, recs...).FirstErr())
}

// forgetTopics lets what is put next go to the topics as they are then, from a producer of its own: one that begins its numbers
// anew is not heard.
func (w *operatorWalk) forgetTopics() { w.producer = nil }

// caught says whether everything in the inputs is committed.
func (w *operatorWalk) caught() bool {
	got, err := w.adm.FetchOffsets(w.ctx, w.app)
	if err != nil {
		return false
	}
	for _, topic := range w.now.topics() {
		_, ends := w.ends(topic)
		if len(ends) != w.book.parts[topic] {
			return false
		}
		for p, end := range ends {
			if o, ok := got.Lookup(topic, p); !ok || o.Err != nil || o.At < end {
				return false
			}
		}
	}
	return true
}

// check compares the outputs since the last one with what is to be.
func (w *operatorWalk) check() {
	a := w.book
	a.checks++
	for _, topic := range w.now.topics() {
		if a.unsure[topic] {
			a.allow(anyhow, topic+" comes back after a loss")
		}
		if a.mixed[topic] && !w.now.exchange {
			a.allow(anyhow, "a key has a state in each partition that it was in")
		}
	}
	if w.now.mode == "at-least-once" {
		a.allow(repeats, "at-least-once")
	}
	if w.now.mode == "disabled" {
		a.allow(anyhow, "no checkpoints")
	}
	outs := map[string][]walkTotal{}
	for _, r := range w.read(w.out) {
		if r.Offset >= a.seen[r.Partition] {
			var v walkTotal
			require.NoError(w.t, json.Unmarshal(r.Value, &v))
			outs[string(r.Key)] = append(outs[string(r.Key)], v)
			a.seen[r.Partition] = r.Offset + 1
		}
	}
	for k := range walkKeys {
		w.checkKey(fmt.Sprintf("key-%d", k), outs)
	}
	w.say("  checked: %s %s", []string{"exact", "the state is exact", "some of it"}[a.level], a.why)
	w.counts["checked "+[]string{"exactly", "states", "anyhow"}[a.level]]++
	for topic := range a.all {
		switch read := slices.Contains(w.now.topics(), topic); {
		case read:
			a.unread[topic] = map[string]walkTotal{}
			delete(a.unsure, topic)
		case a.level == anyhow:
			a.unsure[topic] = true
		}
	}
	a.level, a.why, a.loose = exactly, "", w.now.mode != ""
	if a.loose {
		a.allow(anyhow, "since it was not exactly-once")
	}
}

func (w *operatorWalk) checkKey(key string, outs map[string][]walkTotal) {
	a, got := w.book, outs[key]
	want := a.base[key]
	var n int64
	for _, topic := range w.now.topics() {
		u := a.unread[topic][key]
		want, n = walkTotal{want.Orders + u.Orders, want.Spent + u.Spent}, n+u.Orders
	}
	about := fmt.Sprintf("%s: before %v, %d inputs, outputs %v, %s", key, a.base[key], n, got, a.why)
	switch {
	case a.level == exactly:
		require.Len(w.t, got, int(n), about)
		for i, v := range got {
			require.Equal(w.t, a.base[key].Orders+int64(i)+1, v.Orders, about)
		}
		fallthrough
	case a.level == repeats:
		if len(got) > 0 || n > 0 {
			require.NotEmpty(w.t, got, about)
			require.Equal(w.t, want, got[len(got)-1], about)
		}
	case len(got) > 0 && !a.loose:
		require.LessOrEqual(w.t, got[len(got)-1].Orders, a.ever[key], "more than there ever was: %s", about)
	}
	if len(got) > 0 {
		a.base[key] = got[len(got)-1]
	}
}

// rest waits until the members of the group that are gone are forgotten.
func (w *operatorWalk) rest() { time.Sleep(w.session * 6 / 5) }
