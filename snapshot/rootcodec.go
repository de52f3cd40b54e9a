package snapshot

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/millweir/millweir/element"
)

const (
	rootMagic = "MWRT"
	// rootVersion is that of a root which says over what kind of exchange its records in flight came; any other is written
	// as version 2. Version 1 had neither subtasks nor records in flight, inline runs, savepoints.
	rootVersion = 3
	// plainVersion is the version without that. The body of a savepoint has it.
	plainVersion = 2
	// maxRootSize bounds a root file: about 1,000 tasks with 64 runs each.
	maxRootSize = 64 << 20

	maxTasks     = 1 << 16 // tasks of a root
	maxPositions = 1024    // inputs of a task
	maxStates    = 1024    // states of a task
	maxRuns      = MaxRuns
	maxInFlight  = 64      // runs of records in flight of a task
	maxGroups    = 1 << 15 // key groups of a stage

	maxSavepoints    = 64
	maxSavepointPath = 4096
)

// MaxRuns is how many runs the chain of a task may have in a root.
const MaxRuns = 4096

// encodeRoot gives the bytes of a root file, the same for the same root. The root must be sorted and valid.
func encodeRoot(r *Root) []byte {
	b := append(make([]byte, 0, 512+512*len(r.Tasks)), rootMagic...)
	version := r.version()
	return seal(appendRoot(append(b, version), r, version))
}

// version is the one that a root is written in: the lowest that can say what it says.
func (r *Root) version() byte {
	if slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool { return e.Exchange != UnknownExchange }) {
		return rootVersion
	}
	return plainVersion
}

func appendRoot(b []byte, r *Root, version byte) []byte {
	b = appendName(b, r.Name)
	if r.Predecessor == nil {
		b = append(b, 0)
	} else {
		b = append(b, 1)
		b = appendName(b, r.Predecessor.Name)
		b = appendString(b, r.Predecessor.Path)
		b = append(b, r.Predecessor.Digest[:]...)
	}
	b = appendString(b, r.Application)
	b = appendString(b, r.Instance)
	b = appendString(b, r.ClusterID)
	b = appendString(b, r.StoreID)
	b = binary.AppendUvarint(b, uint64(r.CreatedUnixMilli))
	b = binary.AppendUvarint(b, uint64(len(r.Tasks)))
	for i := range r.Tasks {
		b = appendTask(b, &r.Tasks[i])
		if version > plainVersion {
			b = append(b, byte(r.Tasks[i].Exchange))
		}
	}
	for _, refs := range [][]SavepointRef{r.Savepoints, r.Origin} {
		b = binary.AppendUvarint(b, uint64(len(refs)))
		for _, s := range refs {
			b = appendString(b, s.ID)
			b = appendString(b, s.Path)
			b = append(b, s.Digest[:]...)
		}
	}
	return b
}

func appendTask(b []byte, e *TaskEntry) []byte {
	b = appendString(b, e.Task.Source)
	b = binary.AppendUvarint(b, uint64(e.Task.Partition))
	b = binary.AppendUvarint(b, uint64(len(e.Positions)))
	for _, p := range e.Positions {
		b = appendString(b, p.Topic)
		b = binary.AppendUvarint(b, uint64(p.Partition))
		b = append(b, p.TopicID[:]...)
		b = binary.AppendUvarint(b, uint64(p.PartitionCount))
		b = binary.AppendUvarint(b, uint64(p.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(p.LeaderEpoch))
	}
	b = appendStates(b, e.States)
	b = binary.AppendUvarint(b, uint64(e.Parallelism))
	b = binary.AppendUvarint(b, uint64(e.MaxParallelism))
	for _, runs := range [][]RunRef{e.Runs, e.InFlight} {
		b = binary.AppendUvarint(b, uint64(len(runs)))
		for i := range runs {
			b = appendRunRef(b, &runs[i])
		}
	}
	return b
}

func appendStates(b []byte, states []StateInfo) []byte {
	b = binary.AppendUvarint(b, uint64(len(states)))
	for _, s := range states {
		b = appendString(b, s.Name)
		b = appendString(b, s.KeyCodec)
		b = appendString(b, s.Codec)
	}
	return b
}

func appendRunRef(b []byte, r *RunRef) []byte {
	if r.IsInline() {
		b = append(b, 1)
		b = appendString(b, r.File)
		b = appendString(b, r.Inline)
	} else {
		b = append(b, 0)
		b = appendString(b, r.File)
		for _, v := range []int64{r.FileSize, r.Offset, r.Length} {
			b = binary.AppendUvarint(b, uint64(v))
		}
	}
	b = binary.BigEndian.AppendUint32(b, r.CRC)
	b = append(b, r.Digest[:]...)
	b = binary.AppendUvarint(b, uint64(r.From))
	b = binary.AppendUvarint(b, uint64(r.To))
	full := byte(0)
	if r.Full {
		full = 1
	}
	b = append(b, full)
	return binary.AppendUvarint(b, uint64(r.Entries))
}

// decodeRoot reads a root file. It accepts exactly what encodeRoot gives, and what that of version 1 gave.
func decodeRoot(b []byte) (*Root, error) {
	if len(b) > maxRootSize {
		return nil, formatf("%d bytes, at most %d allowed", len(b), maxRootSize)
	}
	body, version, err := sealedUpTo(b, rootMagic, rootVersion)
	if err != nil {
		return nil, err
	}
	c := &cursor{b: body}
	r := decodeRootBody(c, version)
	if err := c.end(); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	return r, nil
}

// decodeRootBody reads what is the same in a root and in a savepoint, and leaves its validation to the caller.
func decodeRootBody(c *cursor, version byte) *Root {
	r := &Root{Name: c.name("name")}
	if c.flag("predecessor") {
		r.Predecessor = &RootRef{Name: c.name("predecessor"), Path: c.str("predecessor", 4*maxSegment), Digest: c.digest("predecessor")}
	}
	r.Application = c.str("application", maxName)
	r.Instance = c.str("instance", maxName)
	r.ClusterID = c.str("cluster id", maxStateName)
	r.StoreID = c.str("store id", maxStateName)
	r.CreatedUnixMilli = c.i64("time of creation")
	if version == 1 {
		r.Tasks = decodeList(c, "tasks", 5, maxTasks, decodeTaskV1)
	} else {
		one, least := decodeTask, 8
		if version > plainVersion {
			one, least = decodeTaskV3, 9
		}
		r.Tasks = decodeList(c, "tasks", least, maxTasks, one)
		if c.err == nil && r.version() != version {
			c.fail("version %d, which nothing in it needs", version)
		}
		r.Savepoints = decodeList(c, "savepoints", 34, maxSavepoints, decodeSavepointRef)
		r.Origin = decodeList(c, "savepoints of the origin", 34, MaxOrigin, decodeSavepointRef)
	}
	return r
}

// decodeList reads a counted list; nil for none. The count was compared with the bytes that are there.
func decodeList[T any](c *cursor, what string, minSize, limit int, one func(*cursor) T) []T {
	n := c.count(what, minSize)
	if n > limit {
		c.fail("%d %s, at most %d allowed", n, what, limit)
		return nil
	}
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		out = append(out, one(c))
		if c.err != nil {
			return nil
		}
	}
	return out
}

