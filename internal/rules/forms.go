package rules

import (
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// Name gives what keeps a text from being a name: names become parts of topics, ids and file names.
func Name(s string) string {
	if s == "." || s == ".." || !namePattern.MatchString(s) {
		return "is not a name: 1 to 128 letters, digits, dots, underscores or hyphens"
	}
	return ""
}

// storeID is the file in a checkpoint directory beside the directories of its applications.
const storeID = "millweir-store-id"

// Application gives what keeps a text from being the name of an application.
func Application(s string) string {
	if s == storeID {
		return "is reserved: every checkpoint directory has a file of this name beside the directories of its applications"
	}
	return Name(s)
}

// Broker gives what keeps a text from being the address of a broker.
func Broker(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return "is not host:port, for example localhost:9092"
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
		return "has no port from 1 to 65535; write host:port, for example localhost:9092"
	}
	if strings.ContainsAny(host, "/@ ") {
		return "is not host:port, for example localhost:9092"
	}
	return ""
}

// Off is the word for no listener.
const Off = "off"

// Listen gives what keeps a text from being the address of a listener. Port 0 takes a free one.
func Listen(s string) string {
	if s == Off {
		return ""
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		return "is not host:port, for example 127.0.0.1:8080, nor off"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "has no port from 0 to 65535; write host:port, for example 127.0.0.1:8080, or off"
	}
	return ""
}

var tokenPattern = regexp.MustCompile(`^[!-~]{16,256}$`)

// Token gives what keeps a text from being a secret that goes into a header. It does not show the text.
func Token(s string) string {
	if !tokenPattern.MatchString(s) {
		return "is no token: 16 to 256 printable characters without blanks"
	}
	return ""
}

// notHome is of a path that a shell would have replaced, and nobody else does. It would be taken as one in the working directory.
const notHome = "begins with ~, which only a shell replaces, and not where it stands behind a =: write the whole path, or ./~"

func atHome(s string) bool { return s == "~" || strings.HasPrefix(s, "~/") }

const notPath = "is not a path of a directory on this machine"

// urlPattern is what a URL begins with: file:///a, and file:/a as well, which is the same.
var urlPattern = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+):/|^(file):`)

// schemeOf gives the scheme of a URL, "" for a path.
func schemeOf(s string) string {
	if m := urlPattern.FindStringSubmatch(s); m != nil {
		return strings.ToLower(m[1] + m[2])
	}
	return ""
}

// Dir gives what keeps a text from being a directory, written as a path or as a file URL.
func Dir(s string) string {
	switch scheme := schemeOf(s); {
	case strings.ContainsRune(s, 0):
		return notPath
	case atHome(s):
		return notHome
	case scheme == "" && !strings.Contains(s, "://"):
		return ""
	case scheme != "file":
		return "is not available yet; allowed: a directory, or file:///directory"
	}
	if u, err := url.Parse(s); err != nil || u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.RawQuery != "" || u.Fragment != "" {
		return "is not a file URL; write file:///directory"
	}
	return ""
}

// DirOf gives the path that a directory means which Dir accepts.
func DirOf(s string) string {
	if schemeOf(s) != "file" {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return s // Dir refuses it before
	}
	return u.Path
}

// Path gives what keeps a text from being a path.
func Path(s string) string {
	if strings.ContainsRune(s, 0) || strings.Contains(s, "://") || schemeOf(s) != "" {
		return notPath
	}
	if atHome(s) {
		return notHome
	}
	return ""
}
