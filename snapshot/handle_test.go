package snapshot

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

func sampleHandle() Handle {
	name := nameOf(4711, 0x1122334455667788)
	return Handle{
		Kind:      HandleCheckpoint,
		Root:      RootRef{Name: name, Path: "order-totals/instance-0/chk-" + name.String() + ".root", Digest: digestOf([]byte("root"))},
		Partition: 3, Offset: 123456789, LeaderEpoch: 5, ClusterID: "MkU3OEVBNTcwNTJENDM2Qg", TopicID: topicID, PartitionCount: 12,
		StoreID: "00112233445566778899aabbccddeeff",
	}
}

func TestHandleIsShort(t *testing.T) {
	s, err := sampleHandle().Encode()
	require.NoError(t, err)
	require.Less(t, len(s), 260)
	require.True(t, strings.HasPrefix(s, "mw1:"), s)
}

func drawHandle(rt *rapid.T) Handle {
	name := element.CheckpointName{ID: element.CheckpointID(rapid.Uint64().Draw(rt, "id")), Incarnation: element.Incarnation(rapid.Uint64().Draw(rt, "inc"))}
	h := Handle{
		Kind: HandleEmpty, Root: RootRef{Name: name},
		Partition: rapid.Int32Min(0).Draw(rt, "p"), Offset: rapid.Int64Min(0).Draw(rt, "off"), LeaderEpoch: rapid.Int32Range(-1, 1<<31-2).Draw(rt, "epoch"),
		ClusterID: rapid.StringN(0, 40, 120).Draw(rt, "cluster"), PartitionCount: rapid.Int32Min(0).Draw(rt, "count"), StoreID: rapid.StringN(0, 40, 120).Draw(rt, "store"),
	}
	if rapid.Bool().Draw(rt, "later life") {
		h.Life = rapid.Uint64Min(1).Draw(rt, "life")
	}
	copy(h.TopicID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "topic"))
	if rapid.Bool().Draw(rt, "unsaved") {
		h.Kind = HandleUnsaved
	} else if rapid.Bool().Draw(rt, "checkpoint") {
		h.Kind = HandleCheckpoint
		h.Root.Path = rapid.StringMatching(`[a-z]{1,128}/[a-z0-9]{1,128}`).Draw(rt, "dir") + "/chk-" + name.String() + ".root"
		h.Root.Digest = digestOf([]byte(name.String()))
	}
	return h
}

func TestHandleRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHandle(rt)
		s, err := h.Encode()
		require.NoError(rt, err)
		require.LessOrEqual(rt, len(s), MaxHandleSize)
		got, err := ParseHandle(s)
		require.NoError(rt, err)
		require.Equal(rt, h, got)
	})
}

func TestHandleOfOthersIsTold(t *testing.T) {
	good, err := sampleHandle().Encode()
	require.NoError(t, err)
	for s, want := range map[string]error{
		"": ErrHandleForeign, "member-1": ErrHandleForeign, "mw": ErrHandleForeign, "mw:": ErrHandleForeign, "mwx1:abc": ErrHandleForeign,
		"mw01:abc": ErrHandleForeign, "mw-1:abc": ErrHandleForeign, "mw99999999:": ErrHandleForeign, "AgAAAAAAAAAA": ErrHandleForeign, `{"a":1}`: ErrHandleForeign,
		"mw2:whatever": ErrHandleDamaged, "mw3:whatever": ErrHandleDamaged, "mw4:whatever": ErrHandleNewer, "mw17:": ErrHandleNewer,
		"mw0:": ErrHandleDamaged, "mw1:": ErrHandleDamaged, "mw1:***": ErrHandleDamaged, good[:len(good)-1]: ErrHandleDamaged, good + "A": ErrHandleDamaged,
		good + "\n": ErrHandleDamaged, good + "=": ErrHandleDamaged, strings.Replace(good, "mw1:", "mw1:\n", 1): ErrHandleDamaged,
		"mw1:" + strings.Repeat("A", MaxHandleSize): ErrHandleDamaged,
	} {
		_, err := ParseHandle(s)
		require.ErrorIs(t, err, want, "%q", s)
	}
}

