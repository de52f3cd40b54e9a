//go:build race

package snapshot

// raceDetector thins out exhaustive single-threaded tests: they run in full without the detector.
const raceDetector = true
