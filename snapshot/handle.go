package snapshot

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/element"
)

// HandleKind says what state a handle leads to.
type HandleKind uint8

// The kinds.
const (
	// HandleEmpty: the task starts with empty state at the handle's offset. No file belongs to it.
	HandleEmpty HandleKind = 1
	// HandleCheckpoint: the state is in the root that the handle names.
	HandleCheckpoint HandleKind = 2
	// HandleUnsaved is HandleEmpty where state was: the application has run without checkpoints up to the handle's offset.
	HandleUnsaved HandleKind = 3
)

// String names the kind.
func (k HandleKind) String() string {
	switch k {
	case HandleEmpty:
		return "empty"
	case HandleCheckpoint:
		return "checkpoint"
	case HandleUnsaved:
		return "unsaved"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// MaxHandleSize is the longest metadata string that a Kafka broker takes by default (offset.metadata.max.bytes).
const MaxHandleSize = 4096

// Errors of ParseHandle; each is also a reason of Resolve.
var (
	ErrHandleForeign = errors.New("not a millweir handle")
	ErrHandleDamaged = errors.New("damaged handle")
	ErrHandleNewer   = errors.New("handle of a newer version")
)

// Handle is what travels in the metadata of a committed offset. It binds the offset to the one snapshot that matches
// it, and both to the place they were written for, so that offsets rewritten or copied by another tool are noticed.
type Handle struct {
	Kind HandleKind
	Root RootRef // for HandleEmpty and HandleUnsaved only Root.Name is set, to the commit's: 0 at a start position
	// Partition, Offset and LeaderEpoch repeat what the offset commit says; LeaderEpoch is -1 when not known.
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	ClusterID   string
	TopicID     element.TopicID
	// PartitionCount is the topic's at the checkpoint.
	PartitionCount int32
	StoreID        string
	// Life grows when the application is cancelled with its state deleted, and when it is reset. Whoever began in an earlier
	// life than the one that the group's handles are of is over, and so is the state of a handle of an earlier one.
	Life uint64
}

// WithoutState gives the handle of the same position in a life to which no state of before belongs.
func (h Handle) WithoutState(life uint64) Handle {
	h.Kind, h.Root, h.Life = HandleEmpty, RootRef{Name: h.Root.Name}, life
	return h
}

const (
	handlePrefix  = "mw"
	handleVersion = 3
	// Version 1 has no life: it is that of the first one. Version 3 is only for HandleUnsaved, which older programs do not know.
	handleHead        = "mw1:"
	handleHeadLife    = "mw2:"
	handleHeadUnsaved = "mw3:"
)

// head is what the text form begins with.
func (h Handle) head() string {
	switch {
	case h.Kind == HandleUnsaved:
		return handleHeadUnsaved
	case h.Life > 0:
		return handleHeadLife
	}
	return handleHead
}

var handleText = base64.RawURLEncoding.Strict()

// Encode gives the text form, about 200 bytes, or an error when a field is not valid or the text too long.
func (h Handle) Encode() (string, error) {
	if err := h.validate(); err != nil {
		return "", fmt.Errorf("handle: %w", err)
	}
	b := append(make([]byte, 0, 256), byte(h.Kind))
	b = appendName(b, h.Root.Name)
	if h.Kind == HandleCheckpoint {
		b = appendString(b, parseFilePath(h.Root.Path).dir)
		b = append(b, h.Root.Digest[:]...)
	}
	b = binary.AppendUvarint(b, uint64(h.Partition))
	b = binary.AppendUvarint(b, uint64(h.Offset))
	b = binary.AppendUvarint(b, uint64(h.LeaderEpoch+1))
	b = appendString(b, h.ClusterID)
	b = append(b, h.TopicID[:]...)
	b = binary.AppendUvarint(b, uint64(h.PartitionCount))
	b = appendString(b, h.StoreID)
	if h.head() != handleHead {
		b = binary.AppendUvarint(b, h.Life)
	}
	b = binary.BigEndian.AppendUint32(b, handleCRC(h.head(), b))
	s := h.head() + handleText.EncodeToString(b)
	if len(s) > MaxHandleSize {
		return "", fmt.Errorf("handle: %d bytes, Kafka takes %d", len(s), MaxHandleSize)
	}
	return s, nil
}

// handleCRC covers the prefix with its version too.
func handleCRC(head string, b []byte) uint32 { return crc32c(append([]byte(head), b...)) }

func (h Handle) validate() error {
	switch {
	case h.Kind < HandleEmpty || h.Kind > HandleUnsaved:
		return formatf("unknown %s", h.Kind)
	case h.Partition < 0 || h.Offset < 0 || h.LeaderEpoch < -1 || h.PartitionCount < 0 || h.LeaderEpoch == 1<<31-1:
		return formatf("negative number")
	case len(h.ClusterID) > maxStateName || len(h.StoreID) > maxStateName:
		return formatf("cluster id or store id too long")
	case h.Kind != HandleCheckpoint && (h.Root.Path != "" || !h.Root.Digest.IsZero()):
		return formatf("an empty handle names no root")
	case h.Kind == HandleCheckpoint:
		if p := parseFilePath(h.Root.Path); p.kind != rootFile || p.name != h.Root.Name {
			return formatf("path %q is not that of root %s", h.Root.Path, h.Root.Name)
		}
	}
	return nil
}

// ParseHandle reads the text form. Errors wrap ErrHandleForeign, ErrHandleDamaged or ErrHandleNewer. It accepts
// exactly what Encode gives.
func ParseHandle(s string) (Handle, error) {
	rest, ok := strings.CutPrefix(s, handlePrefix)
	version, text, ok2 := strings.Cut(rest, ":")
	n, err := strconv.ParseUint(version, 10, 16)
	if !ok || !ok2 || err != nil || version != strconv.FormatUint(n, 10) {
		return Handle{}, ErrHandleForeign
	}
	switch {
	case n > handleVersion:
		return Handle{}, fmt.Errorf("%w: %d, this program reads up to %d", ErrHandleNewer, n, handleVersion)
	case n < 1:
		return Handle{}, fmt.Errorf("%w: version %d", ErrHandleDamaged, n)
	case len(s) > MaxHandleSize:
		return Handle{}, fmt.Errorf("%w: %d bytes", ErrHandleDamaged, len(s))
	}
	b, err := handleText.DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return Handle{}, fmt.Errorf("%w: not base64", ErrHandleDamaged)
	}
	if len(b) < 4 || binary.BigEndian.Uint32(b[len(b)-4:]) != handleCRC(s[:len(s)-len(text)], b[:len(b)-4]) {
		return Handle{}, fmt.Errorf("%w: checksum mismatch", ErrHandleDamaged)
	}
	h, err := decodeHandle(b[:len(b)-4], n)
	if err != nil {
		return Handle{}, fmt.Errorf("%w: %v", ErrHandleDamaged, err)
	}
	return h, nil
}

func decodeHandle(b []byte, version uint64) (Handle, error) {
	c := &cursor{b: b}
	h := Handle{Kind: HandleKind(c.u8("kind"))}
	h.Root.Name = c.name("name")
	if h.Kind == HandleCheckpoint {
		dir := c.str("directory", 2*maxSegment)
		h.Root.Path = filePath{dir: dir, kind: rootFile, name: h.Root.Name}.String()
		h.Root.Digest = c.digest("digest")
	}
	h.Partition = c.i32("partition")
	h.Offset = c.i64("offset")
	epoch := c.i32("leader epoch")
	h.LeaderEpoch = epoch - 1
	h.ClusterID = c.str("cluster id", maxStateName)
	h.TopicID = c.topicID("topic id")
	h.PartitionCount = c.i32("partition count")
	h.StoreID = c.str("store id", maxStateName)
	if version > 1 {
		if h.Life = c.uvarint("life"); h.Life == 0 && version == 2 {
			c.fail("life 0 in a handle of version 2")
		}
	}
	if (version == 3) != (h.Kind == HandleUnsaved) {
		c.fail("%s in a handle of version %d", h.Kind, version)
	}
	if err := c.end(); err != nil {
		return Handle{}, err
	}
	return h, h.validate()
}