func decodeTask(c *cursor) TaskEntry {
	e := decodeTaskHead(c)
	e.Parallelism, e.MaxParallelism = int(c.i32("parallelism")), int(c.i32("parallelism"))
	e.Runs = decodeList(c, "runs", minRunRef, maxRuns, decodeRunRef)
	e.InFlight = decodeList(c, "runs in flight", minRunRef, maxInFlight, decodeRunRef)
	return e
}

func decodeTaskV3(c *cursor) TaskEntry {
	e := decodeTask(c)
	e.Exchange = ExchangeKind(c.u8("kind of exchange"))
	return e
}

func decodeTaskV1(c *cursor) TaskEntry {
	e := decodeTaskHead(c)
	e.Runs = decodeList(c, "runs", minRunRef, maxRuns, decodeFileRef)
	return e
}

func decodeTaskHead(c *cursor) TaskEntry {
	return TaskEntry{
		Task:      element.TaskID{Source: c.str("source", maxName), Partition: c.i32("partition")},
		Positions: decodeList(c, "positions", 24, maxPositions, decodePosition),
		States:    decodeList(c, "states", 3, maxStates, decodeState),
	}
}

func decodeSavepointRef(c *cursor) SavepointRef {
	return SavepointRef{ID: c.str("savepoint", maxName), Path: c.str("savepoint", maxSavepointPath), Digest: c.digest("savepoint")}
}

func decodePosition(c *cursor) element.Position {
	return element.Position{
		TopicPartition: element.TopicPartition{Topic: c.str("topic", maxStateName), Partition: c.i32("partition")},
		TopicID:        c.topicID("topic id"),
		PartitionCount: c.i32("partition count"),
		Offset:         c.i64("offset"),
		LeaderEpoch:    int32(c.u32("leader epoch")),
	}
}

func decodeState(c *cursor) StateInfo {
	return StateInfo{Name: c.str("state", maxStateName), KeyCodec: c.str("key codec", maxStateName), Codec: c.str("codec", maxStateName)}
}

// minRunRef is the size of the smallest reference: an inline run's.
const minRunRef = 43

func decodeRunRef(c *cursor) RunRef {
	if !c.flag("place of a run") {
		return decodeFileRef(c)
	}
	r := RunRef{File: c.str("run file", 4*maxSegment), Inline: c.str("inline run", MaxMemoryThreshold)}
	if r.Inline == "" {
		c.fail("inline run of no bytes")
	}
	r.Length = int64(len(r.Inline))
	decodeRunFacts(c, &r)
	return r
}

func decodeFileRef(c *cursor) RunRef {
	r := RunRef{
		File:     c.str("run file", 4*maxSegment),
		FileSize: c.i64("run file size"),
		Offset:   c.i64("run offset"),
		Length:   c.i64("run length"),
	}
	decodeRunFacts(c, &r)
	return r
}

func decodeRunFacts(c *cursor, r *RunRef) {
	r.CRC = c.u32("run crc")
	r.Digest = c.digest("run digest")
	r.From = element.CheckpointID(c.uvarint("run interval"))
	r.To = element.CheckpointID(c.uvarint("run interval"))
	r.Full = c.flag("full")
	r.Entries = c.i64("entries")
}

func (c *cursor) flag(what string) bool {
	v := c.u8(what)
	if v > 1 {
		c.fail("%s is %d, neither 0 nor 1", what, v)
	}
	return v == 1
}

func digestOf(b []byte) Digest { return sha256.Sum256(b) }
