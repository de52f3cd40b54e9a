package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// announceFile says that an instance has been here, before it has anything else to show. Who takes its partitions over
// knows by its directory which transactions may have been left open.
const announceFile = "instance"

// Announce makes this instance known to Instances. It is called before the instance begins its first transaction: one that
// dies in it has no other file yet, and its transaction would be nobody's. It is called again after each time out of the
// group, for an instance that is taken for gone is forgotten. One that is known costs a look.
func (r *Repository) Announce(ctx context.Context) error {
	name := r.dir + "/" + announceFile
	if r.exists(ctx, name) {
		return nil
	}
	_, err := r.st.Put(ctx, name, writeBytes([]byte(encodeAnnouncement(announcement{dir: r.dir, store: r.storeID, cluster: r.cluster}))))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

const (
	announceHead = "millweir-instance v2 "
	// maxAnnouncement bounds an announcement in bytes.
	maxAnnouncement = 1 << 17
)

// announcement is what an announcement says. That of an old version (old) is one or two lines, the instance and the cluster,
// without a checksum.
type announcement struct {
	dir     string // <application>/<instance>
	store   string // id of the checkpoint directory
	cluster string // empty: not known
	old     bool
}

// encodeAnnouncement gives the file's text: head, directory, store id, the cluster in quotes, CRC32C of what is before the
// last blank, newline.
func encodeAnnouncement(a announcement) string {
	s := fmt.Sprintf("%s%s %s %s", announceHead, a.dir, a.store, strconv.QuoteToASCII(a.cluster))
	return fmt.Sprintf("%s %08x\n", s, crc32c([]byte(s)))
}

// decodeAnnouncement reads the text of the announcement in the directory of an instance, in a directory with a store id. That of
// another one is not refused here: where the id is not the directory's own, the handles tell, and that is what is to be said.
func decodeAnnouncement(text, dir, store string) (announcement, error) {
	_, inst, _ := strings.Cut(dir, "/")
	if rest, ok := strings.CutPrefix(text, inst+"\n"); ok && (rest == "" || strings.IndexByte(rest, '\n') == len(rest)-1) {
		return announcement{dir: dir, store: store, cluster: strings.TrimSuffix(rest, "\n"), old: true}, nil
	}
	rest, ok := strings.CutPrefix(text, announceHead)
	if !ok {
		return announcement{}, formatf("damaged, or of a version to come: it does not begin with %q", announceHead)
	}
	a := announcement{}
	a.dir, rest, _ = strings.Cut(rest, " ")
	a.store, rest, _ = strings.Cut(rest, " ")
	quoted := rest[:max(0, strings.LastIndexByte(rest, ' '))]
	var err error
	if a.cluster, err = strconv.Unquote(quoted); err != nil || encodeAnnouncement(a) != text {
		return announcement{}, formatf("damaged: the checksum does not match")
	}
	if a.dir != dir {
		return announcement{}, formatf("it is the announcement of %s", a.dir)
	}
	return a, nil
}

// readAnnouncement reads the announcement of an instance; the zero value when there is none, or none any more.
func (r *Repository) readAnnouncement(ctx context.Context, in *instanceFiles) (announcement, error) {
	if in.announced.Name == "" {
		return announcement{}, nil
	}
	b, err := readAll(ctx, r.st, in.announced.Name, maxAnnouncement)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return announcement{}, nil
	case err != nil:
		return announcement{}, r.readError(ctx, "", in.announced.Name, KindAnnouncement, err)
	}
	a, err := decodeAnnouncement(string(b), in.dir, r.storeID)
	if err != nil {
		return announcement{}, corrupt("", in.announced.Name, KindAnnouncement, err)
	}
	return a, nil
}

// announcedBy gives the directory of the instance whose announcement a file is.
func announcedBy(path string) (dir string, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 3 || parts[2] != announceFile || !ValidName(parts[0]) || !ValidName(parts[1]) {
		return "", false
	}
	return parts[0] + "/" + parts[1], true
}

// forgetAnnouncements removes the announcements of instances that are gone, where the plan leaves them nothing else and they
// are older than the grace. Much time may have passed since it was asked who is gone, and one that has come back meanwhile
// has found its announcement: so it is asked again. One that comes back at this very moment is known by the next file that
// it writes.
func (g *goneCleaner) forgetAnnouncements(deleted map[string]bool) error {
	var doomed []*instanceFiles
	for _, in := range g.gone {
		if f := in.announced; f.Name != "" && f.NotFile == "" && g.old(f) && !slices.ContainsFunc(in.all, func(f FileInfo) bool { return !deleted[f.Name] }) {
			doomed = append(doomed, in)
		}
	}
	if len(doomed) == 0 {
		return nil
	}
	live, err := g.in.Live(g.ctx)
	if err != nil {
		return fmt.Errorf("who is in the group: %w", err)
	}
	for _, in := range doomed {
		if slices.Contains(live, g.r.instanceOf(in.dir)) {
			continue
		}
		if err := g.r.st.Delete(g.ctx, in.announced.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
