package kafka

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The limits that every client gets; a caller's own options come later and win.
const (
	dialTimeout      = 5 * time.Second
	maxDecompressed  = 256 << 20              // one batch, unpacked
	metadataMaxAge   = 10 * time.Second       // until then nobody sees that an input has grown; other producers may see it after minutes
	metadataMinAge   = 250 * time.Millisecond // also how soon a new leader is looked for
	backoffFirst     = 50 * time.Millisecond
	backoffMost      = 2 * time.Second
	defaultReach     = 10 * time.Second
	defaultClientID  = "millweir"
	maxSeedBrokers   = 64
	idleConnection   = time.Minute
	requestRetryTime = 30 * time.Second // of a read that keeps failing with errors that may pass
)

// MaxReadBytes is the largest answer of a broker that a client reads; one batch may be as large as the broker's
// message.max.bytes.
const MaxReadBytes = 100 << 20

// Config says how to reach a cluster.
type Config struct {
	// Brokers are the seed brokers, host:port each. At least one.
	Brokers []string
	// ClientID is what the broker's logs and quotas know the client by; empty means "millweir".
	ClientID string
	// Logger gets the client's warnings; nil means slog.Default().
	Logger *slog.Logger
	// Reach bounds how long Probe tries to reach any broker; 0 means 10 s.
	Reach time.Duration
	// Extra are options for every client built from this Config (TLS, SASL, a dialer in tests).
	Extra []kgo.Opt
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.Default()
	}
	return c.Logger
}

func (c Config) reach() time.Duration {
	if c.Reach <= 0 {
		return defaultReach
	}
	return c.Reach
}

// NewClient builds a client; it does not connect. opts come after the Config's own options and win over them. The
// error is that of a wrong option or an empty broker list.
func NewClient(cfg Config, opts ...kgo.Opt) (*kgo.Client, error) {
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("no Kafka broker is named")
	}
	if len(cfg.Brokers) > maxSeedBrokers {
		return nil, errors.New("more than 64 seed brokers are named")
	}
	id := cfg.ClientID
	if id == "" {
		id = defaultClientID
	}
	all := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(id),
		kgo.WithLogger(newLogBridge(cfg.logger().With("client", id))),
		kgo.DialTimeout(dialTimeout),
		kgo.ConnIdleTimeout(idleConnection),
		kgo.BrokerMaxReadBytes(MaxReadBytes),
		kgo.MaxDecompressBatchBytes(maxDecompressed),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.RetryBackoffFn(backoff),
		kgo.DisableClientMetrics(),
		// A connection that breaks before it was of use does not tell of wrong TLS or SASL settings here: Probe has said so, and it
		// is what a broker that dies or a proxy does.
		kgo.AlwaysRetryEOF(),
	}
	all = append(all, cfg.Extra...)
	return kgo.NewClient(append(all, opts...)...)
}

// backoff doubles from 50 ms to 2 s, with a fifth of jitter either way. kgo's own (250 ms to 5 s) would make up most
// of the time that a restart takes.
func backoff(fails int) time.Duration {
	d := backoffMost
	if fails < 7 {
		d = min(backoffMost, backoffFirst<<max(0, fails-1))
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
