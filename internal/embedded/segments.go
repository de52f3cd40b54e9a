package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The layout of kfake's files: partitions/<escaped topic>-<number>/<base offset>.dat has record batches as they are on
// the wire, one after the other, and .idx an entry of indexEntry bytes for each.
const (
	batchHeader = 61 // the fixed part of a record batch
	indexEntry  = 15

	atLength      = 8
	atLeaderEpoch = 12
	atAttributes  = 21
	atLastDelta   = 23
	atProducer    = 43
	atEpoch       = 51

	transactional = 1 << 4
	control       = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// transaction names one: each has an epoch of its own.
type transaction struct {
	producer int64
	epoch    int16
}

// partition is what a killed broker left of one.
type partition struct {
	dir       string
	topic     string
	number    int32
	last      string               // the path of the last segment's files without extension; empty: no segment
	next      int64                // the next offset
	leader    int32                // the leader epoch
	open      map[int64]int16      // transactions without a marker
	committed map[transaction]bool // those of interest that have a commit marker
}

// readPartitions reads the partitions of a killed broker. Of commit markers it notes those of one transaction. It cuts off
// a last batch without index entry: it was not acknowledged, and kfake would take it for one outside of any transaction.
func readPartitions(dir string, of transaction) (out []*partition, err error) {
	dirs, err := os.ReadDir(filepath.Join(dir, partitionsDir))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	for _, d := range dirs {
		escaped, n, ok := partitionOf(d.Name())
		if !ok {
			continue
		}
		topic, err := url.PathUnescape(escaped)
		if err != nil {
			continue
		}
		p := &partition{dir: filepath.Join(dir, partitionsDir, d.Name()), topic: topic, number: n, open: map[int64]int16{}, committed: map[transaction]bool{of: false}}
		if err := p.read(); err != nil {
			return nil, fmt.Errorf("partition %s: %w", d.Name(), err)
		}
		out = append(out, p)
	}
	return out, nil
}

func (p *partition) read() error {
	files, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	var bases []int64
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".dat"); ok {
			if base, err := strconv.ParseInt(name, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	for _, base := range bases {
		path := filepath.Join(p.dir, strconv.FormatInt(base, 10))
		size, err := p.segment(path)
		if err != nil {
			return err
		}
		if size > 0 {
			p.last = path
			continue
		}
		// It was made for a batch that was not written, and may have no index yet. kfake appends to the one before.
		if err := errors.Join(ignoreMissing(os.Remove(path+".idx")), ignoreMissing(os.Remove(path+".dat"))); err != nil {
			return err
		}
	}
	return nil
}

// segment reads one, and cuts it off behind the last batch that is whole and has an index entry. It gives the size that
// remains.
func (p *partition) segment(path string) (int64, error) {
	f, err := os.OpenFile(path+".dat", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if size == 0 {
		return 0, nil
	}
	index, err := os.Stat(path + ".idx")
	if err != nil {
		return 0, err
	}
	var at int64
	var header [batchHeader]byte
	for range index.Size() / indexEntry {
		if _, err := f.ReadAt(header[:], at); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return 0, err
		}
		next := at + 12 + int64(binary.BigEndian.Uint32(header[atLength:]))
		if next < at+batchHeader || next > size {
			break
		}
		if err := p.batch(f, header[:], at, next); err != nil {
			return 0, err
		}
		at = next
	}
	if at < size {
		err = f.Truncate(at)
	}
	return at, err
}

// batch notes what one begins or ends.
func (p *partition) batch(f io.ReaderAt, header []byte, at, next int64) error {
	t := transaction{int64(binary.BigEndian.Uint64(header[atProducer:])), int16(binary.BigEndian.Uint16(header[atEpoch:]))}
	p.next = int64(binary.BigEndian.Uint64(header)) + int64(binary.BigEndian.Uint32(header[atLastDelta:])) + 1
	p.leader = int32(binary.BigEndian.Uint32(header[atLeaderEpoch:]))
	switch attributes := binary.BigEndian.Uint16(header[atAttributes:]); {
	case attributes&control != 0:
		delete(p.open, t.producer)
		if _, ok := p.committed[t]; !ok {
			return nil
		}
		raw := make([]byte, min(next-at-batchHeader, 1<<10))
		if _, err := f.ReadAt(raw, at+batchHeader); err != nil {
			return err
		}
		var rec kmsg.Record
		var key kmsg.ControlRecordKey
		if rec.ReadFrom(raw) == nil && key.ReadFrom(rec.Key) == nil {
			p.committed[t] = key.Type == kmsg.ControlRecordKeyTypeCommit
		}
	case attributes&transactional != 0:
		p.open[t.producer] = t.epoch
	}
	return nil
}

// commit appends a commit marker.
func (p *partition) commit(t transaction) error {
	key, value := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeCommit}, kmsg.EndTxnMarker{}
	rec := kmsg.Record{Key: key.AppendTo(nil), Value: value.AppendTo(nil)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // a length of 0 takes one byte, as this one does
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		FirstOffset: p.next, PartitionLeaderEpoch: p.leader, Magic: 2, Attributes: control | transactional, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: t.producer, ProducerEpoch: t.epoch, FirstSequence: -1, NumRecords: 1, Records: rec.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	b.Length, b.CRC = int32(len(raw)-12), int32(crc32.Checksum(raw[atAttributes:], castagnoli))
	entry := make([]byte, indexEntry)
	entry[0] = 1 // the version of the format
	binary.LittleEndian.PutUint32(entry[2:], uint32(p.leader))
	binary.LittleEndian.PutUint64(entry[6:], uint64(now))
	entry[1] = byte(crc32.Checksum(entry[2:], castagnoli))
	if err := appendTo(p.last+".dat", b.AppendTo(nil)); err != nil {
		return err
	}
	p.next++
	delete(p.open, t.producer)
	return appendTo(p.last+".idx", entry)
}

func appendTo(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
