package failpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
)

const root = "../.."

// perRecord are the places that every record or every batch passes: a failpoint there would cost something in the end.
// A name is a file, a folder, or a function of a file.
var perRecord = []string{
	"kafkasrc/", "kafkasink/", "topology/", "serde/", "engine/inbox.go", "engine/feeder.go", "engine/task.go:run", "engine/task.go:next",
	"engine/task.go:process", "engine/task.go:Emit", "txn/produce.go", "txn/client.go", "store/table.go", "store/store.go", "store/index.go",
	"snapshot/runwriter.go", "snapshot/run.go", "snapshot/runreader.go",
}

// call is one call of this package in the product.
type call struct {
	where string // file:function
	fn    string // Hit or Err
	point string // the name of the constant
}

// calls finds them in all sources but tests, whatever their build tags.
func calls(t *testing.T) (out []call) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || (d.IsDir() && p != root && strings.HasPrefix(d.Name(), ".")) {
			return errOrSkip(err)
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				c, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if name, ok := ours(c.Fun); ok {
					require.Len(t, c.Args, 1, p)
					point, ok := ours(c.Args[0])
					require.True(t, ok, "%s: %s is called with something else than a constant of the registry", rel, fn.Name)
					out = append(out, call{filepath.ToSlash(rel) + ":" + fn.Name.Name, name, point})
				}
				return true
			})
		}
		return err
	})
	require.NoError(t, err)
	return out
}

func errOrSkip(err error) error {
	if err == nil {
		return filepath.SkipDir
	}
	return err
}

// ours gives the name of what is selected from this package.
func ours(e ast.Expr) (string, bool) {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	id, ok := sel.X.(*ast.Ident)
	return sel.Sel.Name, ok && id.Name == "failpoint"
}

// constants gives the points of points.go by the names of their constants.
func constants(t *testing.T) map[string]failpoint.Point {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	out := map[string]failpoint.Point{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				out[v.Names[0].Name] = failpoint.Point(strings.Trim(lit.Value, `"`))
			}
		}
		return true
	})
	return out
}

func TestEveryPointIsRegisteredAndCalled(t *testing.T) {
	names := constants(t)
	infos := map[failpoint.Point]failpoint.Info{}
	for _, info := range failpoint.Points {
		require.NotContains(t, infos, info.Point, "registered twice")
		require.NotEmpty(t, info.Where, info.Point)
		require.NotContains(t, info.Where, "\n", info.Point)
		require.Regexp(t, regexp.MustCompile(`^[a-z]+(-[a-z]+)*-(before|after)$`), string(info.Point))
		infos[info.Point] = info
	}
	require.Len(t, infos, len(names), "every constant is in the registry")
	called := map[failpoint.Point]bool{}
	for _, c := range calls(t) {
		p, ok := names[c.point]
		require.True(t, ok, "%s calls failpoint.%s(failpoint.%s), which is not in points.go", c.where, c.fn, c.point)
		require.Contains(t, infos, p)
		require.Equal(t, infos[p].Error, c.fn == "Err", "%s: %s and the registry do not agree on whether an error can come up", c.where, p)
		if strings.HasPrefix(c.where, "txn/plain") {
			continue // it stands in the place of the transactions; a process has one of the two
		}
		require.False(t, called[p], "%s: %s is called from a second place: which of them would act?", c.where, p)
		called[p] = true
	}
	for p := range infos {
		require.True(t, called[p], "%s is called from nowhere", p)
		pair := failpoint.Point(strings.TrimSuffix(string(p), "-before") + "-after")
		if strings.HasSuffix(string(p), "-before") {
			require.Contains(t, infos, pair, "%s has no end", p)
		}
	}
}

func TestNoCallIsOnTheWayOfARecord(t *testing.T) {
	found := calls(t)
	require.NotEmpty(t, found)
	for _, c := range found {
		for _, place := range perRecord {
			hot := c.where == place || strings.HasPrefix(c.where, place+":") || (strings.HasSuffix(place, "/") && strings.HasPrefix(c.where, place))
			require.False(t, hot, "%s is called from %s", c.point, c.where)
		}
	}
}
