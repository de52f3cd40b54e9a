package snapshot

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/millweir/millweir/internal/fault"
)

// AnnounceFor is the first Announce: it also says which cluster this instance takes its checkpoints of. When the
// application has been here with another cluster it refuses (class Stop, code HandleMismatch): tasks of two clusters have
// the same names, and one cluster's instances do not know which checkpoints the other's offsets name.
func (r *Repository) AnnounceFor(ctx context.Context, cluster string) error {
	r.cluster = cluster
	if cluster == "" {
		return r.Announce(ctx)
	}
	if err := r.refuseOtherClusters(ctx); err != nil {
		return err
	}
	own := r.dir + "/" + announceFile
	there := r.exists(ctx, own)
	if err := r.Announce(ctx); err != nil {
		return err
	}
	err := r.refuseOtherClusters(ctx) // one that has come at the same time
	if err != nil && !there {
		return errors.Join(err, r.st.Delete(ctx, own))
	}
	return err
}

// RefuseOtherClusters refuses as AnnounceFor does, for one who wants to delete what an application has in a directory: files that
// are damaged tell nothing. Where the store id is lost, roots count whichever one they name.
func RefuseOtherClusters(ctx context.Context, st Storage, application, cluster string) error {
	r := &Repository{st: st, app: application, cluster: cluster, log: slog.Default(), parsed: map[string]cleanRoot{}, files: map[string]int64{}}
	var err error
	if r.storeID, err = findStoreID(ctx, st); err != nil && !errors.Is(err, fs.ErrNotExist) && !isOfFile(err) {
		return err
	}
	return r.refuseOthers(ctx, r.otherTold)
}

func (r *Repository) refuseOtherClusters(ctx context.Context) error {
	return r.refuseOthers(ctx, func(ctx context.Context, in *instanceFiles) (string, error) {
		return r.clusterOf(ctx, in, r.rootIfWhole(ctx))
	})
}

func (r *Repository) refuseOthers(ctx context.Context, clusterOf func(context.Context, *instanceFiles) (string, error)) error {
	inv, err := r.inventory(ctx)
	if err != nil {
		return err
	}
	for i := range inv.instances {
		in := &inv.instances[i]
		other, err := clusterOf(ctx, in)
		if err != nil {
			return err
		}
		if other != "" && other != r.cluster {
			return fault.Stopf(fault.HandleMismatch, "checkpoint directory %s: application %s has been here with cluster %q (instance %s), this is cluster %q: "+
				"give each cluster a state.checkpoints.dir or an application name of its own; if the other cluster is gone, move %s/%s away",
				r.st.Location(), r.app, other, r.instanceOf(in.dir), r.cluster, r.st.Location(), r.app)
		}
	}
	return nil
}

// clusterOf gives the cluster of an instance by its announcement, or by its newest root that can be read; empty when
// neither tells. When they contradict each other the announcement is not the one that belongs there, for the cluster is
// compared before the first root is written.
func (r *Repository) clusterOf(ctx context.Context, in *instanceFiles, load func(filePath) (*Root, error)) (string, error) {
	a, err := r.readAnnouncement(ctx, in)
	if err != nil {
		return "", err
	}
	root, err := newestOf(in, load)
	if err != nil || root == nil {
		return a.cluster, err
	}
	if a.cluster != "" && root.ClusterID != "" && a.cluster != root.ClusterID {
		return "", corrupt("", in.announced.Name, KindAnnouncement, formatf("it names cluster %q, checkpoint %s beside it is of cluster %q", a.cluster, root.Name, root.ClusterID))
	}
	return cmp.Or(a.cluster, root.ClusterID), nil
}

// otherTold gives the cluster of an instance as clusterOf does, but passes over what is damaged. When announcement and root
// contradict each other the one counts that tells of another cluster.
func (r *Repository) otherTold(ctx context.Context, in *instanceFiles) (string, error) {
	a, err := r.readAnnouncement(ctx, in)
	switch {
	case err != nil && !isOfFile(err):
		return "", err
	case a.cluster != "" && a.cluster != r.cluster:
		return a.cluster, nil
	}
	root, err := newestOf(in, r.rootIfReadable(ctx))
	if err != nil || root == nil {
		return "", err
	}
	return root.ClusterID, nil
}

// newestOf gives the newest root of an instance that load gives; nil when it gives none.
func newestOf(in *instanceFiles, load func(filePath) (*Root, error)) (*Root, error) {
	for _, p := range in.roots {
		if root, err := load(p); err != nil || root != nil {
			return root, err
		}
	}
	return nil, nil
}

// VerifyAnnouncements reads the announcements of all instances of the application and compares them with the newest root
// beside them. It gives their number, and every one that is damaged or does not belong there, as a CorruptError, and that cannot be read for
// lack of the right to, as an UnreadableError. An instance
// without one is no damage: what else it has left makes it known.
func (r *Repository) VerifyAnnouncements(ctx context.Context) (read int, damage []error, err error) {
	inv, err := r.inventory(ctx)
	if err != nil {
		return 0, nil, err
	}
	for i := range inv.instances {
		in := &inv.instances[i]
		if in.announced.Name == "" {
			continue
		}
		_, err := r.clusterOf(ctx, in, r.rootIfReadable(ctx))
		if err == nil {
			err = r.announcedHere(ctx, in)
		}
		if err != nil && !isOfFile(err) {
			return read, damage, err
		}
		if read++; err != nil {
			damage = append(damage, err)
		}
	}
	return read, damage, nil
}

// announcedHere compares the store id of an announcement with that of the directory.
func (r *Repository) announcedHere(ctx context.Context, in *instanceFiles) error {
	a, err := r.readAnnouncement(ctx, in)
	if err != nil || a.store == "" || a.store == r.storeID {
		return err
	}
	return corrupt("", in.announced.Name, KindAnnouncement, formatf("it was written to another checkpoint directory (store id %q, here %q)", a.store, r.storeID))
}

// rootIfWhole gives what loads roots, and nil for damaged ones: who needs them says so.
func (r *Repository) rootIfWhole(ctx context.Context) func(filePath) (*Root, error) {
	return func(p filePath) (*Root, error) {
		root, _, err := r.loadRoot(ctx, p.String())
		if errors.As(err, new(*CorruptError)) {
			return nil, nil
		}
		return root, err
	}
}

// rootIfReadable is rootIfWhole, and gives nil also for roots that cannot be read for lack of the right to.
func (r *Repository) rootIfReadable(ctx context.Context) func(filePath) (*Root, error) {
	return func(p filePath) (*Root, error) {
		root, _, err := r.loadRoot(ctx, p.String())
		if isOfFile(err) {
			return nil, nil
		}
		return root, err
	}
}
