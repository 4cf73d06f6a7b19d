package s3d

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"lockstep.internal/tools/testkit/port"
)

// Variable is the environment variable with the path of the program.
const Variable = "LOCKSTEP_MINIO"

// ErrMissing reports that no program is named.
var ErrMissing = errors.New("no MinIO: run make minio, and set " + Variable + " to the absolute path of bin/minio")

// The credentials of every server.
const (
	AccessKey = "lockstep"
	SecretKey = "lockstep-secret"
)

// startTimeout bounds the start of the server.
const startTimeout = time.Minute

// Server is a running server on 127.0.0.1, without TLS and without buckets.
type Server struct {
	// URL is the address: http://127.0.0.1:PORT.
	URL string

	held    *port.Held
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// Start starts a server with its data in a folder. It returns when the server is ready, or [ErrMissing].
func Start(ctx context.Context, folder string) (*Server, error) {
	path := os.Getenv(Variable)
	if path == "" {
		return nil, ErrMissing
	}
	held, err := port.Hold()
	if err != nil {
		return nil, fmt.Errorf("start the S3 server: %w", err)
	}
	s := &Server{
		URL: "http://" + held.Address(), held: held, log: filepath.Join(folder, "s3.log"), ended: make(chan struct{}),
	}
	if err := s.start(ctx, path, folder); err != nil {
		return nil, errors.Join(fmt.Errorf("start the S3 server: %w", err), held.Release())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, path, folder string) error {
	log, err := os.Create(s.log)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	defer log.Close() //nolint:errcheck // the server has it open
	data := filepath.Join(folder, "data")
	// The context bounds the start, not the life of the server.
	s.command = exec.Command(path, "server", "--address", s.held.Address(), data) //nolint:gosec,noctx // see above
	s.command.Env = append(os.Environ(), "MINIO_ROOT_USER="+AccessKey, "MINIO_ROOT_PASSWORD="+SecretKey,
		"MINIO_BROWSER=off", "MINIO_UPDATE=off", "HOME="+folder)
	s.command.Stdout, s.command.Stderr = log, log
	dieWithParent(s.command)
	started := make(chan error, 1)
	go s.run(started)
	if err := <-started; err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		s.kill()
		output, _ := os.ReadFile(s.log) // explains, if it can be read
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

// run keeps its thread as long as the server runs: the kernel kills the server when the thread that started it ends.
func (s *Server) run(started chan<- error) {
	defer close(s.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.command.Start()
	started <- err
	if err == nil {
		_ = s.command.Wait() // it is killed
	}
}

func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/", http.NoBody)
		if err != nil {
			return err //nolint:wrapcheck // the address is ours
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusForbidden { // before, it answers 503
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.New("the server ended")
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w", ctx.Err())
		}
	}
}

// Stop kills the server and releases its port.
func (s *Server) Stop() error {
	s.kill()
	if err := s.held.Release(); err != nil {
		return fmt.Errorf("stop the S3 server: %w", err)
	}
	return nil
}

func (s *Server) kill() {
	_ = s.command.Process.Kill() // it fails if the server has ended
	<-s.ended
}
