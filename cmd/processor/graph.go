package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/topology"
)

func init() { register(newGraph) }

// graphFormat is --format: what the graph is drawn in.
type graphFormat struct {
	name string
	draw func(*topology.Plan) string
}

var graphFormats = []graphFormat{{"text", (*topology.Plan).Describe}, {"mermaid", (*topology.Plan).Mermaid}, {"dot", (*topology.Plan).Dot}}

func (g *graphFormat) String() string { return g.name }

// Set takes the name of a format.
func (g *graphFormat) Set(s string) error {
	for _, f := range graphFormats {
		if f.name == s {
			*g = f
			return nil
		}
	}
	return errors.New("text, mermaid or dot")
}

// Type is what the help shows.
func (g *graphFormat) Type() string { return "text|mermaid|dot" }

func newGraph() *cobra.Command {
	var set []string
	format := graphFormats[0]
	cmd := &cobra.Command{
		Use:   "graph FILE.yaml",
		Short: "Draw a topology: topics, steps, state, exchanges",
		Long: `Draw the topology of a service file, without a broker: as text stage by stage, each with what runs in its tasks, or as a
flowchart for Mermaid, which pages such as GitHub's show, or for Graphviz.

Stateful steps are drawn as stadiums (double borders in Graphviz), exchanges as hexagons, with their parallelism at the
arrows into them.`,
		Example: "  processor graph orders.yaml\n  processor graph orders.yaml --format mermaid\n  processor graph orders.yaml --format dot | dot -Tsvg > orders.svg",
		Args:    exactArgs("FILE.yaml"),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting, as in run; may be repeated")
	cmd.Flags().Var(&format, "format", "what the graph is drawn in")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		svc, err := load(cmd, args[0], set)
		if err != nil {
			return fault.Stopf(fault.BadFile, "%s is not valid", args[0])
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), format.draw(svc.Plan))
		return err
	}
	return cmd
}
