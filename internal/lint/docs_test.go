package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	code     = regexp.MustCompile("`([^`]*)`")
	testName = regexp.MustCompile(`^Test[A-Za-z0-9_]*(…|(/.*)?)$`)
)

// named is a test that a line of a page speaks of.
type named struct {
	line      int
	pkg, test string // test ends in … when all tests are meant whose names begin so
}

// namedTests finds the tests in a page. A line names the package in front of its tests, both in backquotes:
//
//	`engine`: `TestOne`, `TestTwo…`; `snapshot`: `TestThree`
func namedTests(page string, isPackage func(string) bool) (out []named, problems []string) {
	for i, line := range strings.Split(page, "\n") {
		pkg := ""
		for _, m := range code.FindAllStringSubmatch(line, -1) {
			switch {
			case isPackage(m[1]):
				pkg = m[1]
			case testName.MatchString(m[1]):
				if pkg == "" {
					problems = append(problems, fmt.Sprintf("line %d: %s stands behind no package", i+1, m[1]))
					continue
				}
				name, _, _ := strings.Cut(m[1], "/")
				out = append(out, named{i + 1, pkg, name})
			}
		}
	}
	return out, problems
}

// declaredTests gives the test functions of each folder.
func declaredTests(t *testing.T) map[string][]string {
	tests := map[string][]string{}
	sources(t, func(file string, _ *token.FileSet, f *ast.File) {
		dir := path.Dir(file)
		tests[dir] = append(tests[dir], "") // it is a package
		if !strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				tests[dir] = append(tests[dir], fn.Name.Name)
			}
		}
	})
	return tests
}

func missing(page string, tests map[string][]string) []string {
	all, problems := namedTests(page, func(p string) bool { return len(tests[p]) > 0 })
	for _, n := range all {
		prefix, open := strings.CutSuffix(n.test, "…")
		if !slices.ContainsFunc(tests[n.pkg], func(have string) bool { return have == n.test || open && strings.HasPrefix(have, prefix) }) {
			problems = append(problems, fmt.Sprintf("line %d: there is no %s in %s", n.line, n.test, n.pkg))
		}
	}
	return problems
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	require.NoError(t, err)
	return string(text)
}

// Every test that the documentation names exists in the package that it names.
func TestTheTestsInTheDocumentationExist(t *testing.T) {
	tests := declaredTests(t)
	for _, name := range []string{"guarantees.md", "testing.md"} {
		for _, p := range missing(page(t, name), tests) {
			t.Errorf("docs/%s, %s", name, p)
		}
	}
	require.Equal(t, []string{
		"line 1: TestNoPackage stands behind no package", "line 2: there is no TestThatIsNot in internal/lint", "line 2: there is no TestNothingThatBeginsSo… in internal/lint",
	}, missing("`TestNoPackage`\n`internal/lint`: `TestThatIsNot`, `TestSizes`, `TestThe…`, `TestSizes/one`, `TestNothingThatBeginsSo…`, `go test`", tests))
}

// Every exit code that the program can give an error has its row in the documentation, and no other one has.
func TestEveryExitCodeIsDocumented(t *testing.T) {
	have := map[string]string{}
	sources(t, func(file string, _ *token.FileSet, f *ast.File) {
		if file != "internal/fault/fault.go" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
				have[v.Values[0].(*ast.BasicLit).Value] = v.Names[0].Name
			}
			return true
		})
	})
	require.Greater(t, len(have), 15)
	documented := rowsOf(page(t, "exit-codes.md"), `^[0-9]+$`)
	for code, name := range have {
		if _, ok := documented[code]; !ok {
			t.Errorf("docs/exit-codes.md: %s, %s, has no row", code, name)
		}
	}
	for code := range documented {
		if _, ok := have[code]; !ok && code != "130" { // of what a signal has ended
			t.Errorf("docs/exit-codes.md: no error has %s", code)
		}
	}
}

// rowsOf gives what a pattern finds in the first cells of the tables of a page, and whether the line names a test.
func rowsOf(page, first string) map[string]bool {
	rows, keys := map[string]bool{}, regexp.MustCompile(first)
	for _, line := range strings.Split(page, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, key := range keys.FindAllString(strings.TrimSpace(cells[1]), -1) {
			rows[key] = rows[key] || strings.Contains(line, "`Test")
		}
	}
	return rows
}

// Every line of the model, and every setting, has a test in the documentation.
func TestEveryPromiseAndSettingNamesItsTest(t *testing.T) {
	guarantees := page(t, "guarantees.md")
	model := rowsOf(guarantees, `^[AB][0-9]+$`)
	for letter, last := range map[string]int{"A": 14, "B": 22} {
		for n := 1; n <= last; n++ {
			if line := fmt.Sprintf("%s%d", letter, n); !model[line] {
				t.Errorf("docs/guarantees.md: %s has no line with a test", line)
			}
		}
	}
	const setting = "`[a-z][a-z0-9.-]+`"
	tested := rowsOf(guarantees, setting)
	obeyed, _, _ := strings.Cut(page(t, "settings.md"), "## Known, not available yet") // that part may be gone
	settings := rowsOf(obeyed, "^"+setting+"$")
	require.Greater(t, len(settings), 40)
	for s := range settings {
		if !tested[s] {
			t.Errorf("docs/guarantees.md: the setting %s has no line with a test", s)
		}
	}
}
