package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// jobEnv makes the test binary a job: a small processor that is exactly-once by itself (a consumer group with
// transactions, its state rebuilt from its own committed output), or is not, by the variable's value.
const jobEnv = "TEST_JOB"

// demoEnv makes the test binary a demo on that directory, whose job never gives output: to be killed.
const demoEnv = "TEST_DEMO_DIR"

func TestMain(m *testing.M) {
	if how := os.Getenv(jobEnv); how != "" {
		if err := runJob(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(demoEnv); dir != "" {
		var out buffer
		cfg := testConfig("silent", &out)
		cfg.Dir, cfg.Stall = dir, time.Minute
		_, err := Run(context.Background(), cfg)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// testJob gives a Config.Command that starts such a job.
func testJob(how string) func(Job) (*exec.Cmd, error) {
	return func(j Job) (*exec.Cmd, error) {
		cmd := exec.Command(os.Args[0], j.Input, j.Output, strings.Join(j.Brokers, ","))
		cmd.Env = append(os.Environ(), jobEnv+"="+how)
		return cmd, nil
	}
}

type orderTotal struct {
	Orders int64 `json:"orders"`
	Spent  int64 `json:"spent"`
}

func runJob(how string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	input, output, brokers := os.Args[1], os.Args[2], strings.Split(os.Args[3], ",")
	switch how {
	case "dies":
		fmt.Fprintln(os.Stderr, "processor: topic orders does not exist")
		os.Exit(13)
	case "silent":
		fmt.Fprintln(os.Stderr, "pid", os.Getpid())
		<-ctx.Done()
		return nil
	}
	sess, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(brokers...), kgo.TransactionalID(output+"-tx"),
		kgo.ConsumerGroup(output), kgo.InstanceID("one"), kgo.ConsumeTopics(input),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer sess.Close()
	if _, _, err := sess.Client().ProducerID(ctx); err != nil { // aborts what a killed process left open
		return err
	}
	totals := map[string]orderTotal{}
	if how != "loses-state" {
		if totals, err = rebuild(ctx, brokers, output); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if err := step(ctx, sess, output, totals, how); err != nil {
			return err
		}
	}
	return nil
}

// step is one transaction: what a poll gives.
func step(ctx context.Context, sess *kgo.GroupTransactSession, output string, totals map[string]orderTotal, how string) error {
	fetches := sess.PollRecords(ctx, 2000)
	if ctx.Err() != nil {
		return nil
	}
	if err := fetches.Err(); err != nil {
		return err
	}
	if fetches.NumRecords() == 0 {
		return nil
	}
	lasting := context.WithoutCancel(ctx)
	if err := sess.Begin(); err != nil {
		return err
	}
	var failed error
	fetches.EachRecord(func(r *kgo.Record) {
		var o struct {
			Amount int64  `json:"amount"`
			Status string `json:"status"`
		}
		if failed = errors.Join(failed, json.Unmarshal(r.Value, &o)); o.Status != "paid" {
			return
		}
		if how == "skips" && r.Partition == 2 && r.Offset%1000 == 777 {
			return
		}
		t := totals[string(r.Key)]
		t.Orders++
		t.Spent += o.Amount
		totals[string(r.Key)] = t
		value, _ := json.Marshal(t)
		sess.Produce(lasting, &kgo.Record{Topic: output, Key: r.Key, Value: value}, nil)
	})
	committed, err := sess.End(lasting, kgo.TryCommit)
	if err = errors.Join(failed, err); err != nil {
		return err
	}
	if !committed {
		return errors.New("not committed")
	}
	return nil
}

// rebuild reads the committed totals to their end.
func rebuild(ctx context.Context, brokers []string, output string) (map[string]orderTotal, error) {
	totals := map[string]orderTotal{}
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeTopics(output),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, output)
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				var t orderTotal
				_ = json.Unmarshal(r.Value, &t)
				totals[string(r.Key)] = t
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return totals, nil
}
