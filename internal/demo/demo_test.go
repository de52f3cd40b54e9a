package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/verify"
)

const testTopology = `application: order-totals
kafka: {brokers: "${KAFKA_BROKERS:-localhost:9092}"}
sources:
  orders: {topic: orders, key: string, value: json}
steps:
  paid:   {from: orders, filter: value.status == "paid"}
  totals: {from: paid, aggregate: {orders: count(), spent: sum(value.amount)}}
sinks:
  totals: {from: totals, topic: order-totals, key: string, value: json}
`

// buffer may be written and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func testConfig(how string, out *buffer) Config {
	return Config{Seed: 7, Rate: 2000, Kills: 2, Duration: 2500 * time.Millisecond, Stall: 2 * time.Second, Plain: true, Out: out,
		Command: testJob(how), Topology: []byte(testTopology)}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestTheDemoVerifiesAJobThatIsExactlyOnce(t *testing.T) {
	t.Parallel()
	var out buffer
	cfg := testConfig("right", &out)
	cfg.Dir = filepath.Join(t.TempDir(), "new")
	cfg.Kills, cfg.Duration = 3, 4*time.Second
	cfg.Checkpoint = func(string) (uint64, bool) { return 42, true }
	r, err := Run(within(t), cfg)
	require.NoError(t, err, out.String())
	require.True(t, r.Exact(), r.String())
	require.Empty(t, r.Notes)
	require.Len(t, r.Kills, 3)
	for i, k := range r.Kills {
		require.Positive(t, k.Recovery)
		if i > 0 {
			require.Greater(t, k.At, r.Kills[i-1].At)
		}
	}
	require.Greater(t, r.Report.RecordsIn, int64(4000))
	require.Equal(t, r.Report.RecordsIn, r.Report.RecordsOut)
	require.Positive(t, r.Report.Filtered, "open and cancelled orders do not count")
	require.Positive(t, r.FirstOutput)
	require.EqualValues(t, 42, r.Checkpoint)

	text := out.String()
	require.Contains(t, text, "seed 7, the embedded broker at 127.0.0.1:")
	require.Contains(t, text, "kill -9 of process")
	require.Contains(t, text, "(3 of 3)")
	require.Contains(t, text, "totals")
	require.Contains(t, text, "checkpoint 42")
	require.NotContains(t, text, "\x1b[", "no cursor movement without a terminal")
	verdict := r.String()
	require.Contains(t, verdict, verify.Verified)
	require.Contains(t, verdict, "--seed 7")
	require.Contains(t, verdict, "duplicates    0")
	require.FileExists(t, filepath.Join(cfg.Dir, "job.log"))
	file, err := os.ReadFile(filepath.Join(cfg.Dir, "orders.yaml"))
	require.NoError(t, err)
	require.Equal(t, testTopology, string(file))
	_, err = json.Marshal(r)
	require.NoError(t, err)

	_, err = Run(within(t), cfg)
	require.ErrorContains(t, err, "is not empty")
	require.Equal(t, fault.Usage, fault.CodeOf(err))
}

func TestTheDemoFindsAJobThatLosesItsState(t *testing.T) {
	old := Sabotages
	Sabotages = []Sabotage{{"loses-state", "for this test"}}
	defer func() { Sabotages = old }()
	var out buffer
	cfg := testConfig("loses-state", &out)
	cfg.Sabotage = "loses-state"
	r, err := Run(within(t), cfg)
	require.NoError(t, err, out.String())
	defer os.RemoveAll(r.Dir)
	require.False(t, r.Exact())
	require.Positive(t, r.Report.Duplicates)
	require.NotEmpty(t, r.Report.Examples)
	require.Contains(t, r.String(), verify.Violated)
	require.Contains(t, r.String(), "was found, as it should be")
	require.Contains(t, out.String(), "planted fault: loses-state")
	require.DirExists(t, r.Dir, "kept to look into")
	require.Contains(t, SabotageHelp(), "loses-state")
}

func TestTheDemoFindsAJobThatSkipsInput(t *testing.T) {
	t.Parallel()
	var out buffer
	cfg := testConfig("skips", &out)
	r, err := Run(within(t), cfg)
	require.NoError(t, err, out.String())
	defer os.RemoveAll(r.Dir)
	require.False(t, r.Exact())
	require.Positive(t, r.Report.Missing)
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "no progress for 2s")
}

func TestAJobThatDiesByItselfIsExplained(t *testing.T) {
	t.Parallel()
	var out buffer
	r, err := Run(within(t), testConfig("dies", &out))
	require.ErrorContains(t, err, "exit code 13 (a topic does not exist)")
	require.ErrorContains(t, err, "| processor: topic orders does not exist")
	require.FileExists(t, filepath.Join(r.Dir, "job.log"))
	require.NoError(t, os.RemoveAll(r.Dir))
}

func TestAJobWithoutOutputIsAnError(t *testing.T) {
	t.Parallel()
	var out buffer
	cfg := testConfig("silent", &out)
	cfg.Stall = -9 * time.Second // one second in all
	r, err := Run(within(t), cfg)
	require.ErrorContains(t, err, "gave no total within 1s")
	require.NoError(t, os.RemoveAll(r.Dir))
}

func TestCancelStopsEverything(t *testing.T) {
	t.Parallel()
	var out buffer
	ctx, cancel := context.WithCancel(within(t))
	cfg := testConfig("right", &out)
	cfg.Duration = time.Minute
	time.AfterFunc(1500*time.Millisecond, cancel)
	start := time.Now()
	r, err := Run(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(start), 10*time.Second)
	require.Empty(t, r.Dir, "nothing is left behind")
}

