//go:build !race

package topology_test

const raceDetector = false
