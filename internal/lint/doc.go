// Package lint holds the rules of the code base as tests: which package may import which, which calls are forbidden
// where, and how large files and functions may grow. It has no code of its own.
package lint
