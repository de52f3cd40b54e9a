package demo

import (
	"fmt"
	"os"
	"regexp"

	"github.com/millweir/millweir/examples"
)

// The names in examples/orders.yaml.
const (
	exampleFile = "orders.yaml"
	application = "order-totals"
	inputTopic  = "orders"
	outputTopic = "order-totals"
)

// checkpointsSuffix makes the application's internal topic.
const checkpointsSuffix = "-checkpoints"

// names are those of one run.
type names struct{ application, input, output string }

// names gives the example's own names, or with a suffix such that nothing on a shared cluster is touched.
func newNames(suffix string) names {
	return names{application + suffix, inputTopic + suffix, outputTopic + suffix}
}

func exampleTopology() ([]byte, error) {
	b, err := examples.FS.ReadFile(exampleFile)
	if err != nil {
		return nil, fmt.Errorf("the built-in example: %w", err)
	}
	return b, nil
}

// rename puts the names of a run into the example, each of which stands there exactly once.
func (n names) rename(file []byte) ([]byte, error) {
	if n == newNames("") {
		return file, nil
	}
	for _, r := range []struct{ key, from, to string }{
		{`application`, application, n.application},
		{`topic`, inputTopic, n.input},
		{`topic`, outputTopic, n.output},
	} {
		pattern := regexp.MustCompile(`(?m)(\b` + r.key + `:\s*["']?)` + r.from + `(["']?\s*(?:[,}#]|$))`)
		if found := len(pattern.FindAll(file, -1)); found != 1 {
			return nil, fmt.Errorf("the topology file has %d times %s: %s, want one", found, r.key, r.from)
		}
		file = pattern.ReplaceAll(file, []byte("${1}"+r.to+"${2}"))
	}
	return file, nil
}

var paidFilter = regexp.MustCompile(`filter:[^\n]*\bstatus\s*==\s*["']paid["']`)

// onlyPaid says that the topology counts paid orders only.
func onlyPaid(file []byte) bool { return paidFilter.Match(file) }

// writeTopology writes the file of a run and gives its path.
func writeTopology(path string, file []byte, n names) error {
	renamed, err := n.rename(file)
	if err != nil {
		return err
	}
	return diskFault(os.WriteFile(path, renamed, 0o644))
}
