//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	completeMark = ".complete" // written last: the folder is whole
	logConfig    = "log4j2.properties"
	classArchive = "broker.jsa"
	mavenTimeout = 15 * time.Minute
)

// jre is what a node needs to run: a java and a folder of jars.
type jre struct{ bin, jars string }

// hint explains the one failure that the JVM words badly.
func (r jre) hint(log string) string {
	if strings.Contains(log, "UnsupportedClassVersionError") {
		return fmt.Sprintf("\n%s is too old for this Kafka: Java 17 or newer is needed (JAVA_HOME names another one)", r.bin)
	}
	return ""
}

// findRuntime finds java and the jars of a version, and has Maven fetch them if they are not there.
func findRuntime(ctx context.Context, version string, log func(string, ...any)) (jre, error) {
	java, err := findJava()
	if err != nil {
		return jre{}, err
	}
	dir, err := jarFolder(version)
	if err != nil {
		return jre{}, err
	}
	r := jre{bin: java, jars: dir}
	if complete(dir) {
		return r, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return jre{}, err
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return jre{}, err
	}
	defer unlock()
	if complete(dir) { // another process was faster
		return r, nil
	}
	log("fetching Kafka %s with Maven into %s", version, dir)
	if err := fetch(ctx, dir, version); err != nil {
		return jre{}, err
	}
	if err := archiveClasses(ctx, r, dir); err != nil {
		log("no class archive made, starts are slower: %v", err)
	}
	return r, os.WriteFile(filepath.Join(dir, completeMark), nil, 0o644)
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if bin := filepath.Join(home, "bin", "java"); isFile(bin) {
			return bin, nil
		}
	}
	bin, err := exec.LookPath("java")
	if err != nil {
		return "", errors.New("java is not found: install a Java runtime 17 or newer, set JAVA_HOME, or name a running cluster in KAFKA_BROKERS")
	}
	return bin, nil
}

func jarFolder(version string) (string, error) {
	if dir := os.Getenv("KAFKA_JARS"); dir != "" {
		return filepath.Abs(dir)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("where to keep the jars: %w (KAFKA_JARS names a folder)", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "kafka-broker", version), nil
}

func complete(dir string) bool { return isFile(filepath.Join(dir, completeMark)) }

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// lock takes an advisory lock on a file, so that of several test processes only one fetches.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>%s</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version></dependency>
  </dependencies>
</project>
`

const log4j = `status = error
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = [%d{HH:mm:ss,SSS}] %p %m (%c{1})%n
rootLogger.level = ${sys:log.level:-info}
rootLogger.appenderRef.c.ref = c
`

// fetch has Maven copy the broker and what it depends on into a new folder, which then takes dir's place.
func fetch(ctx context.Context, dir, version string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("mvn is not found and the jars of Kafka %s are not in %s: install Maven, let KAFKA_JARS name a folder with the jars, or name a running cluster in KAFKA_BROKERS", version, dir)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	project, lib := filepath.Join(tmp, "pom.xml"), filepath.Join(tmp, "lib")
	if err := os.WriteFile(project, fmt.Appendf(nil, pom, version), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mavenTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, mvn, "-B", "-q", "-f", project, "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+lib).CombinedOutput()
	if err != nil {
		failed := dir + ".failed.log"
		_ = os.WriteFile(failed, out, 0o644)
		return fmt.Errorf("mvn could not fetch org.apache.kafka:kafka_2.13:%s: %w\n%s\n(all of it: %s)", version, err, tail(failed, 25), failed)
	}
	if err := os.WriteFile(filepath.Join(lib, logConfig), []byte(log4j), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(lib, dir)
}

// archiveClasses runs one broker in a scratch folder and keeps the classes that it loaded.
func archiveClasses(ctx context.Context, r jre, dir string) error {
	scratch, err := os.MkdirTemp("", "kafkatest-archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	nodes, err := layOut(scratch, Options{Nodes: 1, Heap: defaultHeap}, r)
	if err != nil {
		return err
	}
	n := nodes[0]
	if err := n.format(ctx); err != nil {
		return err
	}
	n.archive = filepath.Join(dir, classArchive)
	defer n.kill()
	if err := n.launch(); err != nil {
		return err
	}
	if err := n.await(ctx); err != nil {
		return err
	}
	return n.stop(stopTimeout)
}
