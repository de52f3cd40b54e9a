// Package vfs is the small part of a file system that the project's durable files need, so that tests can cut the
// power at any operation.
//
// OS is the real one, confined to a directory by os.Root: no name, "..", or symbolic link leaves it. Mem is a
// crashable one in memory for tests.
//
// Invariants:
//
//	I1  Names are slash-separated and relative to the file system's root; "." is the root itself.
//	I2  Create never opens a file that exists; Link never replaces one. Only Rename replaces.
//	I3  What survives a crash for sure: bytes that a Sync returned nil for, under names that a SyncDir of their
//	    directory returned nil for. Nothing else, and a Sync that failed once makes no later Sync of the same bytes
//	    trustworthy.
//	I4  What is no regular file is never opened as one, and nothing waits for it (a FIFO without a writer).
//
// The package starts no goroutine. OS and Mem may be used from several goroutines; a File from one at a time, save
// ReadAt.
//
// Files: vfs.go the interface, os.go the real one, kind.go what is no file, path.go single files by their paths, mem.go names and files in memory, memfile.go open files,
// crash.go what a crash leaves, faults.go injected errors.
package vfs
