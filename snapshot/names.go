package snapshot

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/element"
)

// Limits of names, in bytes.
const (
	maxName      = 128 // application, instance, source
	maxStateName = 512 // state, codec
	maxSegment   = 255 // one element of a path
)

const (
	dataSuffix   = ".data"
	rootSuffix   = ".root"
	markerSuffix = ".committed"
	tempSuffix   = ".tmp"
)

// ValidName reports whether s may name an application, an instance or a source: 1 to 128 of A-Z a-z 0-9 . _ - and
// not "." or "..", so that it is one harmless path element (nor the form of a temporary file, 16 hex digits and .tmp).
func ValidName(s string) bool { return len(s) <= maxName && validSegment(s) && !isTemp(s) }

func validSegment(s string) bool {
	if s == "" || len(s) > maxSegment || s == "." || s == ".." {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// validStateName allows what topologies compose ("step/state", "avro:fingerprint"): printable ASCII without blanks.
func validStateName(s string) bool {
	if s == "" || len(s) > maxStateName {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// validPath accepts relative slash-separated paths of 1 to 4 valid elements whose last is not a temporary name.
func validPath(p string) bool {
	for n := 1; n <= 4; n++ {
		s, rest, more := strings.Cut(p, "/")
		if !validSegment(s) {
			return false
		}
		if !more {
			return !isTemp(s)
		}
		p = rest
	}
	return false
}

// ParseCheckpointName reads the form that element.CheckpointName prints: <id>-<16 hex digits>.
func ParseCheckpointName(s string) (element.CheckpointName, error) {
	id, inc, ok := strings.Cut(s, "-")
	n, err := strconv.ParseUint(id, 10, 64)
	k, err2 := strconv.ParseUint(inc, 16, 64)
	name := element.CheckpointName{ID: element.CheckpointID(n), Incarnation: element.Incarnation(k)}
	if !ok || err != nil || err2 != nil || name.String() != s {
		return element.CheckpointName{}, fmt.Errorf("%q is not a checkpoint name (<id>-<16 hex digits>)", s)
	}
	return name, nil
}

// fileKind says what a file in an instance's directory is.
type fileKind int

const (
	foreignFile fileKind = iota
	packFile
	rootFile
	markerFile
	fullFile
)

// filePath is a parsed path of one of our files.
type filePath struct {
	dir  string // <application>/<instance>
	kind fileKind
	name element.CheckpointName
	task string // of a full run
}

func (p filePath) String() string {
	switch p.kind {
	case packFile:
		return p.dir + "/chk-" + p.name.String() + dataSuffix
	case rootFile:
		return p.dir + "/chk-" + p.name.String() + rootSuffix
	case markerFile:
		return p.dir + "/chk-" + p.name.String() + markerSuffix
	case fullFile:
		return p.dir + "/full-" + p.name.String() + "-" + p.task + dataSuffix
	}
	return p.dir
}

// checkpointFiles are the kinds of files named chk-<name><suffix>.
var checkpointFiles = [...]struct {
	suffix string
	kind   fileKind
}{{dataSuffix, packFile}, {rootSuffix, rootFile}, {markerSuffix, markerFile}}

// parseFilePath recognises our files; anything else is foreignFile and left alone.
func parseFilePath(path string) filePath {
	at := strings.LastIndexByte(path, '/')
	if at < 0 {
		return filePath{}
	}
	p, base := filePath{dir: path[:at]}, path[at+1:]
	application, instance, ok := strings.Cut(p.dir, "/")
	if !ok || !ValidName(application) || !ValidName(instance) || !validSegment(base) || isTemp(base) {
		return filePath{}
	}
	nameText := ""
	if rest, ok := strings.CutPrefix(base, "chk-"); ok {
		for _, k := range checkpointFiles {
			if s, ok := strings.CutSuffix(rest, k.suffix); ok {
				p.kind, nameText = k.kind, s
			}
		}
	} else if rest, ok := strings.CutPrefix(base, "full-"); ok {
		rest, ok = strings.CutSuffix(rest, dataSuffix)
		parts := strings.SplitN(rest, "-", 3)
		if ok && len(parts) == 3 && validSegment(parts[2]) {
			p.kind, nameText, p.task = fullFile, parts[0]+"-"+parts[1], parts[2]
		}
	}
	name, err := ParseCheckpointName(nameText)
	if p.kind == foreignFile || err != nil {
		return filePath{}
	}
	p.name = name
	if p.String() != path {
		return filePath{}
	}
	return p
}
