package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/snapshot"
)

// A cure that leaves out what the operator had set looks into another directory: it would start empty there.
func TestACureNamesWhatWasSet(t *testing.T) {
	f := &runFlags{set: []string{"data-dir=/var/lib/my totals", "application=b", "admin.token=hidden"}}
	refused := &snapshot.RefusedError{Refusals: []snapshot.Refusal{{Reason: snapshot.ReasonOffsetsExpired, Message: "expired"}}}
	text := wayBack(refused, "t.yaml", f).Error()
	with := "t.yaml --set 'data-dir=/var/lib/my totals' --set application=b --set admin.token=…"
	require.Contains(t, text, "`processor checkpoints list "+with+"`")
	require.Contains(t, text, "`processor run "+with+" --recover-from-store`")
	require.NotContains(t, text, "hidden")
	f.embedded, f.embeddedPort = true, 0
	require.Contains(t, wayBack(&snapshot.CorruptError{}, "t.yaml", f).Error(), "`processor run "+with+" --embedded --embedded-port 0 --recover-from-store`")

	f.start.allowDropped = true
	require.Contains(t, wayBack(refused, "t.yaml", f).Error(), "`processor run "+with+" --embedded --embedded-port 0 --allow-dropped-state --recover-from-store`")
	f.start.allowDropped = false
	f.start.from = []string{"sp/savepoint-t-7-1"}
	text = wayBack(&snapshot.CorruptError{}, "t.yaml", f).Error()
	require.Contains(t, text, "`processor savepoint inspect sp/savepoint-t-7-1`")
	require.NotContains(t, text, "--recover-from-store")

	other := &snapshot.RefusedError{Refusals: []snapshot.Refusal{{Reason: snapshot.ReasonOtherLineage, Message: "other"}}}
	text = f.start.wayOn(other, "t.yaml", f.set).Error()
	require.Contains(t, text, "`processor run t.yaml --set 'data-dir=/var/lib/my totals' --set admin.token=… --set application=NAME --from …`")
	require.Contains(t, text, "`processor reset "+with+"`")
	plain := errors.New("something else")
	require.Equal(t, plain, f.start.wayOn(wayBack(plain, "t.yaml", f), "t.yaml", f.set))
}
