// Package admin serves what operators and their tools ask one running instance: whether it lives, whether it is ready, its
// metrics, attempts and checkpoints, and the commands checkpoint, savepoint and cancel. It knows the instance only as a Service.
//
// Invariants:
//
//	I1  Without a token the listener is reachable from this machine only, and only for requests that name this machine: a
//	    page in a browser can neither command it nor read it.
//	I2  Every body, header, answer and number of requests at once has a limit, every request an end.
//	I3  Every answer but /metrics is JSON or one line of text, every error {"error": "one line", "code": exit code}.
//	I4  A request that names an application or an instance is answered by no other one.
//	I5  Close waits for the requests that are being answered, within a bound, and then ends them.
//
// Goroutines: one that accepts and those of net/http, all ended by Close, which their owner calls.
//
// Files: server.go (listener and its life), conns.go (how many connections it has), guard.go (who may ask), handlers.go (the endpoints), api.go (what goes over the
// wire), attempts.go (the part of it that tells of attempts), client.go (the other side, for the command line).
package admin
