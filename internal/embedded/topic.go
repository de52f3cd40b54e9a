package embedded

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// DefaultPartitions is the number of partitions of a topic that is asked for by name only.
const DefaultPartitions = 4

// MaxPartitions bounds the partitions of one topic: each costs files and memory in this one process.
const MaxPartitions = 1024

// Topic is a topic to be there when the broker starts.
type Topic struct {
	Name       string
	Partitions int32
}

var topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

// ParseTopic reads the form name:partitions, or name alone for DefaultPartitions.
func ParseTopic(s string) (Topic, error) {
	name, count, found := strings.Cut(s, ":")
	if !topicName.MatchString(name) || name == "." || name == ".." {
		return Topic{}, fmt.Errorf("topic %q: a name has 1 to 249 characters out of a-z A-Z 0-9 . _ -", name)
	}
	if !found {
		return Topic{Name: name, Partitions: DefaultPartitions}, nil
	}
	n, err := strconv.ParseInt(count, 10, 32)
	if err != nil || n < 1 || n > MaxPartitions {
		return Topic{}, fmt.Errorf("topic %s: %q is not a number of partitions from 1 to %d", name, count, MaxPartitions)
	}
	return Topic{Name: name, Partitions: int32(n)}, nil
}
