package processor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/hanging"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/topology"
)

// hangingPause is the time between two looks for hanging transactions while a stable read waits.
const hangingPause = 5 * time.Second

// hangingTimeout bounds a look, and what a command does about one transaction.
const hangingTimeout = 10 * time.Second

// A coordinator may be loading its log: it is asked so many times, with this pause.
const (
	hangingTries = 5
	hangingRetry = time.Second
)

// hangingLook says what the brokers hold open that nothing here can end, once for each.
type hangingLook struct {
	mu     sync.Mutex
	last   time.Time
	unsure map[hanging.Transaction]int // looks in a row that were not sure of it
	told   string
}

// certain gives what hangs after a further look: what is sure, and what no coordinator has known in so many looks in a row. Such
// a transaction is one whose transactional id has expired, or whose coordinator is not up; nobody but an administrator ends it.
func (h *hangingLook) certain(f hanging.Findings) []hanging.Transaction {
	before := h.unsure
	h.unsure = map[hanging.Transaction]int{}
	out := slices.Clone(f.Hanging)
	for _, t := range f.Unsure {
		if h.unsure[t] = before[t] + 1; h.unsure[t] >= hangingTries {
			out = append(out, t)
		}
	}
	return out
}

// tellHanging looks for hanging transactions, now and then: only an administrator can end them, and without a word of it
// the wait looks as if the service hung.
func (s *service) tellHanging(ctx context.Context) {
	h := &s.hanging
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.last) < hangingPause {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, hangingTimeout)
	defer cancel()
	f, err := hanging.Find(bounded, s.reads.cl, s.reads.group, outputTopics(s.plan))
	h.last = time.Now()
	if err != nil || f.Denied != nil {
		s.log.Debug("could not look for hanging transactions everywhere", "error", err, "denied", f.Denied)
	}
	if err != nil {
		return // it says nothing of those that were seen before
	}
	var texts []string
	for _, t := range h.certain(f) {
		who := t.TransactionalID
		if who == "" {
			who = fmt.Sprintf("producer %d, which no coordinator knows", t.ProducerID)
		}
		texts = append(texts, t.String()+" of "+who)
	}
	if text := strings.Join(texts, ", "); text != h.told {
		h.told = text
		if text != "" {
			s.log.Error("the brokers have lost the end of a transaction: the stable read, and readers of committed records, wait for it for ever; see processor transactions --help", "hanging", texts)
		}
	}
}

func outputTopics(p *topology.Plan) []string {
	var topics []string
	for _, out := range p.Sinks {
		topics = append(topics, out.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// HangingTransaction is a transaction that a partition holds open although its coordinator is done with it.
type HangingTransaction struct {
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	TransactionalID string `json:"transactional_id"` // "" when no coordinator knows the producer any more, or none is up
	ProducerID      int64  `json:"producer_id"`
	Start           int64  `json:"start_offset"`
	// Decision is commit, abort or unknown: what the coordinator decided.
	Decision string `json:"decision"`
	Ended    bool   `json:"ended"`
	// Error is why it was not ended.
	Error string `json:"error,omitempty"`
}

// HangingTransactions lists the hanging transactions in the output topics and in the group's partition of
// __consumer_offsets. With end it writes the lost markers of those of which the decision is known; what is not ended has an
// Error. The user needs READ of these topics and of __transaction_state, and for end CLUSTER_ACTION.
func HangingTransactions(ctx context.Context, plan *topology.Plan, cfg Config, end bool) ([]HangingTransaction, error) {
	cfg = cfg.withDefaults()
	conn := kafka.Config{Brokers: cfg.Brokers, ClientID: plan.Application + "-transactions", Logger: cfg.Logger, Extra: cfg.ClientOptions}
	cl, err := kafka.NewClient(conn)
	if err != nil {
		return nil, fault.Stopf(fault.BadFile, "kafka.brokers: %w", err)
	}
	defer cl.Close()
	if err := kafka.Reach(ctx, conn); err != nil {
		return nil, err
	}
	var f hanging.Findings
	find := func(ctx context.Context) (err error) {
		f, err = hanging.Find(ctx, cl, plan.Application, outputTopics(plan))
		return err
	}
	err = kafka.Again(ctx, cl, find)
	for tries := 1; tries < hangingTries && err == nil && len(f.Unsure) > 0 && sleep(ctx, hangingRetry) == nil; tries++ {
		err = kafka.Again(ctx, cl, find)
	}
	if err == nil {
		err = f.Denied
	}
	if err != nil {
		return nil, kafka.Classify(err, "look for hanging transactions")
	}
	found := append(f.Hanging, f.Unsure...)
	var decisions []hanging.Decision
	err = kafka.Again(ctx, cl, func(ctx context.Context) (err error) {
		decisions, err = hanging.Decisions(ctx, cl, found)
		return err
	})
	if err != nil {
		return nil, kafka.Classify(err, "look what was decided about hanging transactions")
	}
	out := make([]HangingTransaction, 0, len(found))
	for i, h := range found {
		t := HangingTransaction{Topic: h.Topic, Partition: h.Partition, TransactionalID: h.TransactionalID, ProducerID: h.ProducerID, Start: h.Start, Decision: decisions[i].String()}
		if end {
			bounded, cancel := context.WithTimeout(ctx, hangingTimeout)
			err := hanging.End(bounded, cl, h, decisions[i])
			cancel()
			t.Ended = err == nil
			if err != nil {
				t.Error = err.Error()
			}
		}
		out = append(out, t)
	}
	return out, nil
}
