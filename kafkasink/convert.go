package kafkasink

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
)

// convert makes the records for one target in one allocation, two when there are headers. source is the partition that
// records without a key follow. size is the estimate of the bytes that they hold.
func convert(t *Target, source int32, recs []element.Record) (out []kgo.Record, size int64) {
	out = make([]kgo.Record, len(recs))
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
		size += int64(r.Size())
	}
	if headers > 0 {
		copyHeaders(out, recs, headers)
	}
	return out, size
}

// copyHeaders copies header slices: unlike keys and values they are the caller's again after Write.
func copyHeaders(out []kgo.Record, recs []element.Record, total int) {
	slab := make([]kgo.RecordHeader, 0, total)
	for i := range recs {
		if len(recs[i].Headers) == 0 {
			continue
		}
		from := len(slab)
		for _, h := range recs[i].Headers {
			slab = append(slab, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		out[i].Headers = slab[from:len(slab):len(slab)]
	}
}
