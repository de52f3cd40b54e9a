package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asked makes one request of each kind that can be refused, for two partitions where it has some.
func asked() []kmsg.Request {
	id := [16]byte{1, 2, 3}
	produce := kmsg.NewPtrProduceRequest()
	produce.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", TopicID: id, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 4}, {Partition: 7}}}}
	offsets := kmsg.NewPtrTxnOffsetCommitRequest()
	offsets.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", TopicID: id, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 4}, {Partition: 7}}}}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "t", Partitions: []int32{4, 7}}}
	return []kmsg.Request{produce, offsets, add, kmsg.NewPtrEndTxnRequest(), kmsg.NewPtrInitProducerIDRequest()}
}

// In every version an answer is read as a client reads it, and has the error for everything that was asked for.
func TestRefusalInEveryVersion(t *testing.T) {
	for _, req := range asked() {
		last := req.MaxVersion()
		if kmsg.Key(req.Key()) == kmsg.AddPartitionsToTxn {
			last = 3
			req.SetVersion(4)
			require.Nil(t, refusal(req, 1), "between brokers only")
		}
		for v := range last + 1 {
			req.SetVersion(v)
			frame := frameOf(refusal(req, kerr.NotCoordinator.Code), 0xdecade)
			require.Equal(t, len(frame)-4, int(binary.BigEndian.Uint32(frame)))
			require.EqualValues(t, 0xdecade, binary.BigEndian.Uint32(frame[4:]))
			body := frame[8:]
			got := req.ResponseKind()
			got.SetVersion(v)
			if got.IsFlexible() {
				require.Zero(t, body[0])
				body = body[1:]
			}
			require.NoError(t, got.ReadFrom(body), "%s %d", kmsg.NameForKey(req.Key()), v)
			require.ErrorIs(t, ErrorOf(got), kerr.NotCoordinator)
			codes := results(got)
			for _, r := range codes {
				require.Equal(t, kerr.NotCoordinator.Code, *r.code)
			}
			if codes[0].partition >= 0 {
				require.Equal(t, []int32{4, 7}, []int32{codes[0].partition, codes[1].partition})
			}
			switch r := got.(type) {
			case *kmsg.ProduceResponse:
				require.EqualValues(t, -1, r.Topics[0].Partitions[0].BaseOffset)
				require.True(t, r.Topics[0].Topic == "t" || r.Topics[0].TopicID[1] == 2)
			case *kmsg.TxnOffsetCommitResponse:
				require.True(t, r.Topics[0].Topic == "t" || r.Topics[0].TopicID[1] == 2)
			case *kmsg.EndTxnResponse:
				require.EqualValues(t, -1, r.ProducerID)
			case *kmsg.InitProducerIDResponse:
				require.EqualValues(t, -1, r.ProducerID)
			}
		}
	}
	require.Nil(t, refusal(kmsg.NewPtrMetadataRequest(), 1))
}

func TestSpoilTakesSomePartitions(t *testing.T) {
	req := asked()[1]
	req.SetVersion(6)
	resp := refusal(req, 0)
	require.NoError(t, ErrorOf(resp))
	require.False(t, touches(resp, []int32{9}))
	spoil(resp, 5, []int32{9})
	require.NoError(t, ErrorOf(resp))
	require.True(t, touches(resp, []int32{7, 9}))
	spoil(resp, 5, []int32{7})
	got := results(resp)
	require.Equal(t, []int16{0, 5}, []int16{*got[0].code, *got[1].code})
}

// The broker never sees the request, or it has done it: the offsets of the records tell.
func TestTapAnswersInTheBrokersPlaceOrAfterIt(t *testing.T) {
	_, tap, cl, topic := world(t)
	require.Zero(t, put(t, cl, topic))
	once := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Answer: Times(1, kerr.NotLeaderForPartition)})
	require.EqualValues(t, 1, put(t, cl, topic), "sent again")
	require.Equal(t, []int{2, 1}, []int{once.Hits(), once.Told()})
	once.Remove()

	try := func() error {
		return cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr()
	}
	lie := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Rewrite: Times(1, kerr.InvalidTxnState)})
	require.ErrorIs(t, try(), kerr.InvalidTxnState)
	require.Equal(t, 1, lie.Told())
	lie.Remove()
	other := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Rewrite: func(kmsg.Request) *kerr.Error {
		t.Error("asked for an answer that it is not about")
		return nil
	}, Partitions: []int32{1}})
	require.NoError(t, try(), "another partition")
	require.Zero(t, other.Told())
	ends, err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic}).First()
	require.NoError(t, err)
	require.EqualValues(t, 4, ends.Offset, "the broker has those that were refused after it had done them")
}

