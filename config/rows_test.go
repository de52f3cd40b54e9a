package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/processor"
)

// row is a value other than the default, and where it arrives in processor.Config.
type row struct {
	value string // as --set has it
	field string
	want  any
	with  string   // further --set arguments that it needs, separated by spaces
	also  []string // fields that are derived from it
}

const (
	fixedType = "restart-strategy.type=fixed-delay"
	rateType  = "restart-strategy.type=failure-rate"
	ms        = 1_000_000
)

// rows has every setting but the application, which is the plan's, and those of which no value is accepted.
var rows = map[string]row{
	"data-dir":                                     {value: "/d", field: "DataDir", want: "/d", also: []string{"CheckpointsDir", "LocalDirs"}},
	"kafka.brokers":                                {value: "h:1", field: "Brokers", want: []string{"h:1"}},
	"checkpointing.interval":                       {value: "disabled", field: "DisabledCheckpoints", want: true, also: []string{"Interval"}},
	"checkpointing.mode":                           {value: "at-least-once", field: "Mode", want: processor.AtLeastOnce},
	"checkpointing.timeout":                        {value: "7s", field: "CheckpointTimeout", want: 7000 * ms},
	"checkpointing.min-pause":                      {value: "2s", field: "MinPause", want: 2000 * ms},
	"checkpointing.max-concurrent":                 {value: "3", field: "MaxConcurrent", want: 3},
	"checkpointing.tolerable-failures":             {value: "unlimited", field: "TolerableFailures", want: -1},
	"checkpointing.unaligned":                      {value: "true", field: "Unaligned", want: true},
	"checkpointing.aligned-timeout":                {value: "200ms", field: "AlignedTimeout", want: 200 * ms, with: "checkpointing.unaligned=true"},
	"checkpointing.retention":                      {value: "delete-on-cancellation", field: "Retention", want: processor.DeleteOnCancellation},
	"checkpointing.prefer-checkpoint-for-recovery": {value: "true", field: "PreferCheckpointForRecovery", want: true},
	"checkpointing.force":                          {value: "true", field: "ForceIterations", want: true},
	"state.backend":                                {value: "memory", field: "Backend", want: processor.Memory},
	"state.backend.async":                          {value: "false", field: "SyncSnapshots", want: true},
	"state.backend.incremental":                    {value: "false", field: "FullSnapshots", want: true},
	"state.backend.fs.memory-threshold":            {value: "1mb", field: "MemoryThreshold", want: 1 << 20},
	"state.backend.fs.write-buffer-size":           {value: "1mb", field: "WriteBufferSize", want: 1 << 20},
	"state.backend.local-recovery":                 {value: "false", field: "NoLocalRecovery", want: true},
	"state.backend.memory-limit":                   {value: "1gb", field: "MemoryLimit", want: 1 << 30},
	"state.local.root-dirs":                        {value: "/a,/b", field: "LocalDirs", want: []string{"/a", "/b"}},
	"state.checkpoints.dir":                        {value: "file:///c", field: "CheckpointsDir", want: "/c"},
	"state.checkpoints.num-retained":               {value: "9", field: "RetainedCheckpoints", want: 9},
	"state.savepoints.dir":                         {value: "file:///s", field: "SavepointsDir", want: "/s"},
	"state.uncommitted-limit":                      {value: "2mb", field: "UncommittedLimit", want: 2 << 20},
	"transaction.timeout":                          {value: "2m", field: "TransactionTimeout", want: 120_000 * ms},
	"instance.id":                                  {value: "i", field: "InstanceID", want: "i"},
	"group.session-timeout":                        {value: "20s", field: "SessionTimeout", want: 20_000 * ms},
	"sink.hold-back-limit":                         {value: "2mb", field: "HoldBackLimit", want: 2 << 20},
	"shutdown.timeout":                             {value: "9s", field: "ShutdownTimeout", want: 9000 * ms},
	"admin.listen":                                 {value: "127.0.0.1:0", field: "AdminListen", want: "127.0.0.1:0"},
	"admin.token":                                  {value: "a-secret-of-16-or-more", field: "AdminToken", want: "a-secret-of-16-or-more"},

	"restart-strategy.type": {value: "none", field: "Restart.Strategy", want: "none", also: []string{"Restart.Exponential.InitialBackoff", "Restart.Exponential.MaxBackoff",
		"Restart.Exponential.Multiplier", "Restart.Exponential.ResetThreshold", "Restart.Exponential.Jitter", "Restart.Exponential.Attempts"}},
	"restart-strategy.same-record-failures":                            {value: "4", field: "Restart.SameRecord", want: 4},
	"restart-strategy.exponential-delay.initial-backoff":               {value: "5ms", field: "Restart.Exponential.InitialBackoff", want: 5 * ms},
	"restart-strategy.exponential-delay.max-backoff":                   {value: "2m", field: "Restart.Exponential.MaxBackoff", want: 120_000 * ms},
	"restart-strategy.exponential-delay.backoff-multiplier":            {value: "2.25", field: "Restart.Exponential.Multiplier", want: 2.25},
	"restart-strategy.exponential-delay.reset-backoff-threshold":       {value: "10s", field: "Restart.Exponential.ResetThreshold", want: 10_000 * ms},
	"restart-strategy.exponential-delay.jitter-factor":                 {value: "0.5", field: "Restart.Exponential.Jitter", want: 0.5},
	"restart-strategy.exponential-delay.attempts-before-reset-backoff": {value: "5", field: "Restart.Exponential.Attempts", want: 5},
	"restart-strategy.fixed-delay.attempts":                            {value: "5", field: "Restart.Fixed.Attempts", want: 5, with: fixedType},
	"restart-strategy.fixed-delay.delay":                               {value: "5s", field: "Restart.Fixed.Delay", want: 5000 * ms, with: fixedType},
	"restart-strategy.failure-rate.max-failures-per-interval":          {value: "5", field: "Restart.Rate.MaxFailures", want: 5, with: rateType},
	"restart-strategy.failure-rate.failure-rate-interval":              {value: "5s", field: "Restart.Rate.Interval", want: 5000 * ms, with: rateType},
	"restart-strategy.failure-rate.delay":                              {value: "5s", field: "Restart.Rate.Delay", want: 5000 * ms, with: rateType},
}

