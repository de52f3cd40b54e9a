package snapshot

import (
	"errors"
	"syscall"
)

// isBroken reports whether a file system says that an inode or a block of it is damaged.
func isBroken(err error) bool {
	return errors.Is(err, syscall.EUCLEAN) || errors.Is(err, syscall.EBADMSG)
}
