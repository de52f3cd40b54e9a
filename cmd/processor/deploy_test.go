//go:build unix

package main

import (
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/integration/kafkatest"
)

// The files that stand at the top of the repository are checked without Docker: what they name must exist.
const top = "../.."

// composeFile is what is looked at of docker-compose.yml.
type composeFile struct {
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]any            `yaml:"volumes"`
}

type composeService struct {
	Image       string
	Hostname    string
	Build       struct{ Context, Target string }
	Command     []string
	Environment map[string]string
	Ports       []string
	Volumes     []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct {
		Test              []string
		Interval, Timeout string
		StartPeriod       string `yaml:"start_period"`
		Retries           int
	}
	StopGracePeriod string `yaml:"stop_grace_period"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "docker-compose.yml"))
	require.NoError(t, err)
	var f composeFile
	require.NoError(t, yaml.Unmarshal(text, &f))
	return f
}

// mounts gives what a service sees at which path: a named volume, or a file of the repository.
func (s composeService) mounts() map[string]string {
	out := map[string]string{}
	for _, v := range s.Volumes {
		parts := strings.SplitN(v, ":", 3)
		out[parts[1]] = parts[0]
	}
	return out
}

func TestComposeNamesWhatExists(t *testing.T) {
	f := readCompose(t)
	require.ElementsMatch(t, []string{"kafka", "topics", "orders", "processor", "prometheus"}, slices.Collect(maps.Keys(f.Services)))
	pinned := regexp.MustCompile(`^[a-z/-]+:v?[0-9]+\.[0-9]+\.[0-9]+$`)
	used := map[string]bool{}
	for name, s := range f.Services {
		if s.Build.Target == "" {
			require.Regexp(t, pinned, s.Image, name)
		} else {
			require.DirExists(t, filepath.Join(top, s.Build.Context), name)
			require.Contains(t, stages(t), s.Build.Target, name)
		}
		for on, d := range s.DependsOn {
			require.Contains(t, f.Services, on, name)
			require.Contains(t, []string{"service_started", "service_healthy", "service_completed_successfully"}, d.Condition)
			if d.Condition == "service_healthy" {
				require.NotEmpty(t, f.Services[on].Healthcheck.Test, "%s waits for the health of %s", name, on)
			}
		}
		for path, what := range s.mounts() {
			require.True(t, filepath.IsAbs(path), "%s: %s", name, path)
			if strings.HasPrefix(what, ".") {
				require.FileExists(t, filepath.Join(top, what), name)
				continue
			}
			require.Contains(t, f.Volumes, what, name)
			used[what] = true
		}
		for _, p := range s.Ports {
			require.Regexp(t, `^127\.0\.0\.1:(\d+):\d+$`, p, "%s: ports are for this machine only", name)
		}
	}
	require.Len(t, used, len(f.Volumes), "a volume is not used")
	for _, name := range []string{"kafka", "orders", "processor", "prometheus"} { // all but topics, which ends
		h := f.Services[name].Healthcheck
		require.Equal(t, "CMD", h.Test[0], name)
		require.Positive(t, h.Retries, name)
		for _, d := range []string{h.Interval, h.Timeout, h.StartPeriod} {
			_, err := time.ParseDuration(d)
			require.NoError(t, err, name)
		}
	}
	for _, name := range []string{"kafka", "topics"} {
		require.Equal(t, "apache/kafka:"+kafkatest.DefaultVersion, f.Services[name].Image, "the Kafka that the tests run on")
	}
}

func TestComposeRunsTheProcessorAsItsCommandLineAllows(t *testing.T) {
	f := readCompose(t)
	s := f.Services["processor"]
	cmd, args, err := newRoot().Find(s.Command)
	require.NoError(t, err)
	require.Equal(t, "run", cmd.Name())
	require.NoError(t, cmd.ParseFlags(args))
	args = cmd.Flags().Args()
	require.NoError(t, cmd.ValidateArgs(args))

	file := s.mounts()[args[0]]
	require.NotEmpty(t, file, "%s is no mount", args[0])
	env := imageEnvironment(t)
	for k, v := range s.Environment {
		env = append(env, k+"="+v)
	}
	svc, problems := config.Load(filepath.Join(top, file), nil, env)
	require.NoError(t, problems.Err())
	cfg := svc.Processor()
	require.Equal(t, []string{"kafka:19092"}, cfg.Brokers)
	require.Contains(t, f.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"], "PLAINTEXT://"+cfg.Brokers[0])
	require.Equal(t, "kafka", f.Services["kafka"].Hostname)
	require.Equal(t, "processor-data", s.mounts()[cfg.DataDir], "what must survive lies on the volume")
	require.True(t, strings.HasPrefix(cfg.CheckpointsDir, cfg.DataDir+"/"))
	grace, err := time.ParseDuration(s.StopGracePeriod)
	require.NoError(t, err)
	require.Greater(t, grace, cfg.ShutdownTimeout)
	_, err = newLogger(os.Stderr, "info", cmd.Flag("log-format").Value.String())
	require.NoError(t, err)

	script := strings.Join(f.Services["topics"].Command, "\n")
	made := strings.Fields(regexp.MustCompile(`for topic in ([^;]*);`).FindStringSubmatch(script)[1])
	for _, topic := range topicsOf(svc.Plan) {
		require.Contains(t, made, topic.Name)
	}
	require.Contains(t, f.Services["orders"].Command, svc.Plan.Sources[0].Topic)
	require.Equal(t, s.Environment["KAFKA_BROKERS"], f.Services["orders"].Environment["KAFKA_BROKERS"])
}

func TestPrometheusFindsTheProcessor(t *testing.T) {
	f := readCompose(t)
	s := f.Services["prometheus"]
	var flags []string
	for _, c := range s.Command {
		name, value, _ := strings.Cut(c, "=")
		flags = append(flags, name)
		if name != "--storage.tsdb.retention.time" {
			require.Contains(t, s.mounts(), value)
		}
	}
	require.Contains(t, flags, "--config.file")
	text, err := os.ReadFile(filepath.Join(top, s.mounts()["/etc/prometheus/prometheus.yml"]))
	require.NoError(t, err)
	var c struct {
		Scrapes []struct {
			Path          string `yaml:"metrics_path"`
			Authorization struct{ Type, Credentials string }
			Statics       []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(text, &c))
	require.Len(t, c.Scrapes, 1)
	require.Equal(t, "/metrics", c.Scrapes[0].Path)
	host, port, err := net.SplitHostPort(c.Scrapes[0].Statics[0].Targets[0])
	require.NoError(t, err)
	require.Contains(t, f.Services, host)
	require.Equal(t, []string{"127.0.0.1:" + port + ":" + port}, f.Services[host].Ports)
	env := f.Services[host].Environment
	require.Equal(t, "0.0.0.0:"+port, env["MILLWEIR_ADMIN_LISTEN"])
	require.Equal(t, "Bearer", c.Scrapes[0].Authorization.Type)
	require.Equal(t, env["MILLWEIR_ADMIN_TOKEN"], c.Scrapes[0].Authorization.Credentials)
	health := f.Services[host].Healthcheck.Test
	at, err := url.Parse(health[len(health)-1])
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:"+port+"/readyz", at.Host+at.Path)
	image := dockerfile(t)
	require.Contains(t, image, "http://127.0.0.1:"+port+"/livez")
	require.Contains(t, image, "EXPOSE "+port+"\n")
}

// dockerfile gives the text with continued lines joined.
func dockerfile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "Dockerfile"))
	require.NoError(t, err)
	return regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(text), "")
}

// stages gives the names of the Dockerfile's stages, in order.
func stages(t *testing.T) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^FROM .* AS (\S+)$`).FindAllStringSubmatch(dockerfile(t), -1) {
		out = append(out, m[1])
	}
	return out
}

