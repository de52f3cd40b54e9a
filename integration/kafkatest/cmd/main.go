//go:build unix

// Command cmd starts a real Kafka, prints its address and runs until it is interrupted:
//
//	go run ./integration/kafkatest/cmd [-nodes 1] [-port 9092] [-dir DIR] [-version 4.4.0] [-set key=value]...
//
// With -dir the data stays and the next start goes on with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/millweir/millweir/integration/kafkatest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kafkatest:", err)
		os.Exit(1)
	}
}

func run() error {
	o := kafkatest.Options{Properties: map[string]string{}, Log: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}}
	flag.IntVar(&o.Nodes, "nodes", 1, "number of brokers")
	flag.IntVar(&o.Port, "port", 0, "port of the first broker (0: a free one)")
	flag.StringVar(&o.Dir, "dir", "", "folder of the cluster; kept (default: a temporary one)")
	flag.StringVar(&o.Version, "version", "", "version of Kafka (default: KAFKA_VERSION or "+kafkatest.DefaultVersion+")")
	flag.StringVar(&o.Heap, "heap", "", "heap of each broker")
	flag.Func("set", "a line of server.properties, key=value; may repeat", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q is not key=value", s)
		}
		o.Properties[k] = v
		return nil
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := kafkatest.Run(ctx, o)
	if err != nil {
		return err
	}
	defer b.Close()
	fmt.Println(b.Addr)
	if b.External {
		return nil
	}
	<-ctx.Done()
	return b.Stop()
}
