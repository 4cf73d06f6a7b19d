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

// RelayAudience is what relays are called in access tokens.
const RelayAudience = "relay"

// Relay is a relay as its user sees it. Errors of calls are faults.
type Relay struct {
	relayv1connect.RelayServiceClient

	url    string
	http   *http.Client
	access *accessTokens
}

// Stream is a target's TCP stream.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite says that nothing more will be written.
	CloseWrite() error
}

// Relay makes a client of the relay at its URL, for the same user. It trusts the authorities in a
// PEM file, those of the system where that is empty. Fault invalid_argument: the file holds none.
func (a *API) Relay(server, caFile string) (*Relay, error) {
	transport, _ := http.DefaultTransport.(*http.Transport)
	transport = transport.Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true) // HTTP/2 has no Upgrade
	if caFile != "" {
		authorities, err := certpool.Load(caFile)
		if err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "the authorities of relays: %v", err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}
	}
	r := &Relay{url: strings.TrimSuffix(server, "/"), http: &http.Client{Transport: transport}, access: a.access}
	r.RelayServiceClient = relayv1connect.NewRelayServiceClient(r.http, r.url, a.For(RelayAudience))
	return r, nil
}

// ReadAuthorities reads the file with the authorities of a relay's certificate. Fault
// invalid_argument: it holds none.
func ReadAuthorities(file string) ([]byte, error) {
	pem, err := certpool.ReadPEM(file)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "the authorities of relays: %v", err)
	}
	return pem, nil
}

// Close lets go of connections that nothing uses.
func (r *Relay) Close() { r.http.CloseIdleConnections() }

// Open a TCP stream to a target of an agent. It waits for an agent that is not connected, until ctx
// is done or the relay's patience ends; what is open does not end with ctx.
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
		return nil, fault.Wrap(err, errcode.InvalidArgument, "the relay's URL: %v", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "tcp")
	response, err := r.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.From(context.Cause(ctx))
		}
		return nil, fault.Wrap(err, errcode.Unavailable, "the relay %s cannot be reached: %v", r.url, err)
	}
	stream, switched := response.Body.(Stream)
	if response.StatusCode == http.StatusSwitchingProtocols && switched {
		return stream, nil
	}
	defer response.Body.Close() //nolint:errcheck // what it says was read
	if err := fault.FromHTTP(response); err != nil {
		return nil, err
	}
	return nil, fault.New(
		errcode.Unavailable,
		"%s answered %s instead of a stream: is it a relay's address for callers, and does what is between let Upgrade pass?",
		r.url, response.Status,
	)
}
