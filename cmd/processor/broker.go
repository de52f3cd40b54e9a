package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/fault"
)

func init() { register(newBroker) }

func newBroker() *cobra.Command {
	var (
		cfg    embedded.Config
		topics []string
	)
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run a small Kafka broker on this machine, for trying things out",
		Long: `Run a small Kafka broker on 127.0.0.1: one node, for trying things out and for tests, not for production.
Any Kafka client can use it. It runs until SIGINT or SIGTERM.

With --data-dir topics, records, offsets and the cluster id are there again after a restart.`,
		Example: "  processor broker --data-dir ./broker --topic orders:4 --topic order-totals:4",
		Args:    exactArgs(),
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Port, "port", 9092, "`PORT` on 127.0.0.1; 0 takes a free one")
	f.StringVar(&cfg.DataDir, "data-dir", "", "`DIRECTORY` for the data; without it all is gone at the end")
	f.BoolVar(&cfg.SyncWrites, "sync", false, "fsync each write before it is acknowledged: survives a loss of power, slow")
	f.StringArrayVar(&topics, "topic", nil, fmt.Sprintf("`NAME:PARTITIONS` of a topic to create unless it exists (default %d partitions); may be repeated", embedded.DefaultPartitions))
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, s := range topics {
			t, err := embedded.ParseTopic(s)
			if err != nil {
				return fault.Stopf(fault.Usage, "--topic: %w", err)
			}
			cfg.Topics = append(cfg.Topics, t)
		}
		cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
		b, err := embedded.Start(cmd.Context(), cfg)
		if err != nil {
			return portHint(err, cfg.Port, "--port")
		}
		if err := announce(cmd, cfg, b, output.json); err != nil {
			return errors.Join(err, b.Close())
		}
		<-cmd.Context().Done()
		return b.Close()
	}
	return cmd
}

// portHint says what to do about a port that is taken; other errors stay as they are.
func portHint(err error, port int, flag string) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("port %d of 127.0.0.1 is used by another process: choose another one with %s (0 takes a free one), or stop that process", port, flag)
}

// announce tells where the broker is and what to try.
func announce(cmd *cobra.Command, cfg embedded.Config, b *embedded.Broker, asJSON bool) error {
	out := cmd.OutOrStdout()
	names := []string{}
	for _, t := range cfg.Topics {
		names = append(names, fmt.Sprintf("%s:%d", t.Name, t.Partitions))
	}
	if asJSON {
		return writeJSON(out, map[string]any{"address": b.Addr(), "cluster_id": b.ClusterID(), "data_dir": cfg.DataDir, "topics": names})
	}
	data := "in memory: gone at the end (--data-dir keeps it)"
	if cfg.DataDir != "" {
		data = "in " + cfg.DataDir
	}
	fmt.Fprintf(out, "broker on %s, cluster %s, data %s\n", b.Addr(), b.ClusterID(), data)
	topic := "orders"
	if len(names) > 0 {
		topic = cfg.Topics[0].Name
		fmt.Fprintf(out, "topics %s\n", strings.Join(names, " "))
	}
	fmt.Fprintf(out, "\ntry:   kcat -b %s -L\n", b.Addr())
	fmt.Fprintf(out, "       echo 'anna:{\"amount\": 1250}' | kcat -b %s -P -t %s -K:\n", b.Addr(), topic)
	fmt.Fprintf(out, "       kcat -b %s -C -t %s -o beginning -X isolation.level=read_committed\n\nCtrl-C stops it.\n", b.Addr(), topic)
	return nil
}
