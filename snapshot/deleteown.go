package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// DeleteOwn deletes the checkpoints of this instance, of which no committed handle may name one any more, once the group says
// that no state belongs to its positions. What a root of another instance names stays: a partition that went there
// brought its runs along. When one of those roots cannot be read everything stays.
//
// Markers go first, then roots, then data, so that what is left by an interruption is not taken for more than it is.
func (r *Repository) DeleteOwn(ctx context.Context) (CleanReport, error) {
	infos, err := r.List(ctx)
	if err != nil {
		return CleanReport{}, err
	}
	needed := map[string]bool{}
	for i := range infos {
		if parseFilePath(infos[i].Ref.Path).dir == r.dir {
			continue
		}
		if infos[i].Err != nil {
			return CleanReport{}, fmt.Errorf("it is not known which files others need: %w", infos[i].Err)
		}
		markFiles(infos[i].Root, needed)
	}
	files, err := r.st.List(ctx, r.dir+"/")
	if err != nil {
		return CleanReport{}, err
	}
	var rep CleanReport
	for _, kinds := range [][]fileKind{{markerFile}, {rootFile}, {packFile, fullFile}} {
		for _, f := range files {
			if k := parseFilePath(f.Name).kind; (k != kinds[0] && k != kinds[len(kinds)-1]) || needed[f.Name] {
				continue
			}
			if err := r.st.Delete(ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return rep, err
			}
			rep.Deleted++
			rep.DeletedBytes += f.Length
		}
		if err := r.syncRemovals(ctx, files); err != nil {
			return rep, err
		}
	}
	return rep, nil
}
