//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestMissingJavaAndMavenAreSaidClearly(t *testing.T) {
	t.Setenv("KAFKA_BROKERS", "")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	t.Setenv("KAFKA_JARS", filepath.Join(t.TempDir(), "jars"))
	_, err := Run(t.Context(), Options{})
	require.ErrorContains(t, err, "java is not found")
	require.ErrorContains(t, err, "KAFKA_BROKERS")

	java := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, os.Mkdir(java, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(java, "java"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", java)
	_, err = Run(t.Context(), Options{Version: "9.9.9"})
	require.ErrorContains(t, err, "mvn is not found")
	require.ErrorContains(t, err, "9.9.9")
}

func TestFailedMavenShowsItsOutput(t *testing.T) {
	bin := t.TempDir()
	for name, script := range map[string]string{"java": "exit 0", "mvn": "echo no such artifact; exit 1"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("KAFKA_BROKERS", "")
	t.Setenv("JAVA_HOME", "")
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	jars := filepath.Join(t.TempDir(), "jars")
	t.Setenv("KAFKA_JARS", jars)
	_, err := Run(t.Context(), Options{})
	require.ErrorContains(t, err, "no such artifact")
	require.NoDirExists(t, jars)
	left, err := filepath.Glob(jars + ".[0-9]*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestANodeThatDiesShowsItsLog(t *testing.T) {
	bin, jars := t.TempDir(), t.TempDir()
	script := `case "$*" in *StorageTool*) exit 0;; esac; echo java.lang.UnsupportedClassVersionError: x; exit 1`
	require.NoError(t, os.WriteFile(filepath.Join(bin, "java"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(jars, completeMark), nil, 0o644))
	t.Setenv("KAFKA_BROKERS", "")
	t.Setenv("JAVA_HOME", "")
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	t.Setenv("KAFKA_JARS", jars)
	_, err := Run(t.Context(), Options{})
	require.ErrorContains(t, err, "node 1 of Kafka died")
	require.ErrorContains(t, err, "Java 17 or newer")
}

func TestKafkaBrokersIsUsedAsItIs(t *testing.T) {
	t.Setenv("KAFKA_BROKERS", "h1:1,h2:2")
	b := Start(t, Options{Nodes: 3})
	require.Equal(t, "h1:1,h2:2", b.Addr)
	require.True(t, b.External)
	require.ErrorIs(t, b.Kill(), ErrExternal)
	require.ErrorIs(t, b.Stop(1), ErrExternal)
	require.ErrorIs(t, b.Restart(t.Context()), ErrExternal)
}

func TestTooManyNodes(t *testing.T) {
	t.Setenv("KAFKA_BROKERS", "")
	_, err := Run(t.Context(), Options{Nodes: 10})
	require.ErrorContains(t, err, "between 1 and 9")
}

func TestLayOutIsKeptAndPropertiesWin(t *testing.T) {
	dir := t.TempDir()
	o := Options{Nodes: 3, Properties: map[string]string{"num.partitions": "7"}}
	first, err := layOut(dir, o, jre{})
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, n := range first {
		require.False(t, seen[n.addr])
		seen[n.addr] = true
		b, err := os.ReadFile(n.propertiesPath())
		require.NoError(t, err)
		require.Contains(t, string(b), "num.partitions=7\n")
		require.Equal(t, 1, strings.Count("\n"+string(b), "\nnum.partitions="))
		require.Contains(t, string(b), fmt.Sprintf("node.id=%d\n", n.id))
		require.Contains(t, string(b), "min.insync.replicas=2\n")
	}
	again, err := layOut(dir, o, jre{})
	require.NoError(t, err)
	for i := range first {
		require.Equal(t, first[i].addr, again[i].addr)
		require.Equal(t, first[i].cluster, again[i].cluster)
	}
	fixed, err := choosePorts(9092, 2)
	require.NoError(t, err)
	require.Equal(t, []ports{{9092, 9192}, {9093, 9193}}, fixed)
}

func TestAnOpenPortAloneIsNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
			_ = c.Close()
		}
	}()
	require.False(t, answers(t.Context(), l.Addr().String()))
	require.NoError(t, l.Close())
	require.False(t, answers(t.Context(), l.Addr().String()))
}

// real skips unless a real broker may be started: it takes seconds and a JVM.
func real(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_KAFKA") == "" || os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("REAL_KAFKA=1 runs it")
	}
}

func TestRealBrokerKeepsItsDataThroughAKill(t *testing.T) {
	real(t)
	b := Start(t, Options{})
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	require.NoError(t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, 1, -1, nil, "t")
	require.NoError(t, err)
	require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr())
	pid := b.Pids()[1]
	require.NoError(t, b.Kill())
	require.Empty(t, b.Pids())
	require.NoError(t, b.Restart(ctx))
	require.NotEqual(t, pid, b.Pids()[1])
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, "t")
	require.NoError(t, err)
	o, ok := ends.Lookup("t", 0)
	require.True(t, ok)
	require.EqualValues(t, 1, o.Offset)
	require.NoError(t, b.Stop())
	require.Empty(t, b.Pids())
	require.Error(t, b.Kill(2))
	require.False(t, errors.Is(b.Kill(2), ErrExternal))
}
