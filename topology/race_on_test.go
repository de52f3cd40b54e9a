//go:build race

package topology_test

// raceDetector says that the tests run under it.
const raceDetector = true
