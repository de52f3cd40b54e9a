package config

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExamplesAreValidAndPrintReadsBack(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		s, ps := Load(file, nil, nil)
		require.NoError(t, ps.Err(), file)
		require.NotNil(t, s.Plan)

		// Beside the example, so that its schema files are found.
		text := s.Print()
		again := &Problems{}
		s2 := Parse(file, []byte(text), nil, nil, again)
		require.NoError(t, again.Err(), text)
		require.Equal(t, []any{s.Plan.Sources, s.Plan.Steps, s.Plan.Sinks, s.Plan.States, s.Plan.Stages}, []any{s2.Plan.Sources, s2.Plan.Steps, s2.Plan.Sinks, s2.Plan.States, s2.Plan.Stages})
		require.Equal(t, settingsOf(s), settingsOf(s2))
	}
}

func settingsOf(s *Service) Service {
	c := *s
	c.values, c.topology, c.Plan = nil, nil, nil
	return c
}

func TestTheFilesInTheDocumentationAreValid(t *testing.T) {
	for name, files := range map[string]int{"../README.md": 1, "../docs/service-file.md": 2} {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		blocks := regexp.MustCompile("(?s)```yaml\n(application:.*?)```").FindAllSubmatch(page, -1)
		require.Len(t, blocks, files, name)
		for _, b := range blocks {
			ps := &Problems{}
			Parse(filepath.Base(name), b[1], nil, nil, ps)
			require.NoError(t, ps.Err(), string(b[1]))
		}
	}
}
