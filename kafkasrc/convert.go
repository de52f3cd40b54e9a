package kafkasrc

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
)

// convert makes the Delivery of one partition's records, which are in offset order and may have transaction markers
// between them. Records below from are left out, and so is what lies at end or behind: something there, or right before
// it, says that the end is reached. It allocates one slice of records, and one of headers if there are
// any; keys and values stay in the client's buffer.
func convert(tp element.TopicPartition, from, end int64, in []*kgo.Record) element.Delivery {
	d := element.Delivery{From: tp, Next: from, LeaderEpoch: -1}
	if i := len(in); i > 0 && in[i-1].Offset+1 >= end {
		d.Ended = true
		for i > 0 && in[i-1].Offset >= end {
			i--
		}
		in = in[:i]
	}
	count, headers := 0, 0
	for _, r := range in {
		if r.Offset >= from && !r.Attrs.IsControl() {
			count++
			headers += len(r.Headers)
		}
	}
	var slab []element.Header
	if count > 0 {
		d.Records = make([]element.Record, 0, count)
	}
	if headers > 0 {
		slab = make([]element.Header, 0, headers)
	}
	for _, r := range in {
		if r.Offset < d.Next {
			continue
		}
		d.Next, d.LeaderEpoch = r.Offset+1, r.LeaderEpoch
		if r.Attrs.IsControl() {
			continue
		}
		out := element.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp.UnixMilli(), Offset: r.Offset}
		if n := len(r.Headers); n > 0 {
			first := len(slab)
			for _, h := range r.Headers {
				slab = append(slab, element.Header{Key: h.Key, Value: h.Value})
			}
			out.Headers = slab[first : first+n : first+n]
		}
		d.Records = append(d.Records, out)
	}
	if d.Ended && d.Next < end {
		d.Next, d.LeaderEpoch = end, -1 // another leader may have written what was in the gap
	}
	return d
}
