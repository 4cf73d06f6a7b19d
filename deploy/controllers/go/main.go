// Command controller is an admission controller. It decides about jobs by lists of projects, zones and runners.
//
//	WEBHOOK_SECRET=whsec_… go run . RULES
//
// RULES is a JSON file: see rules.go. The program listens on LISTEN, by default 127.0.0.1:8090. It refuses requests
// that Lockstep has not signed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// maxBody is the largest request that Lockstep sends.
const maxBody = 1 << 20

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: WEBHOOK_SECRET=whsec_… go run . RULES\n\nRULES is a JSON file: see rules.go.")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	raw, err := os.ReadFile(path) //nolint:gosec // The path is an argument of the program.
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	var r rules
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	verifier, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		return fmt.Errorf("WEBHOOK_SECRET must be whsec_ and base64: %w", err)
	}
	address := os.Getenv("LISTEN")
	if address == "" {
		address = "127.0.0.1:8090"
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	server := &http.Server{
		Handler: handler(r, verifier), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}

func handler(r rules, verifier *standardwebhooks.Webhook) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, "the request could not be read", http.StatusBadRequest)
			return
		}
		// Verify before parsing: the signature includes the time, so that an old request is refused.
		if err := verifier.Verify(body, request.Header); err != nil {
			http.Error(w, "the signature is not valid", http.StatusUnauthorized)
			return
		}
		jobs, err := decode(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		decision := r.decide(jobs[0])
		fmt.Printf("job %d: %s %s\n", decision.ID, decision.Admission, decision.Reason)
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode([]answer{decision}); err != nil {
			fmt.Fprintln(os.Stderr, "controller: answer:", err)
		}
	})
	return mux
}

// decode returns the array of one job.
func decode(body []byte) ([]job, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var jobs []job
	if err := decoder.Decode(&jobs); err != nil {
		return nil, fmt.Errorf("the request is not an array of jobs: %w", err)
	}
	if len(jobs) != 1 {
		return nil, fmt.Errorf("the request has %d jobs, not one", len(jobs))
	}
	return jobs, nil
}
