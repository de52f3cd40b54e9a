package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

const (
	seedRetry = 200 * time.Millisecond
	// mostClosed is how often a broker may close a connection at the first request until it is taken for none, or for one with
	// other settings of TLS and SASL. Once or twice is what happens while brokers are restarted.
	mostClosed = 5
	// seedsWait is how long the others are waited for when one has answered, so that it is known whether they are of its cluster.
	seedsWait = time.Second
)

// connect gives a client behind the first answer of a broker, which comes with it. It has only those seed brokers that have answered.
func connect(ctx context.Context, cfg Config) (*kgo.Client, *kmsg.MetadataResponse, error) {
	bound := cfg.reach()
	if end, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(end))
	}
	dials := new(dialWatch)
	cl, err := NewClient(cfg, kgo.WithHooks(dials), kgo.DialTimeout(max(time.Millisecond, min(dialTimeout, bound/2))))
	if err != nil {
		return nil, nil, fault.Stopf(fault.Usage, "Kafka client: %w", err)
	}
	s := askSeeds(ctx, cl, bound, dials)
	meta, err := s.first(ctx, bound, dials)
	if err == nil {
		err = s.keepAnswered(cl)
	}
	if err != nil {
		cl.Close()
		return nil, nil, err
	}
	return cl, meta, nil
}

// seeds are the seed brokers, and what became of the question to each.
type seeds struct {
	addrs   []string
	answers []*kmsg.MetadataResponse // nil for none
	errs    []error                  // of the last try
}

// askSeeds asks every seed broker for the cluster, again and again until one answers or the bound ends; then the others have
// seedsWait to answer what they have been asked.
func askSeeds(ctx context.Context, cl *kgo.Client, bound time.Duration, dials *dialWatch) *seeds {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	looking, found := context.WithCancel(bounded)
	defer found()
	brokers := cl.SeedBrokers()
	s := &seeds{cl.OptValue(kgo.SeedBrokers).([]string), make([]*kmsg.MetadataResponse, len(brokers)), make([]error, len(brokers))}
	var asked sync.WaitGroup
	for i, b := range brokers {
		asked.Go(func() {
			for closed := 0; ; {
				req := kmsg.NewPtrMetadataRequest()
				req.Topics = []kmsg.MetadataRequestTopic{}
				resp, err := req.RequestWith(bounded, b)
				if s.errs[i] = err; err == nil {
					s.answers[i] = resp
					found()
					time.AfterFunc(min(seedsWait, bound/4), cancel)
					return
				}
				dials.noteIfNone(err)
				if isFirstEOF(err) {
					closed++
				}
				if IsDenied(err) || closed == mostClosed || sleep(looking, seedRetry) != nil {
					return
				}
			}
		})
	}
	asked.Wait()
	return s
}

func isFirstEOF(err error) bool { return errors.As(err, new(*kgo.ErrFirstReadEOF)) }

// first gives an answer. Seed brokers of two clusters are refused: a client takes each answer for that of the one cluster. Those
// that do not answer, or do not tell their cluster, exclude nothing.
func (s *seeds) first(ctx context.Context, bound time.Duration, dials *dialWatch) (meta *kmsg.MetadataResponse, err error) {
	var from string // which told the cluster
	for i, a := range s.answers {
		if a != nil && (meta == nil || clusterID(meta) == "") {
			meta, from = a, s.addrs[i]
		}
		if a != nil && clusterID(a) != "" && clusterID(a) != clusterID(meta) {
			return nil, fault.Stopf(fault.BadFile, "the brokers %s (cluster id %s) and %s (cluster id %s) are of two clusters: name brokers of one",
				from, clusterID(meta), s.addrs[i], clusterID(a))
		}
	}
	if meta != nil {
		return meta, nil
	}
	all := strings.Join(s.addrs, ", ")
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, fmt.Errorf("reach Kafka at %s: %w", all, ctx.Err())
	}
	if i := slices.IndexFunc(s.errs, IsDenied); i >= 0 {
		return nil, Classify(s.errs[i], "connect to Kafka at %s", s.addrs[i])
	}
	if i := slices.IndexFunc(s.errs, isFirstEOF); i >= 0 {
		return nil, fault.Stopf(fault.Unreachable, "the server at %s closed the connection at the first request: is it Kafka, and are TLS and SASL as the listener wants them? (%w)", s.addrs[i], s.errs[i])
	}
	return nil, fault.Stopf(fault.Unreachable, "no Kafka broker answers at %s within %v; last error: %w", all, bound.Round(time.Millisecond), dials.lastError())
}

func clusterID(meta *kmsg.MetadataResponse) string {
	if meta.ClusterID == nil {
		return ""
	}
	return *meta.ClusterID
}

// keepAnswered makes the client ask those only that have answered: it waits long for one that hangs.
func (s *seeds) keepAnswered(cl *kgo.Client) error {
	var answered []string
	for i, a := range s.answers {
		if a != nil {
			answered = append(answered, s.addrs[i])
		}
	}
	if len(answered) == len(s.addrs) {
		return nil
	}
	return cl.UpdateSeedBrokers(answered...)
}

// dialWatch keeps the last error of opening a connection: a request that ran into its deadline does not tell it. That of a try
// which the end of the time has cut off says less than the one before.
type dialWatch struct {
	mu   sync.Mutex
	last error
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (w *dialWatch) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var late net.Error
	if w.last == nil || !errors.As(err, &late) || !late.Timeout() {
		w.last = err
	}
}

func (w *dialWatch) noteIfNone(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = err
	}
}

func (w *dialWatch) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
