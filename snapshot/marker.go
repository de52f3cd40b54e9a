package snapshot

// The committed marker says that the transaction of the root beside it is known to be committed. It repeats name and
// digest of the root, so that a marker under a wrong name is noticed.

const (
	markerMagic   = "MWCM"
	markerVersion = 1
	markerSize    = len(markerMagic) + 1 + 16 + len(Digest{}) + 4
)

func encodeMarker(ref RootRef) []byte {
	b := append(make([]byte, 0, markerSize), markerMagic...)
	b = append(b, markerVersion)
	b = appendName(b, ref.Name)
	b = append(b, ref.Digest[:]...)
	return seal(b)
}

// decodeMarker gives name and digest; the path is the caller's.
func decodeMarker(b []byte) (RootRef, error) {
	body, err := sealed(b, markerMagic, markerVersion)
	if err != nil {
		return RootRef{}, err
	}
	c := &cursor{b: body}
	ref := RootRef{Name: c.name("name"), Digest: c.digest("digest")}
	return ref, c.end()
}
