package pipeline

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/topology"
)

func TestWhereSourcesBeginAndEnd(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]topology.Start{
		"committed":                              topology.Committed(),
		"earliest":                               topology.Earliest(),
		"latest":                                 topology.Latest(),
		"{timestamp: 2026-01-31T13:00:00+01:00}": topology.StartTimestamp(at),
		"{timestamp: '1769860800000'}":           topology.StartTimestamp(at),
		"{ago: 36h}":                             topology.StartAgo(36 * time.Hour),
		"{offsets: {0: 120, 3: 0}}":              topology.StartOffsets(map[int32]int64{0: 120, 3: 0}),
		"{offsets: {7: 9007199254740993}, others: latest}": topology.StartOffsets(map[int32]int64{7: 9007199254740993}).Otherwise(topology.Latest()),
	} {
		plan := mustBuild(t, "sources: {in: {topic: in, key: string, value: json, start: "+text+"}}\nsinks: {out: {from: in, topic: out, key: string, value: json}}\n")
		require.True(t, want.Equal(plan.Sources[0].Start), "%s: %s", text, plan.Sources[0].Start)
	}
	for text, want := range map[string]topology.Missing{"fail": topology.MissingFail, "earliest": topology.MissingEarliest, "latest": topology.MissingLatest} {
		plan := mustBuild(t, "sources: {in: {topic: in, key: string, value: json, on-missing: "+text+"}}\nsinks: {out: {from: in, topic: out, key: string, value: json}}\n")
		require.Equal(t, want, plan.Sources[0].OnMissing)
	}
	for text, want := range map[string]topology.End{
		"none":                              topology.Unbounded(),
		"latest":                            topology.EndLatest(),
		"{timestamp: 2026-01-31T12:00:00Z}": topology.EndTimestamp(at),
		"{offsets: {0: 120, 1: 0}}":         topology.EndOffsets(map[int32]int64{0: 120, 1: 0}),
	} {
		plan := mustBuild(t, "sources: {in: {topic: in, key: string, value: json, end: "+text+"}}\nsinks: {out: {from: in, topic: out, key: string, value: json}}\n")
		require.True(t, want.Equal(plan.Sources[0].End), "%s: %s", text, plan.Sources[0].End)
		require.Equal(t, text != "none", plan.Bounded())
	}
}

func TestAPartitionHasOneName(t *testing.T) {
	for _, names := range []string{"1: 100, 01: 200", "+1: 100", "-1: 100", "1.0: 100", "-0: 100"} {
		for _, key := range []string{"start", "end"} {
			_, ps := buildText("sources: {in: {topic: in, key: string, value: json, " + key + ": {offsets: {" + names + "}}}}\nsinks: {out: {from: in, topic: out, key: string, value: json}}\n")
			require.ErrorContains(t, ps.Err(), "not a partition", names)
		}
	}
}

// TestThePartsInTheDocumentationAreValid: whole files are tested where settings are known, in package config.
func TestThePartsInTheDocumentationAreValid(t *testing.T) {
	page, err := os.ReadFile("../docs/service-file.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n((?:sources|steps):.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 3)
	for _, b := range blocks {
		text := b[1]
		if strings.HasPrefix(text, "steps:") {
			text += "sources: {orders: {topic: orders, key: string, value: json}}\n" +
				"sinks: {a: {from: totals, topic: a, key: string, value: json}, b: {from: by-city, topic: b, key: json, value: json}}\n"
		}
		if !strings.Contains(text, "sinks:") {
			text += "sinks: {a: {from: partners, topic: a, key: string, value: json}, b: {from: clients, topic: b, key: string, value: json}}\n"
		}
		mustBuild(t, text)
	}
}
