//go:build !race

package snapshot

const raceDetector = false
