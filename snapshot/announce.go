package snapshot

import (
	"context"
	"errors"
	"io/fs"
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
	_, err := r.st.Put(ctx, name, writeBytes([]byte(r.inst+"\n")))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// announcedBy gives the directory of the instance whose announcement a file is.
func announcedBy(path string) (dir string, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 3 || parts[2] != announceFile || !ValidName(parts[0]) || !ValidName(parts[1]) {
		return "", false
	}
	return parts[0] + "/" + parts[1], true
}

// forgetAnnouncement removes the announcement of an instance that is gone, when the plan leaves it nothing else and it is
// older than the grace. If its process returns at this moment, it is known by the next file that it writes.
func (g *goneCleaner) forgetAnnouncement(in *instanceFiles, deleted map[string]bool) error {
	f := in.announced
	if f.Name == "" || !g.old(f) {
		return nil
	}
	for _, other := range in.all {
		if !deleted[other.Name] {
			return nil
		}
	}
	if err := g.r.st.Delete(g.ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
