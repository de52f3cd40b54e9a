package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassAndCodeSurviveWrapping(t *testing.T) {
	err := fmt.Errorf("task orders-0: %w", Stopf(BadRecord, "offset 7: %w", io.ErrUnexpectedEOF))
	require.Equal(t, Stop, RecoveryOf(err))
	require.Equal(t, BadRecord, CodeOf(err))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "task orders-0: offset 7: unexpected EOF", err.Error())
}

func TestUnclassedErrorRestartsAndFails(t *testing.T) {
	require.Equal(t, Restart, RecoveryOf(errors.New("x")))
	require.Equal(t, Failed, CodeOf(errors.New("x")))
	require.Equal(t, OK, CodeOf(nil))
}

func TestTheOutermostClassCounts(t *testing.T) {
	err := New(Rejoin, Fenced, "lost: %w", Stopf(Corrupt, "damaged"))
	require.Equal(t, Rejoin, RecoveryOf(err))
	require.Equal(t, Fenced, CodeOf(err))
}
