package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"

	"github.com/millweir/millweir/internal/fault"
)

// Loopback reports whether an address host:port can be reached from this machine only. A name other than localhost might be
// anything.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	return loopbackHost(host)
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// A request may say whom it means. An address outlives who listened there.
const (
	applicationHeader = "Millweir-Application"
	instanceHeader    = "Millweir-Instance"
)

// addressed answers only those who mean this instance, or whoever listens.
func addressed(svc Service, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		application, instance := svc.Who()
		for _, is := range []struct{ what, header, is string }{{"application", applicationHeader, application}, {"instance", instanceHeader, instance}} {
			if meant := r.Header.Get(is.header); meant != "" && meant != is.is {
				respond(w, 0, nil, fault.Stopf(fault.NotRunning, "here listens instance %s of application %s, not %s %s", instance, application, is.what, meant))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// guard lets those through who may ask. Without a token the listener is a loopback one, and a request must name this machine:
// a browser that was led to a name of somebody else's with this address sends that name. Requests that a page of another
// origin makes are refused in any case, unless they only look and cannot be read by it.
func guard(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	slots := make(chan struct{}, maxRequests)
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "a request from a page of another origin")
	}))
	next = sameOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" { // also beside as many commands as may wait: a probe that fails costs the process
			next.ServeHTTP(w, r)
			return
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			fail(w, http.StatusServiceUnavailable, "too many requests at once")
			return
		}
		if token == "" {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = r.Host
			}
			if !loopbackHost(host) {
				fail(w, http.StatusForbidden, "the listener is for this machine: name it as localhost or 127.0.0.1, or set admin.token")
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if !ok || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			h.Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "the value of admin.token is wanted as Authorization: Bearer TOKEN")
			return
		}
		next.ServeHTTP(w, r)
	})
}
