package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// readyTimeout is how long a running instance may take to say whether it is ready.
const readyTimeout = 5 * time.Second

// operated is a configuration that embeds [Config].
type operated interface{ opsListener() Listener }

func (c Config) opsListener() Listener { return c.Ops }

// answerReady answers --check-ready and returns the exit status.
func answerReady(process Process, cfg any) int {
	report, err := askReady(context.Background(), cfg)
	_, _ = io.WriteString(process.Stdout, report)
	if err != nil {
		_, _ = fmt.Fprintln(process.Stderr, err)
		return 1
	}
	return 0
}

// askReady returns what /readyz of the instance that runs with cfg says, and an error unless it is ready.
func askReady(ctx context.Context, cfg any) (string, error) {
	described, ok := cfg.(operated)
	if !ok {
		return "", fault.New(errcode.Internal, "%T does not embed service.Config: it says nothing of an ops listener", cfg)
	}
	ops := described.opsListener()
	transport, url, err := reach(ops)
	if err != nil {
		return "", err
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", fault.Wrap(err, errcode.Unavailable, "nothing answers on the ops listener %s", ops.Listen)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	report, err := io.ReadAll(io.LimitReader(response.Body, int64(ops.MaxHeader)))
	if err != nil {
		return "", fmt.Errorf("read what %s says: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return string(report), fault.New(errcode.Unavailable, "%s answers %s", url, response.Status)
	}
	return string(report), nil
}

// reach returns how to ask the ops listener from the machine that it is on.
func reach(ops Listener) (*http.Transport, string, error) {
	host, port, err := net.SplitHostPort(ops.Listen)
	if err != nil || port == "0" || port == "" {
		return nil, "", fault.New(errcode.InvalidArgument, "ops.listen is %q: a port that is known beforehand is needed to ask whether the service is ready", ops.Listen)
	}
	if address := net.ParseIP(host); host == "" || address.IsUnspecified() {
		host = "127.0.0.1"
		if address != nil && address.To4() == nil {
			host = "::1"
		}
	}
	transport, scheme := &http.Transport{DisableKeepAlives: true}, "http"
	if ops.TLS.Enabled() {
		scheme = "https"
		pair, err := tls.LoadX509KeyPair(ops.TLS.CertFile, ops.TLS.KeyFile)
		if err != nil {
			return nil, "", fmt.Errorf("read the certificate of the ops listener: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{
			// Its certificate need not name this address; nothing is told to it, and all that is believed is a status.
			InsecureSkipVerify: true, //nolint:gosec // see above
			// Where the listener wants one of clients, its own may serve as that.
			Certificates: []tls.Certificate{pair},
		}
	}
	return transport, scheme + "://" + net.JoinHostPort(host, port) + "/readyz", nil
}
