package snapshot

import (
	"encoding/binary"
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

// savepointIDs are the names that a savepoint has.
type savepointIDs struct {
	id       string
	requests []string // sorted; nil in version 1
}

// checkRequests checks the ids of requests, sorted.
func checkRequests(requests []string) error {
	if len(requests) > maxSavepoints {
		return formatf("%d requests, at most %d allowed", len(requests), maxSavepoints)
	}
	for i, id := range requests {
		if !ValidName(id) || i > 0 && requests[i-1] >= id {
			return formatf("request %q is not a valid name, or out of order", id)
		}
	}
	return nil
}

// encodeSavepoint gives the bytes of a savepoint's metadata: its names and the body of a root whose runs name the file beside it.
func encodeSavepoint(ids savepointIDs, r *Root) []byte {
	b := append([]byte(nil), savepointMagic...)
	if len(ids.requests) == 0 {
		b = appendString(append(b, 1), ids.id)
	} else {
		b = appendString(append(b, savepointVersion), ids.id)
		b = binary.AppendUvarint(b, uint64(len(ids.requests)))
		for _, id := range ids.requests {
			b = appendString(b, id)
		}
	}
	return seal(appendRoot(b, r.withFiles(savepointData), plainVersion))
}

// decodeSavepoint reads metadata. It accepts exactly what encodeSavepoint gives.
func decodeSavepoint(b []byte) (ids savepointIDs, _ *Root, err error) {
	if len(b) > maxRootSize {
		return ids, nil, formatf("%d bytes, at most %d allowed", len(b), maxRootSize)
	}
	body, version, err := sealedUpTo(b, savepointMagic, savepointVersion)
	if err != nil {
		return ids, nil, err
	}
	c := &cursor{b: body}
	ids.id = c.str("id", maxName)
	if version > 1 {
		ids.requests = decodeList(c, "requests", 1, maxSavepoints, func(c *cursor) string { return c.str("request", maxName) })
		if c.err == nil && len(ids.requests) == 0 {
			c.fail("no request")
		}
	}
	r := decodeRootBody(c, plainVersion)
	if err := c.end(); err != nil {
		return ids, nil, err
	}
	if err := checkRequests(ids.requests); err != nil {
		return ids, nil, err
	}
	if !ValidName(ids.id) || r.Predecessor != nil || len(r.Savepoints) > 0 || len(r.Origin) > 0 {
		return ids, nil, formatf("id %q is not valid, or it names other checkpoints", ids.id)
	}
	size := int64(0)
	for i := range r.Tasks {
		e := &r.Tasks[i]
		for _, runs := range [][]RunRef{e.Runs, e.InFlight} {
			for k := range runs {
				run := &runs[k]
				if run.File != savepointData || run.Offset != size {
					return ids, nil, formatf("run in %q at %d, in %s at %d is expected", run.File, run.Offset, savepointData, size)
				}
				run.File = r.packPath()
				size += run.Length
			}
		}
		if len(e.Runs) > 1 || len(e.Runs) == 1 && !e.Runs[0].Full {
			return ids, nil, formatf("task %s has %d runs, one with the whole state is expected", e.Task, len(e.Runs))
		}
	}
	for i := range r.Tasks { // no byte of the file is outside of the runs
		for _, runs := range [][]RunRef{r.Tasks[i].Runs, r.Tasks[i].InFlight} {
			if k := slices.IndexFunc(runs, func(run RunRef) bool { return run.FileSize != size }); k >= 0 {
				return ids, nil, formatf("%s has %d bytes, its runs have %d", savepointData, runs[k].FileSize, size)
			}
		}
	}
	return ids, r, r.validate()
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
