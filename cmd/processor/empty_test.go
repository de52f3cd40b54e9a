package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A script whose variable is not set must not cancel all instances in place of one, or without the savepoint.
func TestAFlagWithoutAValueIsNotTakenForOneLeftOut(t *testing.T) {
	for _, line := range []string{
		"cancel f.yaml --savepoint=", "cancel f.yaml --admin=", "savepoint trigger f.yaml --dir=", "savepoint trigger f.yaml --admin=", "checkpoints trigger f.yaml --admin=",
		"checkpoints list f.yaml --dir=", "checkpoints list f.yaml --application=", "checkpoints list f.yaml --brokers=", "savepoint list f.yaml --dir=",
		"verify --input a --output b --where=", "verify --input a --output b --group=", "broker --data-dir=", "run f.yaml --from=", "run f.yaml --set=", "attempts f.yaml --admin=",
		"demo --dir=", "demo --brokers=",
	} {
		args := strings.Fields(line)
		for _, value := range []string{"", " "} {
			last := args[len(args)-1] + value
			code, stdout, stderr := cli(t, append(args[:len(args)-1:len(args)-1], last)...)
			require.Equal(t, 2, code, "%s: %s", last, stderr)
			require.Contains(t, stderr, strings.TrimSpace(strings.TrimSuffix(args[len(args)-1], "="))+" has an empty value", line)
			require.Empty(t, stdout, line)
		}
	}
}
