//go:build unix

package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// site is a cluster and, in it, a corner of one test: an input, an output, an application with its directories, under
// names that no other test and no earlier run uses.
type site struct {
	t       *testing.T
	ctx     context.Context
	brokers []string
	app     string
	in, out string
	dir     string // the data directory
	parts   int32
	cl      *kgo.Client
	adm     *kadm.Client
	fake    *kfake.Cluster // nil on a real Kafka and on one made by package embedded
	every   time.Duration  // checkpoint interval
	session time.Duration  // group session timeout
}

// embeddedSite is on the broker of `processor broker`.
func embeddedSite(t *testing.T, parts int32) *site {
	t.Helper()
	b, err := embedded.Start(t.Context(), embedded.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return newSite(t, []string{b.Addr()}, parts)
}

// fakeSite is on a broker of the same kind that a test sets up its own way.
func fakeSite(t *testing.T, parts int32, opts ...kfake.Opt) *site {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	end, err := embedded.MendGroups(c)
	require.NoError(t, err)
	t.Cleanup(end)
	s := newSite(t, c.ListenAddrs(), parts)
	s.fake = c
	return s
}

// realSite is on a real Kafka, or skips.
func realSite(t *testing.T, parts int32) *site {
	t.Helper()
	return newSite(t, realBrokers(t), parts)
}

// harshSite is on a real Kafka that forgets soon, or skips.
func harshSite(t *testing.T, parts int32) *site {
	t.Helper()
	return newSite(t, harshBrokers(t), parts)
}

func newSite(t *testing.T, brokers []string, parts int32) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	name := "it-" + strings.ToLower(rand.Text()[:10])
	s := &site{t: t, ctx: ctx, brokers: brokers, app: name, in: name + "-in", out: name + "-out", dir: filepath.Join(t.TempDir(), "data"), parts: parts, every: 300 * time.Millisecond, session: 10 * time.Second}
	var err error
	s.cl, err = kafka.NewClient(s.kafka(), kgo.ProducerLinger(2*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	require.NoError(t, err)
	t.Cleanup(s.cl.Close)
	s.adm = kadm.NewClient(s.cl)
	for _, topic := range []string{s.in, s.out} {
		s.topic(topic, nil)
	}
	return s
}

func (s *site) kafka() kafka.Config {
	return kafka.Config{Brokers: s.brokers, Logger: slog.New(slog.DiscardHandler)}
}

// impatient makes the group miss a member after a second, or as soon as a foreign cluster allows.
func (s *site) impatient() *site {
	s.session = time.Second
	if os.Getenv("KAFKA_BROKERS") != "" && s.fake == nil {
		s.session = 6 * time.Second
	}
	return s
}

// topic makes a topic with as many partitions as the site has. Busy brokers may take a while to learn of it.
func (s *site) topic(name string, config map[string]*string) {
	s.t.Helper()
	var err error
	for range 10 {
		if _, err = kafka.EnsureTopic(s.ctx, s.cl, name, s.parts, config); fault.CodeOf(err) != fault.UnknownTopic {
			break
		}
	}
	require.NoError(s.t, err)
}

// settings is the head of a service file: short timeouts, so that a test sees them pass.
const settings = `application: {{.App}}
kafka: {brokers: "{{.Brokers}}"}
data-dir: "{{.Dir}}"
checkpointing: {interval: {{.Interval}}, timeout: 5s}
transaction: {timeout: {{.TransactionTimeout}}}
group: {session-timeout: {{.Session}}}
`

// transactionTimeout is what the settings above ask for.
const transactionTimeout = 12 * time.Second

// totals counts and sums the paid orders per key.
const totals = settings + `sources:
  orders: {topic: {{.In}}, key: string, value: json}
steps:
  paid: {from: orders, filter: value.status == "paid"}
  totals: {from: paid, aggregate: {orders: count(), spent: sum(value.amount)}}
sinks:
  totals: {from: totals, topic: {{.Out}}, key: string, value: json}
`

// file writes a service file; changes are pairs of old and new text.
func (s *site) file(text string, changes ...string) string {
	s.t.Helper()
	require.Zero(s.t, len(changes)%2)
	for i := 0; i < len(changes); i += 2 {
		require.Contains(s.t, text, changes[i])
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	var b strings.Builder
	require.NoError(s.t, template.Must(template.New("").Parse(text)).Execute(&b, map[string]any{
		"App": s.app, "Brokers": strings.Join(s.brokers, ","), "Dir": s.dir, "In": s.in, "Out": s.out,
		"Interval": s.every, "TransactionTimeout": transactionTimeout, "Session": s.session,
	}))
	dir := s.t.TempDir()
	path := filepath.Join(dir, "service.yaml")
	require.NoError(s.t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// run starts the real binary on a service file.
func (s *site) run(file string, flags ...string) *process {
	s.t.Helper()
	return startProcess(s.t, processorBinary(s.t), append([]string{"run", file}, flags...))
}

// job starts a job of the Go DSL.
func (s *site) job(name string, env ...string) *process {
	s.t.Helper()
	return startProcess(s.t, os.Args[0], nil, append(env, asJob+"="+name, "JOB_BROKERS="+strings.Join(s.brokers, ","),
		"JOB_APPLICATION="+s.app, "JOB_IN="+s.in, "JOB_OUT="+s.out, "JOB_DIR="+s.dir, "JOB_INTERVAL="+s.every.String())...)
}

// put writes records to the input, one after the other.
func (s *site) put(recs ...*kgo.Record) {
	s.t.Helper()
	for _, r := range recs {
		r.Topic = s.in
	}
	require.NoError(s.t, s.cl.ProduceSync(s.ctx, recs...).FirstErr())
}

// order is the i-th order: the keys take turns, and so the count of each is known.
func order(i, keys int) *kgo.Record {
	status := "paid"
	if (i+i/keys)%10 == 9 {
		status = "open"
	}
	return &kgo.Record{Key: fmt.Appendf(nil, "customer-%d", i%keys), Value: fmt.Appendf(nil, `{"order_id":"o-%d","amount":%d,"status":"%s"}`, i, 1+i%977, status)}
}

// orders writes the orders from, from+1, … and returns when all are acknowledged.
func (s *site) orders(from, n, keys int) {
	s.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = order(from+i, keys)
	}
	s.put(recs...)
}

// committed reads the group's committed offsets; empty while there is no group.
func (s *site) committed() map[int32]kadm.Offset {
	s.t.Helper()
	out := map[int32]kadm.Offset{}
	got, err := s.adm.FetchOffsets(s.ctx, s.app)
	if err != nil {
		return out
	}
	for p, o := range got[s.in] {
		if o.Err == nil && o.At >= 0 {
			out[p] = o.Offset
		}
	}
	return out
}

// ends gives the ends of a topic: of the log, and of what a reader of committed records sees.
func (s *site) ends(topic string) (log, stable map[int32]int64) {
	s.t.Helper()
	log, stable = map[int32]int64{}, map[int32]int64{}
	a, err := s.adm.ListEndOffsets(s.ctx, topic)
	require.NoError(s.t, err)
	b, err := s.adm.ListCommittedOffsets(s.ctx, topic)
	require.NoError(s.t, err)
	a.Each(func(o kadm.ListedOffset) { log[o.Partition] = o.Offset })
	b.Each(func(o kadm.ListedOffset) { stable[o.Partition] = o.Offset })
	require.Len(s.t, log, len(stable))
	return log, stable
}

// lag is how many offsets of the input are not committed yet.
func (s *site) lag() int64 {
	s.t.Helper()
	_, ends := s.ends(s.in)
	committed := s.committed()
	var lag int64
	for p, end := range ends {
		lag += end - committed[p].At
	}
	return lag
}

// caughtUp waits until everything in the input is committed.
func (s *site) caughtUp(p *process) {
	s.t.Helper()
	p.until(time.Minute, func() bool { return s.lag() == 0 && len(s.committed()) == int(s.parts) }, "the group's lag is not 0")
}

// verify has the independent checker judge the totals.
func (s *site) verify(c verify.Config) verify.Report {
	s.t.Helper()
	c.Kafka, c.Input, c.Output, c.Group = s.kafka(), s.in, s.out, s.app
	if c.Format == "" {
		c.WhereField, c.WhereValue = "status", "paid"
	}
	r, err := verify.Verify(s.ctx, c)
	require.NoError(s.t, err)
	return r
}

// exact wants every order to have had its effect once.
func (s *site) exact(c verify.Config) verify.Report {
	s.t.Helper()
	// Kafka answers the end of a transaction before its markers are written: for a moment more offsets look open.
	require.Eventually(s.t, func() bool {
		log, stable := s.ends(s.out)
		return maps.Equal(log, stable)
	}, 5*time.Second, 20*time.Millisecond, "a transaction stays open on %s", s.out)
	r := s.verify(c)
	require.True(s.t, r.Exact() && r.Duplicates == 0 && r.Missing == 0 && r.Wrong == 0 && r.OutOfOrder == 0, "%s", r.String())
	require.Equal(s.t, r.RecordsIn, r.RecordsOut)
	require.Zero(s.t, r.GroupLag)
	require.Zero(s.t, r.OpenOffsets)
	return r
}

// read gives the committed records of a topic up to its last stable offsets, by partition and offset.
func (s *site) read(topic string) []*kgo.Record {
	s.t.Helper()
	_, ends := s.ends(topic)
	start := map[int32]kgo.Offset{}
	for p, end := range ends {
		if end > 0 {
			start[p] = kgo.NewOffset().AtStart()
		} else {
			delete(ends, p)
		}
	}
	cl, err := kafka.NewClient(s.kafka(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(s.t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(ends) > 0 {
		fetches := cl.PollFetches(ctx)
		require.NoError(s.t, fetches.Err(), "reading %s, left %v", topic, ends)
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := ends[r.Partition]; ok && r.Offset+1 >= end {
				delete(ends, r.Partition)
			}
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}