func TestARealClusterGetsTopicsOfItsOwn(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(within(t), embedded.Config{Topics: []embedded.Topic{{Name: "orders", Partitions: 1}}})
	require.NoError(t, err)
	defer b.Close()
	var out buffer
	cfg := testConfig("right", &out)
	cfg.Brokers, cfg.Kills, cfg.Duration = []string{b.Addr()}, -1, time.Second
	cfg.Dir = t.TempDir()
	r, err := Run(within(t), cfg)
	require.NoError(t, err)
	require.True(t, r.Exact(), r.String())
	require.Empty(t, r.Kills)
	require.True(t, strings.HasPrefix(r.Report.Input, "orders-demo-"), r.Report.Input)
	file, err := os.ReadFile(filepath.Join(cfg.Dir, "orders.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(file), "topic: "+r.Report.Input+",")
	require.Contains(t, string(file), "topic: "+r.Report.Output+",")
	require.Contains(t, string(file), "application: "+r.Report.Output+"\n")
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	require.NoError(t, err)
	defer cl.Close()
	left, err := kadm.NewClient(cl).ListTopics(within(t))
	require.NoError(t, err)
	require.Equal(t, []string{"orders"}, left.Names(), "its own topics are gone, the others are not")
}

func TestRefusals(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Rate = -1 },
		func(c *Config) { c.Rate = maxRate + 1 },
		func(c *Config) { c.Kills = maxKills + 1 },
		func(c *Config) { c.Kills, c.Duration = 10, time.Second },
		func(c *Config) { c.Duration = -time.Second },
		func(c *Config) { c.Sabotage = "no such" },
	} {
		var cfg Config
		change(&cfg)
		_, err := Run(within(t), cfg)
		require.Equal(t, fault.Usage, fault.CodeOf(err), err)
	}
}

func TestTheJobsCommandLine(t *testing.T) {
	job := Job{File: "/d/orders.yaml", DataDir: "/d/job", Brokers: []string{"a:1", "b:2"}}
	cmd, err := DefaultCommand(job)
	require.NoError(t, err)
	require.Equal(t, []string{"run", "/d/orders.yaml"}, cmd.Args[1:])
	require.Subset(t, cmd.Env, []string{"KAFKA_BROKERS=a:1,b:2", "DATA_DIR=/d/job"})
	job.Sabotage = "bug"
	cmd, err = DefaultCommand(job)
	require.NoError(t, err)
	require.Equal(t, []string{"demo-job", "--sabotage", "bug", "/d/orders.yaml"}, cmd.Args[1:])
}

func TestTheScheduleIsSeededAndSpread(t *testing.T) {
	const d = 40 * time.Second
	for seed := range uint64(50) {
		at := schedule(seed, 5, d)
		require.Equal(t, at, schedule(seed, 5, d))
		require.True(t, slices.IsSorted(at))
		require.GreaterOrEqual(t, at[0], d/10)
		require.LessOrEqual(t, at[4], d*9/10)
	}
	require.NotEqual(t, schedule(1, 5, d), schedule(2, 5, d))
}

func TestOrdersAreAFunctionOfTheSeed(t *testing.T) {
	a, b := newOrderStream(3), newOrderStream(3)
	keys, paid := map[int]bool{}, 0
	for range 20_000 {
		o := a.draw()
		require.Equal(t, o, b.draw())
		require.Positive(t, o.amount)
		keys[o.customer] = true
		if o.status == "paid" {
			paid++
		}
	}
	require.Greater(t, len(keys), 3000)
	require.InDelta(t, 18_000, paid, 300)
	o := order{id: 5, customer: 12, amount: 1999, status: "paid"}
	placed := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	require.JSONEq(t, `{"order_id":"o-5","customer":"customer-12","amount":1999,"status":"paid","placed_at":1767323045006}`,
		string(o.appendJSON(nil, placed)))
}

func TestTheViewIsRepaintedInPlace(t *testing.T) {
	var out buffer
	now := status{}
	v := newView(Config{Out: &out, Kills: 5, Duration: 40 * time.Second}, func() status { return now })
	v.inPlace = true
	v.say("start")
	v.paint()
	require.NotContains(t, out.String(), "\x1b[11A")
	now = status{elapsed: 2 * time.Second, in: 30_000, out: 1_234_567, checkpoint: 3}
	v.addKill(Kill{At: time.Second})
	v.paint()
	v.recovered(432 * time.Millisecond)
	v.paint()
	text := out.String()
	require.Contains(t, text, "\x1b[11A\x1b[?7l\r  elapsed     2.0 s of 40 s\x1b[K\n")
	require.Contains(t, text, "orders      30,000       15,000/s")
	require.Contains(t, text, "1,234,567")
	require.Contains(t, text, "running…")
	require.Contains(t, text, "recovery    432 ms")
	require.False(t, isTerminal(&out))
}

func TestRenameRefusesWhatItDoesNotKnow(t *testing.T) {
	_, err := newNames("-x").rename([]byte("application: other\n"))
	require.ErrorContains(t, err, "0 times application: order-totals")
	same, err := newNames("").rename([]byte("application: other\n"))
	require.NoError(t, err)
	require.Equal(t, "application: other\n", string(same))
	example, err := exampleTopology()
	require.NoError(t, err)
	renamed, err := newNames("-x").rename(example)
	require.NoError(t, err)
	require.Contains(t, string(renamed), "\napplication: order-totals-x\n")
	require.Contains(t, string(renamed), "topic: orders-x\n")
	require.Contains(t, string(renamed), "topic: order-totals-x\n")
	require.True(t, onlyPaid([]byte(testTopology)))
	require.False(t, onlyPaid([]byte(`filter: value.amount > 0`)))
}
