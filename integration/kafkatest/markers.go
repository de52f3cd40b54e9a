//go:build unix

package kafkatest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/hanging"
)

const markersPoll = 50 * time.Millisecond

// mendMarkers writes the markers that were lost. A broker that comes back before its old session is over leads its
// partitions by what it remembers, reads in the transaction log that a transaction is to be committed, and is deposed
// when the session ends; its coordinator takes the partitions, which have no leader for a moment, for deleted ones, and notes
// the transaction as complete without any marker (Kafka 4.4). Whoever needs these offsets then waits for ever. It is the
// broker's defect; tests of what a service does over a restart begin where the broker has done what it decided to do.
func (b *Broker) mendMarkers(ctx context.Context) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(b.Addr, ",")...))
	if err != nil {
		return err
	}
	defer cl.Close()
	topics, err := kadm.NewClient(cl).ListTopicsWithInternal(ctx)
	if err != nil {
		return fmt.Errorf("list the topics: %w", err)
	}
	f, err := hanging.Find(ctx, cl, "", topics.Names())
	for err != nil || len(f.Unsure) > 0 { // the coordinators are still loading
		select {
		case <-ctx.Done():
			return fmt.Errorf("look for lost markers: %w: %v %v", ctx.Err(), f.Unsure, err)
		case <-time.After(markersPoll):
			f, err = hanging.Find(ctx, cl, "", topics.Names())
		}
	}
	lost := f.Hanging
	if len(lost) == 0 {
		return nil
	}
	decisions, err := hanging.Decisions(ctx, cl, lost)
	if err != nil {
		return fmt.Errorf("look what was decided: %w", err)
	}
	for i, h := range lost {
		b.log("the broker has lost a marker: %v of %s, decided: %v", h, h.TransactionalID, decisions[i])
		if err := hanging.End(ctx, cl, h, decisions[i]); err != nil {
			return err
		}
	}
	return nil
}
