package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"strings"

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

func (r *Repository) refuseOtherClusters(ctx context.Context) error {
	inv, err := r.inventory(ctx)
	if err != nil {
		return err
	}
	for i := range inv.instances {
		in := &inv.instances[i]
		other, err := r.clusterOf(ctx, in, func(p filePath) (*Root, error) {
			root, _, err := r.loadRoot(ctx, p.String())
			if errors.As(err, new(*CorruptError)) {
				return nil, nil // who needs it says so
			}
			return root, err
		})
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
// neither tells.
func (r *Repository) clusterOf(ctx context.Context, in *instanceFiles, load func(filePath) (*Root, error)) (string, error) {
	if in.announced.Name != "" {
		b, err := readAll(ctx, r.st, in.announced.Name, maxAnnouncement)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if _, rest, ok := strings.Cut(string(b), "\n"); ok && err == nil && rest != "" {
			return strings.TrimSuffix(rest, "\n"), nil
		}
	}
	for _, p := range in.roots {
		root, err := load(p)
		if err != nil {
			return "", err
		}
		if root != nil {
			return root.ClusterID, nil
		}
	}
	return "", nil
}

// maxAnnouncement bounds an announcement in bytes: two names.
const maxAnnouncement = 4096
