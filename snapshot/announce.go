package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
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
	text := r.inst + "\n"
	if r.cluster != "" {
		text += r.cluster + "\n"
	}
	_, err := r.st.Put(ctx, name, writeBytes([]byte(text)))
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

// forgetAnnouncements removes the announcements of instances that are gone, where the plan leaves them nothing else and they
// are older than the grace. Much time may have passed since it was asked who is gone, and one that has come back meanwhile
// has found its announcement: so it is asked again. One that comes back at this very moment is known by the next file that
// it writes.
func (g *goneCleaner) forgetAnnouncements(deleted map[string]bool) error {
	var doomed []*instanceFiles
	for _, in := range g.gone {
		if f := in.announced; f.Name != "" && g.old(f) && !slices.ContainsFunc(in.all, func(f FileInfo) bool { return !deleted[f.Name] }) {
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