// imageEnvironment gives what ENV sets in the last stage.
func imageEnvironment(t *testing.T) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^ENV (\S+=\S+)$`).FindAllStringSubmatch(dockerfile(t), -1) {
		out = append(out, m[1])
	}
	return out
}

func TestTheDockerfileNamesWhatExists(t *testing.T) {
	text := dockerfile(t)
	names := stages(t)
	require.Equal(t, "processor", names[len(names)-1], "the image that is built when no target is named")
	var built []string
	for _, m := range regexp.MustCompile(`CGO_ENABLED=0 .*go build .*-o /out/ (.*)`).FindAllStringSubmatch(text, -1) {
		for _, pkg := range strings.Fields(m[1]) {
			require.FileExists(t, filepath.Join(top, pkg, "main.go"))
			built = append(built, "/out/"+filepath.Base(pkg))
		}
	}
	require.NotEmpty(t, built)
	for _, m := range regexp.MustCompile(`(?m)^COPY (.*) \S+$`).FindAllStringSubmatch(text, -1) {
		sources := strings.Fields(m[1])
		if from, ok := strings.CutPrefix(sources[0], "--from="); ok {
			require.Contains(t, names, from)
			require.Subset(t, built, sources[1:])
			continue
		}
		for _, src := range sources {
			_, err := os.Stat(filepath.Join(top, src))
			require.NoError(t, err)
		}
	}
	version := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)$`).FindStringSubmatch(text)[1]
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(mod), "\ngo "+version)
	require.Regexp(t, `(?m)^USER [1-9]\d*:[1-9]\d*$`, text)
	require.Regexp(t, `(?m)^ENTRYPOINT \["processor"\]$`, text)
	require.Regexp(t, `(?m)^VOLUME /var/lib/millweir$`, text)
}
