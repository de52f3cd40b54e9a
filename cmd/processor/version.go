package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func init() { register(newVersion) }

// versionInfo is what the build says about itself.
type versionInfo struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Commit   string `json:"commit"` // "unknown" when the build had no repository
	Modified bool   `json:"modified"`
	Time     string `json:"time,omitempty"` // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readVersion() versionInfo {
	v := versionInfo{Module: "github.com/millweir/millweir", Version: "(devel)", Commit: "unknown",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Path != "" {
		v.Module, v.Version = info.Main.Path, info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "vcs.time":
			v.Time = s.Value
		}
	}
	return v
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Tell the version, the commit and the Go release", Example: "  processor version\n  processor version --output json", Args: exactArgs()}
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output.json {
			return writeJSON(cmd.OutOrStdout(), readVersion())
		}
		return printVersion(cmd.OutOrStdout())
	}
	return cmd
}

func printVersion(out io.Writer) error {
	v, modified := readVersion(), ""
	if v.Modified {
		modified = ", with changes"
	}
	_, err := fmt.Fprintf(out, "%s %s\ncommit %s%s\n%s %s\n", v.Module, v.Version, v.Commit, modified, v.Go, v.Platform)
	return err
}
