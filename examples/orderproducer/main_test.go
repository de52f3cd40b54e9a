package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.yaml.in/yaml/v3"

	"github.com/millweir/millweir/internal/embedded"
)

func TestOrdersAreWritten(t *testing.T) {
	b, err := embedded.Start(t.Context(), embedded.Config{Topics: []embedded.Topic{{Name: "orders", Partitions: 4}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	o, err := parse([]string{"-rate", "2000", "-customers", "20"}, b.Addr())
	require.NoError(t, err)
	require.Equal(t, options{brokers: []string{b.Addr()}, topic: "orders", rate: 2000, customers: 20}, o)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var n int
	produced := make(chan error, 1)
	go func() {
		var err error
		n, err = produce(ctx, o)
		produced <- err
	}()

	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer cl.Close()
	ids, customers := map[string]bool{}, map[string]bool{}
	for more := true; more || len(ids) < n; {
		if more && len(ids) >= 1000 {
			stop()
			require.NoError(t, <-produced)
			more = false
			continue
		}
		reading, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		fetches := cl.PollFetches(reading)
		cancel()
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			var got order
			require.NoError(t, json.Unmarshal(r.Value, &got))
			require.False(t, ids[got.OrderID], "%s is there twice", got.OrderID)
			ids[got.OrderID], customers[got.Customer] = true, true
			require.Equal(t, got.Customer, string(r.Key))
			require.Contains(t, []string{"paid", "open"}, got.Status)
			require.Positive(t, got.Amount)
			require.InDelta(t, time.Now().UnixMilli(), got.PlacedAt, 60_000)
		})
	}
	require.Len(t, ids, n)
	require.Len(t, customers, 20)
}

func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{{"-rate", "0"}, {"-customers", "0"}, {"x"}, {"-check", "10s"}, {"-check", "1s", "-health", "f"}, {"-check", "-1s", "-health", "f"}} {
		_, err := parse(args, "")
		require.Error(t, err, args)
	}
	o, err := parse(nil, "a:1,b:2")
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "b:2"}, o.brokers)
}

// What docker-compose.yml starts must be a command line of this program.
func TestComposeStartsItAsItsCommandLineAllows(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var f struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Healthcheck struct{ Test []string }
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &f))
	s := f.Services["orders"]
	o, err := parse(s.Command, s.Environment["KAFKA_BROKERS"])
	require.NoError(t, err)
	require.Equal(t, options{brokers: []string{"kafka:19092"}, topic: "orders", rate: 1000, customers: 1000, health: o.health}, o)
	require.NotEmpty(t, o.health)

	// The health check is this program, too, and looks at the same file.
	require.Equal(t, []string{"CMD", "orderproducer"}, s.Healthcheck.Test[:2])
	c, err := parse(s.Healthcheck.Test[2:], "")
	require.NoError(t, err)
	require.Equal(t, o.health, c.health)
	require.Positive(t, c.check)
}

// The check is true: it fails before the first order is acknowledged, holds while orders are, and fails when brokers have
// acknowledged nothing for as long as it says.
func TestHealthFollowsWhatTheBrokersAcknowledge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "health")
	now := time.Now()
	p := &pulse{file: file}
	require.NoError(t, p.start())
	require.NoError(t, p.beat(0, now))
	require.ErrorContains(t, p.check(5*time.Second, now), "no order was acknowledged so far")
	require.NoError(t, p.beat(7, now))
	require.NoError(t, p.check(5*time.Second, now))
	require.NoError(t, p.beat(7, now.Add(20*time.Second)))
	require.ErrorContains(t, p.check(5*time.Second, now.Add(20*time.Second)), "no order was acknowledged for")
	require.NoError(t, p.start(), "the next run begins without it")
	require.Error(t, p.check(time.Hour, now))

	b, err := embedded.Start(t.Context(), embedded.Config{Topics: []embedded.Topic{{Name: "orders", Partitions: 1}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	o, err := parse([]string{"-rate", "2000", "-health", file}, b.Addr())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := produce(ctx, o)
		ended <- err
	}()
	require.Eventually(t, func() bool { return p.check(5*time.Second, time.Now()) == nil }, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)

	o.health = filepath.Join(file, "no", "directory")
	_, err = produce(t.Context(), o)
	require.ErrorContains(t, err, "-health")
}
