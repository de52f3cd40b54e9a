//go:build unix

package kafkatest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// node is one JVM, which runs or does not.
type node struct {
	id      int
	dir     string
	addr    string
	cluster string
	heap    string
	java    jre
	archive string // when set, the JVM writes the classes that it loaded to this file at its end

	mu   sync.Mutex
	proc *os.Process
	done chan struct{} // closed when proc has ended
}

func (n *node) propertiesPath() string {
	return filepath.Join(n.dir, fmt.Sprintf("server-%d.properties", n.id))
}
func (n *node) dataPath() string { return filepath.Join(n.dir, fmt.Sprintf("data-%d", n.id)) }
func (n *node) logPath() string  { return filepath.Join(n.dir, fmt.Sprintf("%d.log", n.id)) }
func (n *node) pidPath() string  { return filepath.Join(n.dir, fmt.Sprintf("%d.pid", n.id)) }

// format prepares the storage, as KRaft wants it before the first start.
func (n *node) format(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(n.dataPath(), "meta.properties")); err == nil {
		return nil
	}
	args := append(n.jvm("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog.level=error"),
		"kafka.tools.StorageTool", "format", "-t", n.cluster, "-c", n.propertiesPath())
	out, err := exec.CommandContext(ctx, n.java.bin, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format the storage of Kafka node %d: %w\n%s%s", n.id, err, out, n.java.hint(string(out)))
	}
	return nil
}

// jvm gives the JVM's options up to the class path. The shared class archive halves the time of a start.
func (n *node) jvm(opts ...string) []string {
	args := append([]string{"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + filepath.Join(n.java.jars, logConfig)}, opts...)
	switch archive := filepath.Join(n.java.jars, classArchive); {
	case n.archive != "":
		args = append(args, "-XX:ArchiveClassesAtExit="+n.archive)
	default:
		args = append(args, "-Xshare:auto", "-XX:SharedArchiveFile="+archive, "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
	}
	return append(args, "-cp", filepath.Join(n.java.jars, "*"))
}

// launch starts the JVM. A goroutine on a thread of its own starts it and waits for it: the kernel's death signal is
// bound to the thread that made the child.
func (n *node) launch() error {
	log, err := os.OpenFile(n.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	args := append(n.jvm("-Xms"+n.heap, "-Xmx"+n.heap, "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"), "kafka.Kafka", n.propertiesPath())
	cmd := exec.Command(n.java.bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in the log
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", n.java.bin, err)
	}
	n.mu.Lock()
	n.proc, n.done = cmd.Process, done
	n.mu.Unlock()
	return os.WriteFile(n.pidPath(), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644)
}

// await returns when the node answers, or with the end of its log when it dies or ctx ends.
func (n *node) await(ctx context.Context) error {
	for {
		if answers(ctx, n.addr) {
			return nil
		}
		if !n.alive() {
			end := tail(n.logPath(), 30)
			return fmt.Errorf("node %d of Kafka died while it started; the end of %s:\n%s%s", n.id, n.logPath(), end, n.java.hint(end))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %d of Kafka at %s does not answer: %w; the end of %s:\n%s", n.id, n.addr, ctx.Err(), n.logPath(), tail(n.logPath(), 30))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (n *node) process() (*os.Process, chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc, n.done
}

func (n *node) alive() bool {
	proc, done := n.process()
	if proc == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

func (n *node) pid() int {
	proc, _ := n.process()
	if proc == nil {
		return 0
	}
	return proc.Pid
}

// term asks the JVM to end.
func (n *node) term() {
	if proc, _ := n.process(); proc != nil {
		_ = proc.Signal(syscall.SIGTERM) // an error means that it has ended already
	}
}

// stop asks the JVM to end, and kills it when it has not after bound.
func (n *node) stop(bound time.Duration) error {
	proc, done := n.process()
	if proc == nil {
		return nil
	}
	n.term()
	select {
	case <-done:
		_ = os.Remove(n.pidPath())
		return nil
	case <-time.After(bound):
		n.kill()
		return fmt.Errorf("node %d of Kafka did not stop within %v and was killed", n.id, bound)
	}
}

func (n *node) kill() {
	proc, done := n.process()
	if proc == nil {
		return
	}
	_ = proc.Kill() // an error means that it has ended already
	<-done
	_ = os.Remove(n.pidPath())
}

// tail gives the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
