package rules

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBothEndsOfEveryRangeBelongToIt(t *testing.T) {
	for _, path := range Paths() {
		r, ok := Of(path)
		require.True(t, ok)
		require.Less(t, r.Min, r.Max, path)
		require.Empty(t, Check(path, r.Min), path)
		require.Empty(t, Check(path, r.Max), path)
		for _, v := range []float64{r.Min - 1, r.Max + 1, math.NaN(), math.Inf(1)} {
			require.Contains(t, Check(path, v), " is out of range: from "+r.Show(r.Min)+" to "+r.Show(r.Max), path)
		}
	}
	require.Empty(t, Check("instance.id", 1e9), "no range")
}

func TestFiguresAreShownAsTheServiceFileHasThem(t *testing.T) {
	require.Equal(t, "1h30m", Duration(90*time.Minute))
	require.Equal(t, "-1s", Duration(-time.Second))
	require.Equal(t, "1.5µs", Duration(1500*time.Nanosecond))
	require.Equal(t, "20kb", Size(20<<10))
	require.Equal(t, "-1", Size(-1))
	require.Equal(t, "0.25", Range{Fraction, 0, 1}.Show(0.25))
	require.EqualValues(t, 1.5, MillisOf(1500*time.Microsecond))
}

func TestForms(t *testing.T) {
	for s, good := range map[string]bool{"a": true, "a.b_c-1": true, "": false, ".": false, "..": false, "a/b": false, "ä": false} {
		require.Equal(t, good, Name(s) == "", s)
	}
	for s, good := range map[string]bool{"h:1": true, "[::1]:65535": true, "h": false, ":1": false, "h:0": false, "h:65536": false, "u@h:1": false, "http://h:1": false} {
		require.Equal(t, good, Broker(s) == "", s)
	}
	for s, good := range map[string]bool{"off": true, "127.0.0.1:0": true, ":8080": true, "[::1]:1": true, "8080": false, "h:65536": false, "h:x": false, "u@h:1": false} {
		require.Equal(t, good, Listen(s) == "", s)
	}
	for s, good := range map[string]bool{"0123456789abcdef": true, "0123456789abcde": false, "0123456789abcde f": false, "0123456789abcdeü": false} {
		require.Equal(t, good, Token(s) == "", s)
		require.NotContains(t, Token(s), s)
	}
	for s, dir := range map[string]string{"d": "d", "/d": "/d", "file:///d%20e": "/d e", "file:/d": "/d", "FILE:///d": "/d", "c:/d": "c:/d", "a:b/c": "a:b/c"} {
		require.Empty(t, Dir(s))
		require.Equal(t, dir, DirOf(s))
	}
	for _, s := range []string{"s3://b/x", "file://host/d", "file:///d?q", "file:///d#f", "d\x00", "file:d", "file:", "s3:/b/x", "hdfs:///x"} {
		require.NotEmpty(t, Dir(s), s)
	}
	require.Empty(t, Path("a/b"))
	for _, s := range []string{"~", "~/data", "~/"} { // which no shell has replaced
		require.Contains(t, Path(s), "write the whole path, or ./~")
		require.Contains(t, Dir(s), "write the whole path, or ./~")
	}
	for _, s := range []string{"./~", "/a/~", "~a", "a~/b"} {
		require.Empty(t, Path(s)+Dir(s))
	}
	require.NotEmpty(t, Path("file:///a"))
	require.NotEmpty(t, Path("file:/a"))
	require.Empty(t, Application("orders"))
	require.Contains(t, Application("millweir-store-id"), "reserved")
	require.NotEmpty(t, Application(".."))
}
