package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// DefaultListen is where an instance listens that was not told.
const DefaultListen = "127.0.0.1:8080"

// AddressFile is the name of the file in the data directory that holds the address while the instance runs, and in a second
// line the instance id.
const AddressFile = "admin.address"

// Limits of the listener.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 20 * time.Second
	lookTimeout    = 10 * time.Second // of what only looks
	answerTimeout  = 30 * time.Second
	commandTimeout = 10 * time.Minute // of a checkpoint, a savepoint, a cancel
	idleTimeout    = 60 * time.Second
	closeTimeout   = 2 * time.Second
	maxHeader      = 16 << 10
	maxBody        = 64 << 10
	maxRequests    = 64
	maxConns       = 256
	maxAddress     = 600
)

// Config says where the listener is and who may use it.
type Config struct {
	// Listen is host:port; "" = DefaultListen, or a free port of that host where it is taken.
	Listen string
	// Token must come with every request but /livez and /readyz, as a Bearer token. "" = none is wanted.
	Token string
	// AddressFile gets the address, and is removed by Close; one that cannot be written is a warning. "" = none.
	AddressFile string
	// Logger gets what is worth knowing; nil means slog.Default().
	Logger *slog.Logger
}

// Server is a running listener.
type Server struct {
	http *http.Server
	addr string
	file string
	done chan struct{}
	stop context.CancelFunc
}

// Start listens and answers for svc until Close. The error is classed and names the setting.
func Start(cfg Config, svc Service) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Token == "" && cfg.Listen != "" && !Loopback(cfg.Listen) {
		return nil, fault.Stopf(fault.BadFile, "admin.listen %s can be reached from other machines: set admin.token, or listen on 127.0.0.1", cfg.Listen)
	}
	l, err := listen(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{addr: l.Addr().String(), file: cfg.AddressFile, done: make(chan struct{})}
	if s.file != "" {
		_, instance := svc.Who()
		if err := writeAddress(s.file, s.addr, instance); err != nil {
			cfg.Logger.Warn("the address of the admin listener is not kept: `--admin here` does not find it, --admin "+s.addr+" does", "file", s.file, "error", err)
		}
	}
	base, stop := context.WithCancel(context.Background())
	s.stop = stop
	limit := limited(l, maxConns)
	s.http = &http.Server{
		ConnState:         limit.state,
		Handler:           guard(cfg.Token, addressed(svc, routes(svc))),
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(limit); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the admin listener has ended", "address", s.addr, "error", err)
		}
	}()
	cfg.Logger.Info("admin listener", "address", s.addr, "token", cfg.Token != "")
	return s, nil
}

func listen(cfg Config) (net.Listener, error) {
	if cfg.Listen != "" {
		l, err := net.Listen("tcp", cfg.Listen)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return nil, fault.Stopf(fault.AdminListen, "admin.listen: %s is used by another process: choose another address (port 0 takes a free one), or stop that process", cfg.Listen)
		case err != nil:
			return nil, fault.Stopf(fault.AdminListen, "admin.listen: %w", err)
		}
		return l, nil
	}
	l, err := net.Listen("tcp", DefaultListen)
	if err == nil {
		return l, nil
	}
	host, _, _ := net.SplitHostPort(DefaultListen)
	l, ferr := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if ferr != nil {
		return nil, fault.Stopf(fault.AdminListen, "admin.listen: %w; `admin.listen: off` goes without", ferr)
	}
	cfg.Logger.Info("the default address of the admin listener is taken, it has another one", "taken", DefaultListen, "address", l.Addr().String(), "because", err)
	return l, nil
}

// Addr is host:port of the listener.
func (s *Server) Addr() string { return s.addr }

// Close takes no more requests, waits up to two seconds for those that are being answered, ends the others, and returns when
// all is over.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.stop()
		err = s.http.Close()
	}
	s.stop()
	<-s.done
	if s.file != "" {
		// Another process may have written it since: one that starts while this one ends.
		if b, rerr := vfs.ReadFile(s.file, maxAddress); rerr == nil && firstLine(b) == s.addr {
			_ = os.Remove(s.file) // what stays names an address that does not answer, as that of a killed process does
		}
	}
	return err
}

// writeAddress writes the file whole or not at all, and then none is left of a process that was killed: its address may be
// another's by now. It needs no fsync: after a loss of power nobody listens.
func writeAddress(file, addr, instance string) error {
	tmp := file + ".tmp"
	f, err := vfs.CreateNew(tmp, 0o644)
	if err == nil {
		_, err = f.WriteString(addr + "\n" + instance + "\n")
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err == nil {
		return nil
	}
	for _, name := range []string{tmp, file} {
		if rerr := os.Remove(name); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// ReadAddress gives the address of the instance that runs with a data directory, and its id, "" when it is not known. A file
// that a killed process has left names an address that does not answer, or by now that of somebody else.
func ReadAddress(dataDir string) (addr, instance string, err error) {
	file := filepath.Join(dataDir, AddressFile)
	b, err := vfs.ReadFile(file, maxAddress)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", fault.Stopf(fault.NotRunning, "no instance runs with data-dir %s, or its admin listener is off: there is no %s (when it could not be written, the log of the instance names the address: --admin HOST:PORT)", dataDir, AddressFile)
	}
	if err != nil {
		return "", "", fault.Stopf(fault.CheckpointDir, "admin address: %w", err)
	}
	addr = firstLine(b)
	if _, _, err := net.SplitHostPort(addr); err != nil || len(addr) > maxAddress {
		return "", "", fault.Stopf(fault.CheckpointDir, "%s does not hold an address", file)
	}
	_, instance, _ = strings.Cut(string(b), "\n")
	return addr, strings.TrimSpace(instance), nil
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}
