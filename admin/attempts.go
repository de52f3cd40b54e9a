package admin

import "time"

// Attempts is what an instance tells of its attempts to process. Each restores the last committed checkpoint and goes on from there.
type Attempts struct {
	Application string    `json:"application"`
	Instance    string    `json:"instance"`
	State       string    `json:"state"`
	Since       time.Time `json:"since"`
	// Restarts counts those after failures since the process began.
	Restarts int `json:"restarts"`
	// Attempts are the newest ones, oldest first, at most 16.
	Attempts []Attempt `json:"attempts"`
}

// AttemptStatus is what has become of an attempt.
type AttemptStatus string

// What has become of an attempt.
const (
	AttemptInProgress AttemptStatus = "in-progress"
	AttemptFailed     AttemptStatus = "failed"   // the restart strategy counts it; another one follows
	AttemptRejoined   AttemptStatus = "rejoined" // its assignment changed or was lost, which is no failure; another one follows
	AttemptGaveUp     AttemptStatus = "gave-up"  // no other attempt could do better, or the restart strategy allows none
	AttemptStopped    AttemptStatus = "stopped"  // the instance was told to, or the inputs have ended; with a cause there was no last checkpoint
)

// Attempt tells how one attempt went.
type Attempt struct {
	Number  int           `json:"number"` // from 1
	Status  AttemptStatus `json:"status"`
	Started time.Time     `json:"started"`
	// Running is when it had restored its state and processed records, nil when it never did; Ended is nil while it goes on.
	Running *time.Time `json:"running,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Class is that of the cause: restart, rejoin, unconfirmed or stop.
	Class string `json:"class,omitempty"`
	Cause string `json:"cause,omitempty"`
	// Record is the record or timer at which it failed.
	Record string `json:"record,omitempty"`
	// DelayMs is the wait before the next attempt, in milliseconds.
	DelayMs float64 `json:"delay_ms"`
}
