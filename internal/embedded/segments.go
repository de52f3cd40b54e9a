package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The layout of kfake's files: partitions/<escaped topic>-<number>/<base offset>.dat has record batches as they are on
// the wire, one after the other, and .idx an entry of indexEntry bytes for each.
const (
	batchHeader = 61 // the fixed part of a record batch
	indexEntry  = 15

	atLength     = 8
	atAttributes = 21
	atProducer   = 43
	atEpoch      = 51

	transactional = 1 << 4
	control       = 1 << 5
)

// openTransaction is one without a marker, on one partition.
type openTransaction struct {
	topic     string
	partition int32
	producer  int64
	epoch     int16
}

// openTransactions reads all partitions of a killed broker. It cuts off a last batch without index entry: it was not
// acknowledged, and kfake would take it for one outside of any transaction.
func openTransactions(dir string) (open []openTransaction, err error) {
	dirs, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	for _, d := range dirs {
		i := strings.LastIndexByte(d.Name(), '-')
		n, perr := strconv.ParseInt(d.Name()[i+1:], 10, 32)
		if i < 1 || perr != nil {
			continue
		}
		topic, err := url.PathUnescape(d.Name()[:i])
		if err != nil {
			continue
		}
		epochs, err := readPartition(filepath.Join(dir, "partitions", d.Name()))
		if err != nil {
			return nil, fmt.Errorf("partition %s: %w", d.Name(), err)
		}
		for producer, epoch := range epochs {
			open = append(open, openTransaction{topic: topic, partition: int32(n), producer: producer, epoch: epoch})
		}
	}
	return open, nil
}

// readPartition gives the producers with an open transaction, and their epochs.
func readPartition(dir string) (map[int64]int16, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
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
	open := map[int64]int16{}
	for _, base := range bases {
		if err := readSegment(filepath.Join(dir, strconv.FormatInt(base, 10)), open); err != nil {
			return nil, err
		}
	}
	return open, nil
}

// readSegment notes in open what the segment's batches begin and end, and cuts the segment off behind the last batch
// that is whole and has an index entry.
func readSegment(path string, open map[int64]int16) error {
	index, err := os.Stat(path + ".idx")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".dat", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var at int64
	var header [batchHeader]byte
	for range index.Size() / indexEntry {
		if _, err := f.ReadAt(header[:], at); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return err
		}
		next := at + 12 + int64(binary.BigEndian.Uint32(header[atLength:]))
		if next < at+batchHeader || next > size {
			break
		}
		at = next
		producer := int64(binary.BigEndian.Uint64(header[atProducer:]))
		switch attributes := binary.BigEndian.Uint16(header[atAttributes:]); {
		case attributes&control != 0:
			delete(open, producer)
		case attributes&transactional != 0:
			open[producer] = int16(binary.BigEndian.Uint16(header[atEpoch:]))
		}
	}
	if at == size {
		return nil
	}
	return f.Truncate(at)
}
