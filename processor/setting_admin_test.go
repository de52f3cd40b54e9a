package processor

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/internal/testbed"
)

// The listener is where it is told to be, and off there is none.
func TestSettingAdminListen(t *testing.T) {
	testbed.Alongside(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free := l.Addr().String()
	require.NoError(t, l.Close())
	for _, listen := range []string{free, rules.Off} {
		s := newSettled(t)
		s.cfg.AdminListen = listen
		s.put(10)
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "processed")
		addr, _, err := admin.ReadAddress(s.cfg.DataDir)
		if listen == rules.Off {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			require.Equal(t, listen, addr)
			code, _ := outside{t, s.cfg.DataDir}.get("/readyz")
			require.Equal(t, 200, code)
		}
		require.NoError(t, stop())
	}
}
