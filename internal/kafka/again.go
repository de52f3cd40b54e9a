package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// ErrNoBroker says that none answers, whatever it is asked.
var ErrNoBroker = errors.New("no Kafka broker answers")

// limits are those of Again.
type limits struct {
	total time.Duration // of errors that may pass
	reach time.Duration // without an answer of any broker
	hear  time.Duration // how long it is waited for a sign that any broker answers
}

var usual = limits{total: requestRetryTime, reach: defaultReach, hear: 2 * time.Second}

// Again does what asks the cluster something, and does it again after errors that may pass (IsRetriable), as long as ctx
// allows, for 30 s at most. A broker that has died is asked in vain until another one has its place. When no broker at all
// answers for 10 s, the error is of code Unreachable. An error of do is given as it is; when ctx ends first, with that of ctx.
//
// do must give up when its context ends, which may be before that of ctx does.
func Again(ctx context.Context, cl *kgo.Client, do func(context.Context) error) error {
	return usual.again(ctx, cl, do)
}

func (l limits) again(ctx context.Context, cl *kgo.Client, do func(context.Context) error) error {
	begun := time.Now()
	heard, wait, cut := begun, stableFirst, l.reach-l.hear
	for {
		most := max(l.hear, time.Until(heard.Add(cut)))
		bounded, cancel := context.WithTimeout(ctx, most)
		err := do(bounded)
		mute := bounded.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return endedWith(ctx.Err(), err)
		case !mute && !IsRetriable(err), time.Since(begun) > l.total:
			return err
		case !mute && !IsUnreachable(err):
			heard = time.Now()
		case l.hears(ctx, cl):
			heard = time.Now()
			if mute {
				cut *= 2 // the cluster answers, so what was asked may take longer than a broker is waited for
			}
		case ctx.Err() == nil && time.Since(heard) >= l.reach:
			return fault.Restartf(fault.Unreachable, "%w within %v: %w", ErrNoBroker, l.reach, err)
		}
		if serr := sleep(ctx, wait); serr != nil {
			return endedWith(serr, err)
		}
		wait = min(stableMost, wait*2)
	}
}

// endedWith says what was wrong when the time ended.
func endedWith(ended, last error) error {
	if errors.Is(last, ended) {
		return last
	}
	return fmt.Errorf("%w (%w)", ended, last)
}

// hears asks which brokers there are, and whether any of them answers at all. The question is put to one that the client
// picks, which may be the one that hangs, and to each that it knows. A client asks a broker that has died for as long as it
// knows it: what it has learnt of coordinators and leaders is forgotten only with the first.
func (l limits) hears(ctx context.Context, cl *kgo.Client) bool {
	bounded, cancel := context.WithTimeout(ctx, l.hear)
	defer cancel()
	brokers := append(cl.DiscoveredBrokers(), cl.SeedBrokers()...)
	answers := make(chan error, len(brokers)+1)
	ask := func(request func(context.Context, kmsg.Request) (kmsg.Response, error)) {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{}
		_, err := request(bounded, req)
		answers <- err
	}
	go ask(cl.Request)
	for _, b := range brokers {
		go ask(b.Request)
	}
	heard := false
	for range cap(answers) { // all of them end with bounded; the first one's answer is waited for, since it counts twice
		heard = <-answers == nil || heard
	}
	return heard
}