// An answer that is an error stays as it is: it was not done, so it must not pass for something that was.
func TestTapLeavesTheBrokersErrors(t *testing.T) {
	_, tap, cl, _ := world(t)
	lie := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.EndTxn}, Rewrite: Always(kerr.NotCoordinator)})
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID = "nobody", 77
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.Equal(t, kerr.InvalidProducerIDMapping.Code, resp.ErrorCode)
	require.Equal(t, []int{1, 0}, []int{lie.Hits(), lie.Told()})
}

// Every answer can be seen, of whatever kind, as the broker gave it.
func TestTapShowsAnswers(t *testing.T) {
	_, tap, cl, topic := world(t)
	var mu sync.Mutex
	seen, offset := map[kmsg.Key]int{}, int64(-1)
	tap.Add(&Rule{After: func(q kmsg.Request, r kmsg.Response) {
		mu.Lock()
		defer mu.Unlock()
		seen[kmsg.Key(r.Key())]++
		if p, ok := r.(*kmsg.ProduceResponse); ok {
			offset = p.Topics[0].Partitions[0].BaseOffset
		}
	}})
	require.Zero(t, put(t, cl, topic))
	require.EqualValues(t, 1, put(t, cl, topic))
	mu.Lock()
	defer mu.Unlock()
	require.EqualValues(t, 1, offset)
	require.Equal(t, 2, seen[kmsg.Produce])
	for _, k := range []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata} {
		require.Positive(t, seen[k], k.Name())
	}
}

// Answers keep the order of the requests, whoever gives them, also when they are read in pieces.
func TestTapKeepsTheOrder(t *testing.T) {
	client, broker := net.Pipe()
	defer broker.Close()
	tap := &Tap{}
	c := &tapped{Conn: client, tap: tap, more: make(chan struct{}, 1), closed: make(chan struct{})}
	n := 0
	tap.Add(&Rule{Keys: []kmsg.Key{kmsg.EndTxn}, Answer: func(kmsg.Request) *kerr.Error {
		if n++; n%2 == 0 {
			return kerr.NotCoordinator
		}
		return nil
	}})
	failed := make(chan error, 1)
	seen := make(chan struct{}, 3)
	go func() {
		failed <- func() error { // a broker that takes three requests and answers them afterwards
			var heads [][]byte
			for range 3 {
				head := make([]byte, 4)
				if _, err := io.ReadFull(broker, head); err != nil {
					return err
				}
				body := make([]byte, binary.BigEndian.Uint32(head))
				if _, err := io.ReadFull(broker, body); err != nil {
					return err
				}
				heads = append(heads, body)
				seen <- struct{}{}
			}
			for _, h := range heads {
				resp := kmsg.NewEndTxnResponse()
				resp.SetVersion(5)
				resp.ProducerID = 9
				if _, err := broker.Write(frameOf(&resp, binary.BigEndian.Uint32(h[4:]))); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("id"))
	for i := range int32(6) {
		req := kmsg.NewPtrEndTxnRequest()
		req.SetVersion(5)
		_, err := c.Write(format.AppendRequest(nil, req, i))
		require.NoError(t, err)
	}
	for range 3 {
		<-seen
	}
	small := make([]byte, 3)
	var got []byte
	const frame = 4 + 4 + 1 + 4 + 2 + 8 + 2 + 1
	for len(got) < 6*frame {
		n, err := c.Read(small)
		require.NoError(t, err)
		got = append(got, small[:n]...)
	}
	require.NoError(t, <-failed)
	for i := range 6 {
		f := got[i*frame : (i+1)*frame]
		require.EqualValues(t, i, binary.BigEndian.Uint32(f[4:]))
		resp := kmsg.NewEndTxnResponse()
		resp.SetVersion(5)
		require.NoError(t, resp.ReadFrom(f[9:]))
		require.Equal(t, fmt.Sprint(i%2 == 1), fmt.Sprint(resp.ErrorCode == kerr.NotCoordinator.Code))
	}
	// With nothing due a reader waits, until the connection is closed.
	time.AfterFunc(20*time.Millisecond, func() { _ = c.Close() })
	_, err := c.Read(small)
	require.True(t, errors.Is(err, net.ErrClosed))
}
