package snapshot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

const announced = "shop/i-0/instance"

// start is what an instance does about announcements when it starts, in the directory of d.
func (d *damaged) start(t *testing.T, instance, cluster string) error {
	r, err := OpenRepository(ctx, config(d.m, instance))
	require.NoError(t, err)
	return r.AnnounceFor(ctx, cluster)
}

// Damage of an announcement stops the start of every instance, with its name; it is not taken for another cluster, and
// nothing is written over it.
func TestDamageOfAnAnnouncementIsNotAnotherCluster(t *testing.T) {
	d := newDamaged(t)
	good := d.files[announced]
	for i := range good {
		for _, bad := range [][]byte{good[:i], append(append(append([]byte(nil), good[:i]...), good[i]^1), good[i+1:]...)} {
			replaceFile(t, d.m, announced, bad)
			for _, instance := range []string{"i-0", "i-1"} {
				err := d.start(t, instance, "cluster-1")
				require.True(t, requireCorrupt(err, announced), "%q: %v", bad, err)
				require.ErrorContains(t, err, "announcement "+announced)
			}
			require.Equal(t, string(bad), string(readFile(t, d.m, announced)))
			require.NotContains(t, listAll(t, d.r), "shop/i-1/instance", "who does not start has not been here")
		}
	}
	replaceFile(t, d.m, announced, good)
	require.NoError(t, d.start(t, "i-0", "cluster-1"))
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(d.start(t, "i-0", "cluster-2")), "this is another cluster")
}

// Announcements of another instance, another application, another directory and another cluster are whole in themselves.
func TestAnAnnouncementFromElsewhereIsDetected(t *testing.T) {
	d := newDamaged(t)
	store := d.r.StoreID()
	for what, a := range map[string]announcement{
		"of shop/i-1":                  {dir: "shop/i-1", store: store, cluster: "cluster-1"},
		"of mall/i-0":                  {dir: "mall/i-0", store: store, cluster: "cluster-1"},
		"another checkpoint directory": {dir: "shop/i-0", store: strings.Repeat("0", 32), cluster: "cluster-1"},
		`it names cluster "cluster-2"`: {dir: "shop/i-0", store: store, cluster: "cluster-2"},
	} {
		d.check(t, announced, []byte(encodeAnnouncement(a)), what)
		replaceFile(t, d.m, announced, []byte(encodeAnnouncement(a)))
		require.ErrorContains(t, d.detect(), what)
	}
}

// One that is missing, or was written when the cluster was not known, is harmless: the roots tell the cluster.
func TestAnAnnouncementThatIsMissingOrStaleIsHarmless(t *testing.T) {
	d := newDamaged(t)
	for _, text := range []string{encodeAnnouncement(announcement{dir: "shop/i-0", store: d.r.StoreID()}), "i-0\n", "i-0\ncluster-1\n"} {
		replaceFile(t, d.m, announced, []byte(text))
		require.NoError(t, d.detect())
		require.Equal(t, fault.HandleMismatch, fault.CodeOf(d.start(t, "i-1", "cluster-2")))
	}
	require.NoError(t, d.m.Remove(announced))
	require.NoError(t, d.detect())
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(d.start(t, "i-1", "cluster-2")))
	require.NoError(t, d.start(t, "i-0", "cluster-1"))
	require.Equal(t, string(d.files[announced]), string(readFile(t, d.m, announced)), "it is written anew")
}

// The form without a checksum is read, and compared with the roots beside it: what is damaged in it is found where they are.
func TestDamageOfAnOldAnnouncement(t *testing.T) {
	d := newDamaged(t)
	const good = "i-0\ncluster-1\n"
	for i := range len(good) {
		for bit := range 8 {
			bad := []byte(good)
			bad[i] ^= 1 << bit
			d.check(t, announced, bad, "byte %d bit %d", i, bit)
		}
		if i != len("i-0\n") { // then it is that of a version which did not name the cluster
			d.check(t, announced, []byte(good[:i]), "cut at %d", i)
		}
	}
	d.check(t, announced, []byte("i-1\ncluster-1\n"), "another instance's")
	d.check(t, announced, []byte("i-0\ncluster-2\n"), "of another cluster")
}

func FuzzAnnouncement(f *testing.F) {
	store := strings.Repeat("0f", 16)
	for _, a := range []announcement{{dir: "shop/i-0", store: store, cluster: "MkU3OEVBNTcwNTJENDM2Qg"}, {dir: "shop/i-0", store: store}, {dir: "shop/i-0", store: store, cluster: "a \"b\" \n ø"}} {
		f.Add(encodeAnnouncement(a))
	}
	f.Add("i-0\n")
	f.Add("i-0\ncluster\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := decodeAnnouncement(text, "shop/i-0", store)
		if err != nil {
			return
		}
		require.Equal(t, "shop/i-0", a.dir)
		if !a.old {
			require.Equal(t, text, encodeAnnouncement(a), "one value has one text")
		}
	})
}

// What was announced is read again, whatever the cluster is called.
func TestAnAnnouncementSaysWhatWasWritten(t *testing.T) {
	for _, cluster := range []string{"", "c", "a b", `"`, "ø\n\x00", strings.Repeat("x", 30_000)} {
		m := vfs.NewMem()
		r := openRepo(t, m, "i-0")
		require.NoError(t, r.AnnounceFor(ctx, cluster))
		inv, err := r.inventory(ctx)
		require.NoError(t, err)
		a, err := r.readAnnouncement(ctx, &inv.instances[0])
		require.NoError(t, err)
		require.Equal(t, announcement{dir: "shop/i-0", store: r.StoreID(), cluster: cluster}, a)
	}
	require.Equal(t, "millweir-instance v2 shop/i-0 00112233445566778899aabbccddeeff \"MkU3OEVBNTcwNTJENDM2Qg\" 47063c89\n",
		encodeAnnouncement(announcement{dir: "shop/i-0", store: "00112233445566778899aabbccddeeff", cluster: "MkU3OEVBNTcwNTJENDM2Qg"}), "the form does not change")
}
