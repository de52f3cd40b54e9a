//go:build unix

package kafkatest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// answers sends an ApiVersions request (version 0, correlation id 1, no client id) and says whether a whole answer
// without an error code came back: an open port alone does not mean that the broker serves.
func answers(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff}); err != nil {
		return false
	}
	var head [10]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return false
	}
	return bytes.Equal(head[4:], []byte{0, 0, 0, 1, 0, 0})
}

// awaitMembers returns when the metadata lists as many brokers as run: a topic of three replicas needs all three.
func awaitMembers(ctx context.Context, addr string, brokers int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(addr, ",")...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
		if err == nil && len(meta.Brokers) >= brokers {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the metadata lists %d of %d brokers: %w (%w)", len(meta.Brokers), brokers, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
