//go:build !failpoints || !unix

package failpoint

// Enabled says that points can be armed. It is a constant: what stands behind it is not even compiled into the binary
// that is shipped.
const Enabled = false

// Hit is a point where the process may be killed or stopped. Here it does nothing.
func Hit(Point) {}

// Err is a point where also an error may come up. Here it is nil.
func Err(Point) error { return nil }
