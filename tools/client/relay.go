package client

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
)

// RelayAudience is the audience of access tokens for relays.
const RelayAudience = "relay"

// Relay is a client of a relay. Errors of calls are faults.
type Relay struct {
	relayv1connect.RelayServiceClient

	url    string
	http   *http.Client
	access *accessTokens
}

// Stream is a TCP stream to a target of an agent.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite half-closes the stream.
	CloseWrite() error
}

// Relay returns a client of the relay at the URL server, for the same user. It trusts the CA
// certificates in a PEM file, or those of the system if caFile is empty. Fault invalid_argument: the
// file has no certificate.
func (a *API) Relay(server, caFile string) (*Relay, error) {
	transport, _ := http.DefaultTransport.(*http.Transport)
	transport = transport.Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true) // HTTP/2 has no Upgrade
	if caFile != "" {
		roots, err := certpool.Load(caFile)
		if err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "read the relay CA certificates: %v", err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	r := &Relay{url: strings.TrimSuffix(server, "/"), http: &http.Client{Transport: transport}, access: a.access}
	r.RelayServiceClient = relayv1connect.NewRelayServiceClient(r.http, r.url, a.ClientOption(RelayAudience))
	return r, nil
}

// ReadCACertificates reads a PEM file with the CA certificates of a relay. Fault invalid_argument:
// the file has no certificate.
func ReadCACertificates(file string) ([]byte, error) {
	pem, err := certpool.ReadPEM(file)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "read the relay CA certificates: %v", err)
	}
	return pem, nil
}

// Close closes idle connections.
func (r *Relay) Close() { r.http.CloseIdleConnections() }

// Open opens a TCP stream to a target of an agent. If the agent is not connected, Open waits until
// ctx is done or the relay's agent_timeout has passed. An open stream outlives ctx.
func (r *Relay) Open(ctx context.Context, agent int64, target string) (Stream, error) {
	token, err := r.access.token(ctx, RelayAudience, "")
	if err != nil {
		return nil, err
	}
	stream, err := r.open(ctx, agent, target, token)
	if !fault.Is(err, errcode.Unauthenticated) {
		return stream, err
	}
	if token, err = r.access.token(ctx, RelayAudience, token); err != nil {
		return nil, err
	}
	return r.open(ctx, agent, target, token)
}

func (r *Relay) open(ctx context.Context, agent int64, target, token string) (Stream, error) {
	address := r.url + "/agents/" + strconv.FormatInt(agent, 10) + "/tcp/" + url.PathEscape(target)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "invalid relay URL: %v", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "tcp")
	response, err := r.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.From(context.Cause(ctx))
		}
		return nil, fault.Wrap(err, errcode.Unavailable, "connect to the relay %s: %v", r.url, err)
	}
	stream, switched := response.Body.(Stream)
	if response.StatusCode == http.StatusSwitchingProtocols && switched {
		return stream, nil
	}
	defer response.Body.Close() //nolint:errcheck // the body was read
	if err := fault.FromHTTP(response); err != nil {
		return nil, err
	}
	return nil, fault.New(
		errcode.Unavailable,
		"%s responded %s instead of 101: check that the URL is a relay's external listener "+
			"and that proxies forward the Upgrade header",
		r.url, response.Status,
	)
}
