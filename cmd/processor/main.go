package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameRequest is the time in which further signals belong to the first one: what stops a group of processes, like
// timeout(1), often sends one to the process and one to the group.
const sameRequest = 250 * time.Millisecond

func main() {
	log.SetFlags(0) // Badger ends the process by log.Fatal on some errors of its files: a line like those of others
	log.SetPrefix("processor: ")
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, requests()...)
	go func() {
		<-signals
		cancel()
		os.Exit(signalled(nextRequest(signals, sameRequest)))
	}()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// requests are the signals that ask for an orderly stop. A terminal that closes sends SIGHUP; under nohup it is ignored, and stays so.
func requests() []os.Signal {
	out := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		out = append(out, syscall.SIGHUP)
	}
	return out
}

// nextRequest waits for the first signal that comes later than after. The channel stays open.
func nextRequest(signals <-chan os.Signal, after time.Duration) os.Signal {
	for began := time.Now(); ; {
		if s := <-signals; time.Since(began) > after {
			return s
		}
	}
}

// signalled is the exit code that shells expect of a process that a signal ended.
func signalled(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}
