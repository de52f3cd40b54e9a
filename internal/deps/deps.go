// Package deps pins the dependencies while packages are being written.
package deps

import (
	_ "github.com/dgraph-io/badger/v4"
	_ "github.com/expr-lang/expr"
	_ "github.com/linkedin/goavro/v2"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "github.com/twmb/franz-go/pkg/kadm"
	_ "github.com/twmb/franz-go/pkg/kfake"
	_ "github.com/twmb/franz-go/pkg/kgo"
	_ "github.com/twmb/franz-go/pkg/kmsg"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sync/errgroup"
	_ "pgregory.net/rapid"
)
