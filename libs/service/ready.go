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

// defaultReadyTimeout is the default of Process.ReadyTimeout.
const defaultReadyTimeout = 5 * time.Second

// hasOps is a configuration that embeds [Config].
type hasOps interface{ opsListener() Listener }

func (c Config) opsListener() Listener { return c.Ops }

// answerReady answers --check-ready and returns the exit status.
func answerReady(process Process, cfg any) int {
	timeout := process.ReadyTimeout
	if timeout == 0 {
		timeout = defaultReadyTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	report, err := requestReady(ctx, cfg)
	_, _ = io.WriteString(process.Stdout, report)
	if err != nil {
		_, _ = fmt.Fprintln(process.Stderr, err)
		return 1
	}
	return 0
}

// requestReady returns the /readyz report of the running instance with this configuration, and an
// error unless it is ready.
func requestReady(ctx context.Context, cfg any) (string, error) {
	described, ok := cfg.(hasOps)
	if !ok {
		return "", fault.New(errcode.Internal, "%T does not embed service.Config, so it has no ops listener", cfg)
	}
	ops := described.opsListener()
	transport, url, err := localURL(ops)
	if err != nil {
		return "", err
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("request %s: %w", url, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", fault.Wrap(err, errcode.Unavailable, "nothing answers on the ops listener %s", ops.Listen)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	report, err := io.ReadAll(io.LimitReader(response.Body, int64(ops.MaxHeader)))
	if err != nil {
		return "", fmt.Errorf("read the response of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return string(report), fault.New(errcode.Unavailable, "%s answers %s", url, response.Status)
	}
	return string(report), nil
}

// localURL returns a transport and the /readyz URL for the ops listener on this machine.
func localURL(ops Listener) (*http.Transport, string, error) {
	host, port, err := net.SplitHostPort(ops.Listen)
	if err != nil || port == "0" || port == "" {
		return nil, "", fault.New(errcode.InvalidArgument, "ops.listen is %q: --check-ready needs a fixed port", ops.Listen)
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
			// The certificate need not name the loopback address. The request carries no secret.
			InsecureSkipVerify: true, //nolint:gosec // see above
			// The listener may require a client certificate; its own one serves as that.
			Certificates: []tls.Certificate{pair},
		}
	}
	return transport, scheme + "://" + net.JoinHostPort(host, port) + "/readyz", nil
}
