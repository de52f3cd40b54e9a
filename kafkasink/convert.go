package kafkasink

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
)

// convert makes the records for one target in one allocation, two when there are headers. source is the partition that
// records without a key follow.
func convert(t *Target, source int32, recs []element.Record) batch {
	out := make([]kgo.Record, len(recs))
	b := batch{recs: out}
	nullKey := source % t.Partitions
	headers := 0
	for i := range recs {
		r, o := &recs[i], &out[i]
		o.Topic = t.Topic
		o.Key, o.Value = r.Key, r.Value
		o.Timestamp = time.UnixMilli(r.Timestamp)
		if r.Key == nil {
			o.Partition = nullKey
		} else {
			o.Partition = partitionFor(r.Key, t.Partitions)
		}
		headers += len(r.Headers)
		b.size += int64(r.Size())
		b.payload += int64(len(r.Key) + len(r.Value))
	}
	if headers > 0 {
		b.payload += copyHeaders(out, recs, headers)
	}
	return b
}

// copyHeaders copies header slices: unlike keys and values they are the caller's again after Write. It gives the bytes of
// their keys and values.
func copyHeaders(out []kgo.Record, recs []element.Record, total int) (bytes int64) {
	slab := make([]kgo.RecordHeader, 0, total)
	for i := range recs {
		if len(recs[i].Headers) == 0 {
			continue
		}
		from := len(slab)
		for _, h := range recs[i].Headers {
			slab = append(slab, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			bytes += int64(len(h.Key) + len(h.Value))
		}
		out[i].Headers = slab[from:len(slab):len(slab)]
	}
	return bytes
}
