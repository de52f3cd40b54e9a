// Package vfstest puts what is no regular file in the place of one, for tests of whoever reads files.
//
// Files: kinds.go has what every system has, kinds_linux.go the rest; rights_linux.go takes the rights of root away.
package vfstest