// way is one way in for a value.
type way struct {
	name, text   string
	set, environ []string
}

func waysIn(path, value string) []way {
	set := find(path)
	keys := strings.Split(path, ".")
	text, brace := minimal, strings.Repeat("}", len(keys)-1)
	if path == "kafka.brokers" {
		text = strings.Replace(text, "localhost:9092", value, 1)
	} else {
		text += strings.Join(keys, ": {") + ": " + quoted(set, value) + brace + "\n"
	}
	return []way{
		{name: "file", text: text},
		{name: "environment", text: minimal, environ: []string{set.Env() + "=" + value}},
		{name: "--set", text: minimal, set: []string{path + "=" + value}},
	}
}

func quoted(set *Setting, value string) string {
	if strings.HasPrefix(set.Type, "list") {
		return "[" + value + "]"
	}
	return `"` + value + `"`
}

// flat gives the settings among the fields of a configuration by name, nested ones with dots.
func flat(prefix string, v reflect.Value, into map[string]any) {
	for i := range v.NumField() {
		f, name := v.Field(i), prefix+v.Type().Field(i).Name
		switch {
		case !v.Type().Field(i).IsExported() || name == "Listener" || f.Kind() == reflect.Func || f.Kind() == reflect.Interface || f.Kind() == reflect.Pointer:
		case f.Kind() == reflect.Struct && f.Type().PkgPath() != "" && strings.HasSuffix(f.Type().PkgPath(), "/engine/restart"):
			flat(name+".", f, into)
		default:
			into[name] = f.Interface()
		}
	}
}

func fields(c processor.Config) map[string]any {
	out := map[string]any{}
	flat("", reflect.ValueOf(c), out)
	return out
}

func TestEveryRowReachesItsField(t *testing.T) {
	obeyAll(t)
	seen := map[string]bool{}
	for _, set := range Settings() {
		if set.Only || set.Path == "application" {
			continue
		}
		t.Run(set.Path, func(t *testing.T) {
			r, ok := rows[set.Path]
			require.True(t, ok, "a new setting needs a row in this test")
			with := strings.Fields(r.with)
			seen[r.field] = true
			base := fields(mustLoad(t, minimal, with, nil).Processor())
			for _, w := range waysIn(set.Path, r.value) {
				t.Run(w.name, func(t *testing.T) {
					s := mustLoad(t, w.text, append(with, w.set...), w.environ)
					got := fields(s.Processor())
					require.EqualValues(t, r.want, reflect.ValueOf(got[r.field]).Convert(reflect.TypeOf(r.want)).Interface())
					var changed []string
					for name := range got {
						if !reflect.DeepEqual(base[name], got[name]) {
							changed = append(changed, name)
						}
					}
					require.ElementsMatch(t, append([]string{r.field}, r.also...), changed)
					printed := s.Print()
					again := mustLoad(t, printed, nil, nil).Processor()
					if set.Secret {
						require.NotContains(t, printed, r.value)
						require.Contains(t, printed, "# "+set.Path+" is set (")
						again.AdminToken = s.Processor().AdminToken
					}
					require.Equal(t, s.Processor(), again)
				})
			}
		})
	}
	// And the other way round: no field of a setting is out of reach of the service file.
	for _, name := range []string{"Interval", "RecoverFromStore", "From", "ClaimMode", "AcceptDuplicates", "AllowDroppedState", "ClientOptions"} {
		seen[name] = true // given by rows below, by flags of the command, and by programs only
	}
	for name := range fields(processor.Config{}) {
		require.True(t, seen[name], "no setting reaches %s", name)
	}
}

func TestFiguresAndWordsOfOneSetting(t *testing.T) {
	obeyAll(t)
	p := func(set ...string) processor.Config { return mustLoad(t, minimal, set, nil).Processor() }
	require.EqualValues(t, 5000*ms, p("checkpointing.interval=5s").Interval)
	require.False(t, p("checkpointing.interval=disabled", "checkpointing.interval=5s").DisabledCheckpoints)
	require.Equal(t, 7, p("checkpointing.tolerable-failures=7").TolerableFailures)
	require.EqualValues(t, -1, p("state.backend.fs.memory-threshold=0").MemoryThreshold)
	require.EqualValues(t, -1, p("restart-strategy.exponential-delay.jitter-factor=0").Restart.Exponential.Jitter)
	require.Equal(t, -1, p("restart-strategy.exponential-delay.attempts-before-reset-backoff=unlimited").Restart.Exponential.Attempts)
	require.Equal(t, -1, p("restart-strategy.same-record-failures=unlimited").Restart.SameRecord)
	for _, word := range []string{"none", "off", "disable"} {
		require.EqualValues(t, "none", p("restart-strategy.type="+word).Restart.Strategy)
	}
}
