package snapshot

import (
	"encoding/binary"

	"github.com/millweir/millweir/element"
)

// Entry is one key of one state in a run. Key and Value are valid only until the next entry is asked for.
type Entry struct {
	State   int // index into the States given with the run: TaskDelta.States when writing, TaskEntry.States when reading
	Key     []byte
	Value   []byte // nil when Deleted
	Deleted bool   // tombstone: the key is gone
}

// Limits of one key or value in a run, in bytes.
const (
	MaxKeySize   = 16 << 20
	MaxValueSize = 256 << 20
)

// A run is: header, blocks, end mark, footer. docs/format/run.md has the bytes.
const (
	runMagic   = "MWRN"
	runVersion = 1
	// blockSize is where a block is closed; an entry is never split, so a large one makes a larger block.
	blockSize = 32 << 10
	blockHead = 16 // payload length, state, entries, CRC32C over these three and the payload; 4 bytes each

	maxBlock = MaxKeySize + MaxValueSize + blockSize + 64
	// maxRunHead bounds header and footer: 1,024 states of three names each.
	maxRunHead = 2 << 20
	runTail    = 8 // footer length, CRC32C
)

// runHeader says what a run is, so that a run under a wrong name is noticed.
type runHeader struct {
	Name   element.CheckpointName
	Task   element.TaskID
	From   element.CheckpointID
	To     element.CheckpointID
	Full   bool
	States []StateInfo
}

func (h *runHeader) append(b []byte) []byte {
	start := len(b)
	b = append(b, runMagic...)
	b = append(b, runVersion)
	b = binary.BigEndian.AppendUint32(b, 0) // length of the body
	body := len(b)
	b = appendName(b, h.Name)
	b = appendString(b, h.Task.Source)
	b = binary.AppendUvarint(b, uint64(h.Task.Partition))
	b = binary.AppendUvarint(b, uint64(h.From))
	b = binary.AppendUvarint(b, uint64(h.To))
	full := byte(0)
	if h.Full {
		full = 1
	}
	b = append(b, full)
	b = appendStates(b, h.States)
	binary.BigEndian.PutUint32(b[body-4:], uint32(len(b)-body))
	return binary.BigEndian.AppendUint32(b, crc32c(b[start:]))
}

func decodeRunHeader(body []byte) (runHeader, error) {
	c := &cursor{b: body}
	h := runHeader{
		Name:   c.name("name"),
		Task:   element.TaskID{Source: c.str("source", maxName), Partition: c.i32("partition")},
		From:   element.CheckpointID(c.uvarint("interval")),
		To:     element.CheckpointID(c.uvarint("interval")),
		Full:   c.flag("full"),
		States: decodeList(c, "states", 3, maxStates, decodeState),
	}
	return h, c.end()
}

// section is the part of a run that holds one state; the blocks of a state lie side by side.
type section struct {
	state   int
	offset  int64 // from the start of the run
	length  int64
	entries int64
}

// runFooter repeats what the blocks hold.
type runFooter struct {
	sections   []section
	entries    int64
	tombstones int64
}

func (f *runFooter) append(b []byte) []byte {
	start := len(b)
	b = binary.AppendUvarint(b, uint64(len(f.sections)))
	for _, s := range f.sections {
		b = binary.AppendUvarint(b, uint64(s.state))
		b = binary.AppendUvarint(b, uint64(s.offset))
		b = binary.AppendUvarint(b, uint64(s.length))
		b = binary.AppendUvarint(b, uint64(s.entries))
	}
	b = binary.AppendUvarint(b, uint64(f.entries))
	b = binary.AppendUvarint(b, uint64(f.tombstones))
	b = binary.BigEndian.AppendUint32(b, uint32(len(b)-start+runTail))
	return binary.BigEndian.AppendUint32(b, crc32c(b[start:]))
}

// decodeFooter reads all bytes after the end mark.
func decodeFooter(b []byte) (runFooter, error) {
	if len(b) < runTail {
		return runFooter{}, formatf("footer of %d bytes", len(b))
	}
	body := b[:len(b)-runTail]
	switch tail := b[len(body):]; {
	case crc32c(b[:len(b)-4]) != binary.BigEndian.Uint32(tail[4:]):
		return runFooter{}, formatf("footer: checksum mismatch")
	case binary.BigEndian.Uint32(tail) != uint32(len(b)):
		return runFooter{}, formatf("footer of %d bytes claims %d", len(b), binary.BigEndian.Uint32(tail))
	}
	c := &cursor{b: body}
	f := runFooter{sections: decodeList(c, "sections", 4, maxStates, func(c *cursor) section {
		return section{state: int(c.i32("section")), offset: c.i64("section"), length: c.i64("section"), entries: c.i64("section")}
	})}
	f.entries = c.i64("entries")
	f.tombstones = c.i64("tombstones")
	return f, c.end()
}
