package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/millweir/millweir/element"
)

// The layout of the local copy; docs/format/local-store.md describes it.
const (
	localFormat = 2

	prefixMeta = 0x01 // one record: who the copy belongs to
	prefixTask = 0x02 // one record per task
	prefixData = 0x03 // the entries

	stateIntent  = 1 // a flush towards the checkpoint began
	stateApplied = 2 // the data is exactly the state at the checkpoint

	maxNameLen = 1 << 12
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errRecord  = errors.New("damaged record")
)

// LocalVersion says where a task's local copy stands: at a committed checkpoint, and at which point of the task's chain
// of runs. The chain tells more than the checkpoint, because a checkpoint in which the task changed nothing adds no run.
type LocalVersion struct {
	Name   element.CheckpointName
	Digest [32]byte // of the checkpoint's root file; zero when the copy stands between two roots
	// ChainEnd is the checkpoint up to which the runs reach that are in the copy, 0 when there are none; Run is the
	// digest of the last of them. Ids alone are not enough: after a deliberate return to an older checkpoint they come
	// a second time with other content.
	ChainEnd element.CheckpointID
	Run      [32]byte
}

// taskRecord is what the database holds about one task beside its data.
type taskRecord struct {
	state  byte
	at     LocalVersion
	number uint32 // of the task's data, never used again after a reset
	tally  tally  // of the entries; zero with an intent
	tables []TableInfo
}

func taskKey(t element.TaskID) []byte {
	k := binary.BigEndian.AppendUint32([]byte{prefixTask}, uint32(t.Partition))
	return append(k, t.Source...)
}

func parseTaskKey(k []byte) (element.TaskID, error) {
	if len(k) < 5 || k[0] != prefixTask {
		return element.TaskID{}, fmt.Errorf("task key: %w", errRecord)
	}
	return element.TaskID{Partition: int32(binary.BigEndian.Uint32(k[1:])), Source: string(k[5:])}, nil
}

func dataPrefix(number uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefixData}, number)
}

const dataKeyHead = 1 + 4 + 2

func appendDataKey(dst []byte, number uint32, table int, key []byte) []byte {
	dst = append(dst, prefixData)
	dst = binary.BigEndian.AppendUint32(dst, number)
	dst = binary.BigEndian.AppendUint16(dst, uint16(table))
	return append(dst, key...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

func seal(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// unseal checks the checksum and the format version and gives what is between them.
func unseal(b []byte) ([]byte, error) {
	if len(b) < 5 || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, errRecord
	}
	if b[0] != localFormat {
		return nil, fmt.Errorf("format version %d: %w", b[0], errRecord)
	}
	return b[1 : len(b)-4], nil
}

func encodeMeta(cluster, application string) []byte {
	return seal(appendString(appendString([]byte{localFormat}, cluster), application))
}

func (r *taskRecord) encode() []byte {
	b := []byte{localFormat, r.state}
	b = binary.BigEndian.AppendUint64(b, uint64(r.at.Name.ID))
	b = binary.BigEndian.AppendUint64(b, uint64(r.at.Name.Incarnation))
	b = append(b, r.at.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.at.ChainEnd))
	b = append(b, r.at.Run[:]...)
	b = binary.BigEndian.AppendUint32(b, r.number)
	b = binary.BigEndian.AppendUint64(b, r.tally.entries)
	b = binary.BigEndian.AppendUint64(b, r.tally.sum)
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.tables)))
	for _, t := range r.tables {
		b = appendString(appendString(b, t.Name), t.Codec)
	}
	return seal(b)
}

func decodeTaskRecord(b []byte) (taskRecord, error) {
	const fixed = 1 + 8 + 8 + 32 + 8 + 32 + 4 + 8 + 8 + 2
	var r taskRecord
	b, err := unseal(b)
	if err != nil || len(b) < fixed {
		return r, errors.Join(errRecord, err)
	}
	r.state = b[0]
	r.at.Name.ID = element.CheckpointID(binary.BigEndian.Uint64(b[1:]))
	r.at.Name.Incarnation = element.Incarnation(binary.BigEndian.Uint64(b[9:]))
	copy(r.at.Digest[:], b[17:])
	r.at.ChainEnd = element.CheckpointID(binary.BigEndian.Uint64(b[49:]))
	copy(r.at.Run[:], b[57:])
	r.number = binary.BigEndian.Uint32(b[89:])
	r.tally.entries = binary.BigEndian.Uint64(b[93:])
	r.tally.sum = binary.BigEndian.Uint64(b[101:])
	n := int(binary.BigEndian.Uint16(b[109:]))
	b = b[fixed:]
	for range n {
		var t TableInfo
		if t.Name, b, err = cutString(b); err != nil {
			return r, err
		}
		if t.Codec, b, err = cutString(b); err != nil {
			return r, err
		}
		r.tables = append(r.tables, t)
	}
	if len(b) != 0 || (r.state != stateIntent && r.state != stateApplied) {
		return r, errRecord
	}
	return r, nil
}

func cutString(b []byte) (string, []byte, error) {
	if len(b) < 2 {
		return "", nil, errRecord
	}
	n := int(binary.BigEndian.Uint16(b))
	if n > len(b)-2 {
		return "", nil, errRecord
	}
	return string(b[2 : 2+n]), b[2+n:], nil
}

func beUint16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func beUint32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
