package engine

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// TestMain lets more tests run at once than there are processors, unless -parallel says how many: those that may, wait most
// of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))) // it is a number
	}
	os.Exit(m.Run())
}
