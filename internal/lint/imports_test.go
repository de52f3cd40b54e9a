package lint

import (
	"encoding/json"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/millweir/millweir"

// allowed is the import direction of the project: what each package may import of it, and which of the outside
// packages that are bound to one layer. A package that is not here fails the test: a new one is a decision.
var allowed = map[string][]string{
	"element":                   {},
	"internal/fault":            {},
	"internal/failpoint":        {},
	"internal/vfs":              {},
	"internal/vfs/vfstest":      {},
	"internal/lint":             {},
	"internal/yamlx":            {"internal/fault"},
	"internal/rules":            {"internal/yamlx"},
	"serde":                     {"serde/internal/num", "internal/fault"},
	"serde/internal/num":        {},
	"serde/json":                {"serde", "serde/internal/num", "internal/fault"},
	"serde/avro":                {"serde", "serde/internal/num", "internal/fault"},
	"topology":                  {"element", "serde", "internal/fault"},
	"topology/internal/memenv":  {"topology", "element"},
	"checkpoint":                {"element", "internal/fault"},
	"checkpoint/checkpointtest": {"checkpoint", "element"},
	"store":                     {"element", "internal/failpoint", "internal/fault", "internal/vfs", badger},
	"snapshot":                  {"element", "internal/failpoint", "internal/fault", "internal/vfs"},
	"internal/kafka":            {"element", "internal/fault", franz},
	"internal/hanging":          {"element", franz},
	"txn":                       {"element", "checkpoint", "internal/kafka", "internal/failpoint", "internal/fault", franz},
	"kafkasrc":                  {"element", "internal/kafka", "internal/fault", franz},
	"kafkasink":                 {"element", "txn", "internal/kafka", "internal/fault", franz},
	"engine/gate":               {"element"},
	"engine/restart":            {"element", "topology", "internal/rules", "internal/fault"},
	"engine":                    {"engine/gate", "engine/restart", "element", "topology", "checkpoint", "snapshot", "internal/failpoint", "internal/fault"},
	"admin":                     {"checkpoint", "internal/fault", "internal/vfs"},
	"processor":                 {"admin", "engine/restart", "internal/rules", "element", "topology", "checkpoint", "snapshot", "store", "txn", "kafkasrc", "kafkasink", "engine", "internal/kafka", "internal/hanging", "internal/failpoint", "internal/fault", "internal/vfs", franz},
	"pipeline":                  {"element", "topology", "serde", "serde/json", "serde/avro", "internal/yamlx", "internal/fault"},
	"config":                    {"engine/restart", "internal/rules", "processor", "pipeline", "topology", "internal/yamlx", "internal/fault"},
	"internal/testbed":          {"integration/kafkatest", franz},
	"internal/embedded":         {"internal/fault", "internal/vfs", franz},
	"internal/verify":           {"internal/fault", "internal/kafka", franz},
	"internal/demo":             {"internal/fault", "internal/vfs", "internal/kafka", "internal/embedded", "internal/verify", "examples", "element", franz},
	"internal/sabotage":         {"element", "checkpoint", "snapshot", "engine"},
	"internal/sim":              {"element", "checkpoint", "txn", "snapshot", "engine/gate", "internal/fault", franz},
	"internal/synctests":        {"*"},
	"examples":                  {},
	"cmd/processor":             {"*"},
	"integration":               {"*"},
	"integration/kafkatest":     {"internal/kafka", "internal/hanging", franz},
	"integration/kafkatest/cmd": {"integration/kafkatest"},
	"bench":                     {"*"},
}

// Groups of outside packages that belong to one layer.
const (
	franz  = "github.com/twmb/franz-go"
	badger = "github.com/dgraph-io/badger"
)

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for dec.More() {
		var p pkg
		require.NoError(t, dec.Decode(&p))
		pkgs = append(pkgs, p)
	}
	require.NotEmpty(t, pkgs)
	return pkgs
}

func TestImportDirection(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if strings.HasPrefix(name, "examples/") {
			continue // programs that use the product as a user would
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("package %q is not in the import table of %s", name, "internal/lint/imports_test.go")
			continue
		}
		if slices.Contains(may, "*") {
			continue
		}
		for _, imp := range p.Imports {
			if own, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(may, own) {
				t.Errorf("%s imports %s: not allowed by the table", name, own)
			}
			for _, outside := range []string{franz, badger} {
				if strings.HasPrefix(imp, outside) && !slices.Contains(may, outside) {
					t.Errorf("%s imports %s: only its own layer may", name, imp)
				}
			}
		}
	}
}

// Every package says in its doc.go what it is for.
func TestEveryPackageHasADocFile(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "cmd/") || strings.HasSuffix(name, "/cmd") {
			continue
		}
		require.FileExists(t, path.Join("../..", name, "doc.go"), "package %s", name)
	}
}
