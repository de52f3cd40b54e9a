package snapshot

import (
	"slices"
	"strings"
)

// packPath is the path that runs have in memory which lie in the file of their checkpoint.
func (r *Root) packPath() string {
	return filePath{dir: r.Application + "/" + r.Instance, kind: packFile, name: r.Name}.String()
}

// withFiles gives a copy whose runs name another file.
func (r *Root) withFiles(name string) *Root {
	c := *r
	c.Tasks = slices.Clone(r.Tasks)
	for i := range c.Tasks {
		e := &c.Tasks[i]
		e.Runs, e.InFlight = slices.Clone(e.Runs), slices.Clone(e.InFlight)
		for _, runs := range [][]RunRef{e.Runs, e.InFlight} {
			for k := range runs {
				runs[k].File = name
			}
		}
	}
	return &c
}

// encodeSavepoint gives the bytes of a savepoint's metadata: the body of a root whose runs name the file beside it.
func encodeSavepoint(id string, r *Root) []byte {
	b := append(append([]byte(nil), savepointMagic...), savepointVersion)
	return seal(appendRoot(appendString(b, id), r.withFiles(savepointData)))
}

// decodeSavepoint reads metadata. It accepts exactly what encodeSavepoint gives.
func decodeSavepoint(b []byte) (string, *Root, error) {
	if len(b) > maxRootSize {
		return "", nil, formatf("%d bytes, at most %d allowed", len(b), maxRootSize)
	}
	body, err := sealed(b, savepointMagic, savepointVersion)
	if err != nil {
		return "", nil, err
	}
	c := &cursor{b: body}
	id := c.str("id", maxName)
	r := decodeRootBody(c, rootVersion)
	if err := c.end(); err != nil {
		return "", nil, err
	}
	if !ValidName(id) || r.Predecessor != nil || len(r.Savepoints) > 0 || len(r.Origin) > 0 {
		return "", nil, formatf("id %q is not valid, or it names other checkpoints", id)
	}
	size := int64(0)
	for i := range r.Tasks {
		e := &r.Tasks[i]
		for _, runs := range [][]RunRef{e.Runs, e.InFlight} {
			for k := range runs {
				run := &runs[k]
				if run.File != savepointData || run.Offset != size {
					return "", nil, formatf("run in %q at %d, in %s at %d is expected", run.File, run.Offset, savepointData, size)
				}
				run.File = r.packPath()
				size += run.Length
			}
		}
		if len(e.Runs) > 1 || len(e.Runs) == 1 && !e.Runs[0].Full {
			return "", nil, formatf("task %s has %d runs, one with the whole state is expected", e.Task, len(e.Runs))
		}
	}
	for i := range r.Tasks { // no byte of the file is outside of the runs
		for _, runs := range [][]RunRef{r.Tasks[i].Runs, r.Tasks[i].InFlight} {
			if k := slices.IndexFunc(runs, func(run RunRef) bool { return run.FileSize != size }); k >= 0 {
				return "", nil, formatf("%s has %d bytes, its runs have %d", savepointData, runs[k].FileSize, size)
			}
		}
	}
	return id, r, r.validate()
}

// parseSavepointName reads the name of a savepoint's directory.
func parseSavepointName(s string) (application string, name string, ok bool) {
	rest, ok := strings.CutPrefix(s, savepointPrefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i < 0 {
		return "", "", false
	}
	if i = strings.LastIndexByte(rest[:i], '-'); i < 0 {
		return "", "", false
	}
	_, err := ParseCheckpointName(rest[i+1:])
	return rest[:i], rest[i+1:], err == nil && ValidName(rest[:i])
}
