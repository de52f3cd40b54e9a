package txn

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/element"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios give now into testdata")

// TestScenarios runs the golden scenarios. A file is a list of steps: comment lines, one event, "----", the actions it
// gives and, after "=", the states of all slots. An empty line ends a step.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 12)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScenario(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got, "rewrite with: go test ./txn -run TestScenarios -rewrite")
		})
	}
}

func runScenario(t *testing.T, text string) string {
	t.Helper()
	m := NewMachine(3)
	var out strings.Builder
	skipping := false
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case skipping && line != "":
			continue
		case line == "", strings.HasPrefix(line, "#"):
			skipping = false
			out.WriteString(line + "\n")
		case line == "----":
			skipping = true
		default:
			ev, err := parseEvent(line)
			require.NoError(t, err, line)
			out.WriteString(line + "\n----\n")
			for _, a := range m.Step(ev) {
				out.WriteString(a.String() + "\n")
			}
			out.WriteString("= " + m.String() + "\n")
		}
	}
	require.NoError(t, lines.Err())
	return out.String()
}

var eventNames = map[string]EventKind{"init": EvInit, "produce": EvProduce, "seal": EvSeal, "reopen": EvReopen,
	"commit": EvCommit, "abort": EvAbort, "close": EvClose, "initialised": EvInitialised, "begun": EvBegun,
	"flushed": EvFlushed, "no-fence": EvNoFence, "offsets": EvOffsets, "gave-up": EvGaveUp, "dropped": EvDropped, "ended": EvEnded}

// parseEvent reads a line as "flushed acked=3 failed=1 MESSAGE_TOO_LARGE" or "offsets OK ILLEGAL_GENERATION".
func parseEvent(line string) (Event, error) {
	words := strings.Fields(line)
	kind, ok := eventNames[words[0]]
	if !ok {
		return Event{}, fmt.Errorf("no event %q", words[0])
	}
	ev := Event{Kind: kind}
	for _, w := range words[1:] {
		key, value, assigned := strings.Cut(w, "=")
		if !assigned {
			if err := ev.answer(w); err != nil {
				return ev, err
			}
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return ev, err
		}
		switch key {
		case "slot":
			ev.Slot = int(n)
		case "checkpoint":
			ev.Checkpoint = element.CheckpointID(n)
		case "produced":
			ev.Produced = n
		case "acked":
			ev.Acked = n
		case "failed":
			ev.Failed = n
		case "partitions":
			ev.Partitions = int(n)
		case "pieces":
			ev.Pieces = int(n)
		case "handle":
			ev.HandleBytes = int(n)
		default:
			return ev, fmt.Errorf("no field %q", key)
		}
	}
	return ev, nil
}

func (e *Event) answer(word string) error {
	a := Answer{}
	switch word {
	case "OK":
	case "lost":
		a.Lost = true
	default:
		for c := int16(-1); c < 200 && a.Code == 0; c++ {
			if ke, ok := kerr.ErrorForCode(c).(*kerr.Error); ok && ke.Message == word {
				a.Code = c
			}
		}
		if a.Code == 0 {
			return fmt.Errorf("no error code %q", word)
		}
	}
	if e.Kind == EvOffsets && !a.Lost {
		e.Codes = append(e.Codes, a.Code)
		return nil
	}
	e.Answer = a
	return nil
}
