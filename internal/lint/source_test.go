package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Limits of size. A file is one concept, a function fits on a screen and a half.
const (
	maxFileLines = 500
	maxFuncLines = 90
)

// pure packages have no clock, no goroutine and no I/O; files of mixed packages are named one by one.
var pure = []string{"element/", "checkpoint/", "engine/gate/", "engine/restart/", "topology/", "txn/machine", "snapshot/resolve", "snapshot/handle"}

func isPure(file string) bool {
	for _, p := range pure {
		if strings.HasPrefix(file, p) {
			return true
		}
	}
	return false
}

func sources(t *testing.T, fn func(file string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	root := "../.."
	seen := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		seen++
		fn(filepath.ToSlash(rel), fset, f)
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, seen, 20, "the walk found the sources")
}

func TestSizes(t *testing.T) {
	sources(t, func(file string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		if n := fset.Position(f.FileEnd).Line; n > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: more than one concept?", file, n, maxFileLines)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFuncLines {
				t.Errorf("%s: func %s has %d lines, at most %d", file, fn.Name.Name, n, maxFuncLines)
			}
		}
	})
}

// The pure parts take time as an argument, start nothing and touch nothing outside.
func TestPurePartsHaveNoClockNoGoroutineNoIO(t *testing.T) {
	forbiddenImports := []string{"os", "net", "net/http", "math/rand", "math/rand/v2", "syscall", "os/exec"}
	sources(t, func(file string, fset *token.FileSet, f *ast.File) {
		if !isPure(file) || strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, imp := range f.Imports {
			for _, bad := range forbiddenImports {
				if imp.Path.Value == `"`+bad+`"` {
					t.Errorf("%s imports %s: the package is pure", file, bad)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: go statement in a pure package", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				id, ok := n.X.(*ast.Ident)
				if ok && id.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since" || n.Sel.Name == "Sleep" || n.Sel.Name == "After" || n.Sel.Name == "NewTimer") {
					t.Errorf("%s: time.%s in a pure package", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	})
}

// Nothing in the product prints to standard output behind the back of the commands.
func TestNoStrayPrints(t *testing.T) {
	sources(t, func(file string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "cmd/") || strings.HasPrefix(file, "bench/") || strings.HasPrefix(file, "integration/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := sel.X.(*ast.Ident)
			if ok && id.Name == "fmt" && (sel.Sel.Name == "Println" || sel.Sel.Name == "Printf" || sel.Sel.Name == "Print") {
				t.Errorf("%s: fmt.%s", fset.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	})
}

// os.MkdirAll leaves a name that a power cut takes away, with all that is below it.
func TestDirectoriesAreMadeDurably(t *testing.T) {
	sources(t, func(file string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/vfs/") || strings.HasPrefix(file, "integration/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "MkdirAll" || sel.Sel.Name == "Mkdir") {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == "os" {
					t.Errorf("%s: os.%s: vfs.MkdirAll makes the name durable", fset.Position(n.Pos()), sel.Sel.Name)
				}
			}
			return true
		})
	})
}
