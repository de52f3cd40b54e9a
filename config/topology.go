package config

import "github.com/millweir/millweir/internal/yamlx"

func buildTopology(*Service, *yamlx.Node, string, *Problems) {}
