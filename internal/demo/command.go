package demo

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Job is what a process of the job needs to know.
type Job struct {
	File     string   // the topology file
	DataDir  string   // for its state
	Brokers  []string // of the cluster
	Input    string   // topic of the orders
	Output   string   // topic of the totals
	Sabotage string   // name of a planted fault, or empty
}

// DefaultCommand is the one place that knows the command line of the job: this binary's `run`, or the hidden
// `demo-job` which plants a fault first.
func DefaultCommand(j Job) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own binary: %w", err)
	}
	args := []string{"run"}
	if j.Sabotage != "" {
		args = []string{"demo-job", "--sabotage", j.Sabotage}
	}
	cmd := exec.Command(self, append(args, j.File)...)
	// The file takes both from the environment, as it would in a container.
	cmd.Env = append(os.Environ(), "KAFKA_BROKERS="+strings.Join(j.Brokers, ","), "DATA_DIR="+j.DataDir)
	return cmd, nil
}
