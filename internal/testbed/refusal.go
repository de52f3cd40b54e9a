package testbed

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// result is one error code of an answer. partition is -1 where the code is of the whole.
type result struct {
	partition int32
	code      *int16
}

// refusal makes the answer in which everything that a request asked for has the same error. It is nil for a request of a
// kind that it does not know: Produce, AddPartitionsToTxn, EndTxn, TxnOffsetCommit,
// OffsetCommit and InitProducerID it does.
func refusal(req kmsg.Request, code int16) kmsg.Response {
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	switch q := req.(type) {
	case *kmsg.ProduceRequest:
		resp := resp.(*kmsg.ProduceResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition = p.Partition
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.TxnOffsetCommitRequest:
		resp := resp.(*kmsg.TxnOffsetCommitResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition = p.Partition
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.OffsetCommitRequest:
		resp := resp.(*kmsg.OffsetCommitResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetCommitResponseTopicPartition()
				rp.Partition = p.Partition
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.AddPartitionsToTxnRequest:
		if q.Version >= 4 {
			return nil // between brokers only
		}
		resp := resp.(*kmsg.AddPartitionsToTxnResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				rp.Partition = p
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.EndTxnRequest, *kmsg.InitProducerIDRequest:
	default:
		return nil
	}
	spoil(resp, code, nil)
	return resp
}

// results gives the error codes of an answer of one of these kinds, to be read and changed.
func results(resp kmsg.Response) (out []result) {
	switch r := resp.(type) {
	case *kmsg.ProduceResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				out = append(out, result{p.Partition, &p.ErrorCode})
			}
		}
	case *kmsg.TxnOffsetCommitResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				out = append(out, result{p.Partition, &p.ErrorCode})
			}
		}
	case *kmsg.OffsetCommitResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				out = append(out, result{p.Partition, &p.ErrorCode})
			}
		}
	case *kmsg.AddPartitionsToTxnResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				out = append(out, result{p.Partition, &p.ErrorCode})
			}
		}
	case *kmsg.EndTxnResponse:
		out = append(out, result{-1, &r.ErrorCode})
	case *kmsg.InitProducerIDResponse:
		out = append(out, result{-1, &r.ErrorCode})
	}
	return out
}

// ErrorOf gives the first error of an answer, nil where it has none, and for answers of kinds that refusal does not know.
func ErrorOf(resp kmsg.Response) error {
	for _, r := range results(resp) {
		if *r.code != 0 {
			return kerr.ErrorForCode(*r.code)
		}
	}
	return nil
}

// meant says that a result is one of those that a rule with these partitions is about.
func (r result) meant(partitions []int32) bool {
	return r.partition < 0 || len(partitions) == 0 || slices.Contains(partitions, r.partition)
}

// touches says that an answer has such a result.
func touches(resp kmsg.Response, partitions []int32) bool {
	return slices.ContainsFunc(results(resp), func(r result) bool { return r.meant(partitions) })
}

// spoil sets the error, at some partitions or all, and takes away what an answer with an error does not have.
func spoil(resp kmsg.Response, code int16, partitions []int32) {
	for _, r := range results(resp) {
		if r.meant(partitions) {
			*r.code = code
		}
	}
	switch r := resp.(type) {
	case *kmsg.ProduceResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				if p := &r.Topics[i].Partitions[j]; p.ErrorCode != 0 {
					p.BaseOffset, p.LogAppendTime, p.LogStartOffset = -1, -1, -1
				}
			}
		}
	case *kmsg.EndTxnResponse:
		r.ProducerID, r.ProducerEpoch = -1, -1
	case *kmsg.InitProducerIDResponse:
		r.ProducerID, r.ProducerEpoch = -1, -1
	}
}
