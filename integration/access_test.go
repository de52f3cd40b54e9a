//go:build unix

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/verify"
)

// An access right is taken away from a service that runs. It ends with the code for that and a line that names what it may
// not do; with the right back the next start goes on where the commits are.
func TestRealAccessIsTakenAway(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{Properties: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
		"group.min.session.timeout.ms":   "1000",
	}})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	const who = "User:ANONYMOUS"
	for name, c := range map[string]struct {
		what func(s *site, a *kadm.ACLBuilder)
		op   kadm.ACLOperation
		says func(s *site) string
	}{
		"output": {func(s *site, a *kadm.ACLBuilder) { a.Topics(s.out) }, kadm.OpWrite, func(s *site) string { return s.out }},
		"input":  {func(s *site, a *kadm.ACLBuilder) { a.Topics(s.in) }, kadm.OpRead, func(s *site) string { return s.in }},
		"group":  {func(s *site, a *kadm.ACLBuilder) { a.Groups(s.app) }, kadm.OpRead, func(s *site) string { return s.app }},
		"transactional id": {func(s *site, a *kadm.ACLBuilder) {
			a.TransactionalIDs(s.app).ResourcePatternType(kadm.ACLPatternPrefixed)
		}, kadm.OpWrite, func(s *site) string { return s.app }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, []string{b.Addr}, 2).impatient()
			file := s.file(totals)
			p := s.run(file)
			s.orders(0, 400, 100)
			s.caughtUp(p)

			deny := kadm.NewACLs().Deny(who).DenyHosts("*").Operations(c.op).ResourcePatternType(kadm.ACLPatternLiteral)
			c.what(s, deny)
			allow := kadm.NewACLs().Allow(who).AllowHosts("*").Operations(kadm.OpAll).ResourcePatternType(kadm.ACLPatternLiteral)
			c.what(s, allow)
			for _, a := range []*kadm.ACLBuilder{allow, deny} {
				made, err := s.adm.CreateACLs(s.ctx, a)
				require.NoError(t, err)
				for _, m := range made {
					require.NoError(t, m.Err)
				}
			}
			s.orders(400, 400, 100)
			require.Equal(t, 14, p.exit(30*time.Second), "%s", p.stderr.tail(5))
			require.Contains(t, p.stderr.tail(1), c.says(s))

			gone, err := s.adm.DeleteACLs(s.ctx, deny)
			require.NoError(t, err)
			require.NotEmpty(t, gone)
			p = s.run(file)
			s.caughtUp(p)
			s.exact(verify.Config{})
			p.stop()
		})
	}
	t.Run("configuration of the output", func(t *testing.T) {
		t.Parallel()
		limitThatMayNotBeRead(newSite(t, []string{b.Addr}, 2).impatient(), who)
	})
}

// The limit of an output whose configuration may not be read is lowered under the service: batches become smaller until they
// are taken, as if it could be read.
func limitThatMayNotBeRead(s *site, who string) {
	deny := kadm.NewACLs().Deny(who).DenyHosts("*").Operations(kadm.OpDescribeConfigs).ResourcePatternType(kadm.ACLPatternLiteral).Topics(s.out)
	allow := kadm.NewACLs().Allow(who).AllowHosts("*").Operations(kadm.OpAll).ResourcePatternType(kadm.ACLPatternLiteral).Topics(s.out)
	for _, a := range []*kadm.ACLBuilder{allow, deny} {
		_, err := s.adm.CreateACLs(s.ctx, a)
		require.NoError(s.t, err)
	}
	limit := func(most string) {
		set, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &most}}, s.out)
		require.NoError(s.t, err)
		require.NoError(s.t, set[0].Err)
	}
	p := s.run(s.file(totals))
	s.orders(0, 400, 100)
	s.caughtUp(p)
	require.Contains(s.t, p.stderr.String(), "is not known, their brokers have to refuse it")
	limit("20000")
	s.orders(400, 20_000, 100)
	s.caughtUp(p)
	s.exact(verify.Config{})
	require.GreaterOrEqual(s.t, p.restarts(), 1)
	p.stop()
}