// TestHandleDamageIsAlwaysSeen flips every bit of the text and cuts it everywhere.
func TestHandleDamageIsAlwaysSeen(t *testing.T) {
	good, err := sampleHandle().Encode()
	require.NoError(t, err)
	for i := range len(good) {
		_, err := ParseHandle(good[:i])
		require.Error(t, err)
		for bit := range 8 {
			b := []byte(good)
			b[i] ^= 1 << bit
			_, err := ParseHandle(string(b))
			require.Error(t, err, "byte %d bit %d", i, bit)
		}
	}
}

func TestHandleThatCannotBeIsNotEncoded(t *testing.T) {
	for what, change := range map[string]func(*Handle){
		"unknown kind":       func(h *Handle) { h.Kind = 9 },
		"negative":           func(h *Handle) { h.Offset = -1 },
		"not that of root":   func(h *Handle) { h.Root.Path = "../../etc/passwd" },
		"is not that":        func(h *Handle) { h.Root.Name.ID++ },
		"names no root":      func(h *Handle) { h.Kind = HandleEmpty },
		"cluster id":         func(h *Handle) { h.ClusterID = strings.Repeat("x", 5000) },
		"leader epoch below": func(h *Handle) { h.LeaderEpoch = -2 },
	} {
		h := sampleHandle()
		change(&h)
		_, err := h.Encode()
		require.Error(t, err, what)
	}
}

// TestHandleWithAValidChecksumIsStillChecked: whoever may commit offsets can compute the checksum too.
func TestHandleWithAValidChecksumIsStillChecked(t *testing.T) {
	first, err := sampleHandle().Encode()
	require.NoError(t, err)
	raw, err := base64.RawURLEncoding.DecodeString(first[len(handleHead):])
	require.NoError(t, err)
	for _, more := range [][]byte{nil, {0}, {1, 0}} { // a life that is missing, none, or followed by something
		b := append(raw[:len(raw)-4:len(raw)-4], more...)
		b = binary.BigEndian.AppendUint32(b, handleCRC(handleHeadLife, b))
		_, err := ParseHandle(handleHeadLife + base64.RawURLEncoding.EncodeToString(b))
		require.ErrorIs(t, err, ErrHandleDamaged)
	}
	for _, head := range []string{handleHead, handleHeadLife, handleHeadUnsaved} { // and each kind only in its version
		for _, kind := range []HandleKind{HandleEmpty, HandleCheckpoint, HandleUnsaved} {
			h := sampleHandle()
			if h.Kind, h.Life = kind, 1; kind != HandleCheckpoint {
				h.Root = RootRef{Name: h.Root.Name}
			}
			s, err := h.Encode()
			require.NoError(t, err)
			raw, err := base64.RawURLEncoding.DecodeString(s[len(head):])
			require.NoError(t, err)
			if head == handleHead {
				raw = raw[:len(raw)-1] // no life
			}
			b := raw[: len(raw)-4 : len(raw)-4]
			_, err = ParseHandle(head + base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(b, handleCRC(head, b))))
			require.Equal(t, (kind == HandleUnsaved) == (head == handleHeadUnsaved), err == nil, "%s %s: %v", head, kind, err)
		}
	}
	for _, body := range [][]byte{{}, {2}, {9, 0, 0}, append([]byte{2}, make([]byte, 16)...), append(append([]byte{2}, make([]byte, 16)...), 0xff, 0xff, 0xff, 0xff, 0x0f)} {
		b := appendCRCForTest(body)
		_, err := ParseHandle(handleHead + base64.RawURLEncoding.EncodeToString(b))
		require.ErrorIs(t, err, ErrHandleDamaged)
	}
}

func appendCRCForTest(b []byte) []byte {
	c := handleCRC(handleHead, b)
	return append(b, byte(c>>24), byte(c>>16), byte(c>>8), byte(c))
}
