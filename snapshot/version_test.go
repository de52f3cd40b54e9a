package snapshot

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newestVersions are those of the files that begin with a magic.
var newestVersions = map[string]byte{rootMagic: rootVersion, runMagic: runVersion, markerMagic: markerVersion, savepointMagic: savepointVersion}

func formatVersion(v int) string { return fmt.Sprintf("format version %d, this program reads ", v) }

// runsIn gives the runs of roots, those in flight too, that are wanted.
func runsIn(wanted func(RunRef) bool, roots ...*Root) (out []RunRef) {
	for _, root := range roots {
		for _, e := range root.Tasks {
			for _, run := range slices.Concat(e.Runs, e.InFlight) {
				if !run.IsInline() && wanted(run) {
					out = append(out, run)
				}
			}
		}
	}
	return out
}

// versioned is the content of a file in which one thing is of another version.
type versioned struct {
	version int
	content []byte
}

// inOtherVersions gives a file that begins with a magic as one of a version to come, and of version 0, which never was. The
// checksums hold. In a file of runs one of them is so at a time.
func inOtherVersions(good []byte, runs []RunRef) (out []versioned) {
	magic := string(good[:len(runMagic)])
	newest := newestVersions[magic]
	for _, v := range []byte{0, newest + 1, 255} {
		if magic != runMagic {
			b := slices.Clone(good)
			b[len(magic)] = v
			out = append(out, versioned{int(v), seal(b[:len(b)-4])})
			continue
		}
		for _, run := range runs {
			b := slices.Clone(good)
			reversion(b[run.Offset:][:run.Length], v)
			out = append(out, versioned{int(v), b})
		}
	}
	return out
}

// reversion writes a version into a run, in place, with the checksum of its header. Those of its blocks and of its footer are
// about neither.
func reversion(run []byte, v byte) {
	head := len(runMagic) + 1
	run[len(runMagic)] = v
	end := head + 4 + int(binary.BigEndian.Uint32(run[head:]))
	binary.BigEndian.PutUint32(run[end:], crc32c(run[:end]))
}

func (d *damaged) roots(t *testing.T) (out []*Root) {
	for _, ref := range d.refs {
		root, err := d.r.ReadRoot(ctx, ref)
		require.NoError(t, err)
		out = append(out, root)
	}
	return out
}

// otherVersions has a file in other versions be noticed and named, with the version where there is a number.
func (d *damaged) otherVersions(t *testing.T, file string) (mutants int) {
	t.Helper()
	good := d.files[file]
	for head, later := range map[string]string{storeIDHead: "millweir-store-id v2 ", announceHead: "millweir-instance v3 "} {
		rest, ok := strings.CutPrefix(string(good), head)
		if !ok {
			continue
		}
		text := later + rest[:strings.LastIndexByte(rest, ' ')]
		b := fmt.Appendf(nil, "%s %08x\n", text, crc32c([]byte(text)))
		replaceFile(t, d.m, file, b)
		require.ErrorContains(t, d.detect(), fmt.Sprintf("it does not begin with %q", head), "the version is in it")
		d.check(t, file, b, "a version to come")
		return 1
	}
	later := inOtherVersions(good, runsIn(func(r RunRef) bool { return r.File == file }, d.roots(t)...))
	require.NotEmpty(t, later, file)
	for _, l := range later {
		replaceFile(t, d.m, file, l.content)
		require.ErrorContains(t, d.detect(), formatVersion(l.version), file)
		d.check(t, file, l.content, "version %d", l.version)
	}
	return len(later)
}

// A reader of one version refuses an older one too.
func TestSealedWantsItsVersion(t *testing.T) {
	for v := range byte(4) {
		_, err := sealed(seal([]byte{'M', 'W', 'C', 'M', v}), markerMagic, 2)
		if v == 2 {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, formatVersion(int(v)))
	}
}
