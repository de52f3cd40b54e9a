// Package vfstest puts what is no regular file in the place of one, for tests of whoever reads files.
//
// Files: kinds.go has what every system has, kinds_linux.go the rest.
package vfstest
