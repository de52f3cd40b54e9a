package snapshot

import (
	"bytes"
	"slices"
)

// MaxOrigin is the most directories that a savepoint to start from may consist of.
const MaxOrigin = 256

// OriginOf names the savepoint that several directories make up together, as roots name it.
func OriginOf(from []*Savepoint) []SavepointRef {
	out := make([]SavepointRef, len(from))
	for i, s := range from {
		out[i] = s.Ref
	}
	return sortedOrigin(out)
}

// SameOrigin reports that two origins are one savepoint, wherever it lies. Nothing is no savepoint.
func SameOrigin(a, b []SavepointRef) bool {
	return len(a) > 0 && slices.EqualFunc(a, b, func(x, y SavepointRef) bool { return x.Digest == y.Digest })
}

func sortedOrigin(refs []SavepointRef) []SavepointRef {
	out := slices.Clone(refs)
	slices.SortFunc(out, func(a, b SavepointRef) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	return out
}

func (s *SavepointRef) valid() bool {
	return ValidName(s.ID) && s.Path != "" && len(s.Path) <= maxSavepointPath && !s.Digest.IsZero()
}

func checkOrigin(refs []SavepointRef) error {
	if len(refs) > MaxOrigin {
		return formatf("%d savepoints of the origin, at most %d allowed", len(refs), MaxOrigin)
	}
	for i, s := range refs {
		switch {
		case !s.valid():
			return formatf("savepoint %q of the origin, at %q, is not valid", s.ID, s.Path)
		case i > 0 && bytes.Compare(refs[i-1].Digest[:], s.Digest[:]) >= 0:
			return formatf("savepoint %q of the origin is out of order or twice", s.ID)
		}
	}
	return nil
}
