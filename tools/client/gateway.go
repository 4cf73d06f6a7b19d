package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// GatewayAudience is the audience of access tokens for gateways.
const GatewayAudience = "gateway"

const (
	gatewayTimeout = 30 * time.Second
	// maxGatewayAnswer is the greatest size of an answer of the gateway in bytes.
	maxGatewayAnswer = 1 << 20
)

// Gateway is a client of the sign-in host of a gateway. Errors of calls are faults.
type Gateway struct {
	url  string
	http *http.Client
}

// GatewayInfo is where people enter workspaces.
type GatewayInfo struct {
	// Zone has the host names of workspaces.
	Zone string `json:"zone"`
	SSH  struct {
		// Address is host:port.
		Address string `json:"address"`
		// KnownHosts are lines for a known_hosts file.
		KnownHosts []string `json:"known_hosts"`
	} `json:"ssh"`
}

// NewGateway returns a client of the gateway with this URL. caFile is a PEM file with the CA certificates to trust,
// empty for those of the system. The caller closes it.
func NewGateway(address, caFile string) (*Gateway, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fault.New(errcode.InvalidArgument, "gateway %q must be a URL such as https://sign-in.ws.example.com",
			address)
	}
	transport, _ := http.DefaultTransport.(*http.Transport)
	transport = transport.Clone()
	if caFile != "" {
		roots, err := certpool.Load(caFile)
		if err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "read the gateway CA certificates: %v", err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	// Names below localhost are this machine, also where the system's resolver does not know them.
	dialer := &net.Dialer{Timeout: gatewayTimeout}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err == nil && IsLocalName(host) {
			address = net.JoinHostPort("127.0.0.1", port)
		}
		return dialer.DialContext(ctx, network, address)
	}
	return &Gateway{
		url: strings.TrimSuffix(address, "/"), http: &http.Client{Transport: transport, Timeout: gatewayTimeout},
	}, nil
}

// IsLocalName reports whether a host is localhost or a name below it.
func IsLocalName(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// Close closes idle connections.
func (g *Gateway) Close() { g.http.CloseIdleConnections() }

// URL returns the URL of a path of the sign-in host.
func (g *Gateway) URL(path string, query url.Values) string {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return g.url + path
}

// Info returns where people enter workspaces.
func (g *Gateway) Info(ctx context.Context) (GatewayInfo, error) {
	var info GatewayInfo
	if err := g.call(ctx, http.MethodGet, "/.well-known/lockstep", "", nil, &info); err != nil {
		return info, err
	}
	if _, _, err := net.SplitHostPort(info.SSH.Address); err != nil || len(info.SSH.KnownHosts) == 0 {
		return info, fault.New(errcode.FailedPrecondition, "the gateway %s serves no SSH", g.url)
	}
	for _, line := range info.SSH.KnownHosts {
		if strings.ContainsAny(line, "\r\n") {
			return info, fault.New(errcode.Internal, "the gateway %s returned a malformed known_hosts line", g.url)
		}
	}
	return info, nil
}

// Token returns a personal access token for a code of the sign-in page.
func (g *Gateway) Token(ctx context.Context, code, verifier string) (token string, expires time.Time, err error) {
	var answer struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	body := map[string]string{"code": code, "verifier": verifier}
	if err := g.call(ctx, http.MethodPost, "/cli/token", "", body, &answer); err != nil {
		return "", time.Time{}, err
	}
	if answer.Token == "" {
		return "", time.Time{}, fault.New(errcode.Internal, "the gateway %s returned no token", g.url)
	}
	return answer.Token, answer.ExpiresAt, nil
}

// SessionLink returns a URL that signs the owner of the access token in once, and then opens a port of a workspace.
// Port 0 is the terminal.
func (g *Gateway) SessionLink(ctx context.Context, accessToken, workspace string, port int) (string, error) {
	var answer struct {
		URL string `json:"url"`
	}
	body := map[string]any{"workspace": workspace, "port": port}
	if err := g.call(ctx, http.MethodPost, "/cli/session", accessToken, body, &answer); err != nil {
		return "", err
	}
	if link, err := url.Parse(answer.URL); err != nil || link.Scheme != "https" {
		return "", fault.New(errcode.Internal, "the gateway %s returned no link", g.url)
	}
	return answer.URL, nil
}

// ResetHostKey lets the gateway accept the next host key of a workspace of the owner of the access token.
func (g *Gateway) ResetHostKey(ctx context.Context, accessToken, workspace string) error {
	var answer struct{}
	return g.call(ctx, http.MethodPost, "/cli/reset-host-key", accessToken, map[string]string{"workspace": workspace},
		&answer)
}

func (g *Gateway) call(ctx context.Context, method, path, accessToken string, body, answer any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, g.url+path, content)
	if err != nil {
		return fmt.Errorf("create a request: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if accessToken != "" {
		request.Header.Set("Authorization", "Bearer "+accessToken)
	}
	response, err := g.http.Do(request)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "the gateway %s cannot be reached: %v", g.url, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxGatewayAnswer))
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "lost the connection to the gateway %s: %v", g.url, err)
	}
	if response.StatusCode != http.StatusOK {
		return gatewayFault(g.url, response.StatusCode, raw)
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fault.Wrap(err, errcode.Internal, "the gateway %s returned a malformed answer: is it a gateway?", g.url)
	}
	return nil
}

// gatewayFault returns the fault of an answer with an error status: that of the gateway, or of a proxy before it.
func gatewayFault(address string, status int, body []byte) error {
	code := errcode.Internal
	switch status {
	case http.StatusBadRequest:
		code = errcode.InvalidArgument
	case http.StatusUnauthorized:
		code = errcode.Unauthenticated
	case http.StatusForbidden:
		code = errcode.PermissionDenied
	case http.StatusNotFound:
		code = errcode.NotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		code = errcode.FailedPrecondition
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = errcode.Unavailable
	}
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
		return fault.New(code, "%s", answer.Message)
	}
	return fault.New(code, "the gateway %s answered %d %s", address, status, http.StatusText(status))
}
