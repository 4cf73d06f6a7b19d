package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// unreachable says in plain words why a server could not be called.
type unreachable struct{}

func (unreachable) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		return response, explain(ctx, request.Peer().Addr, err)
	}
}

func (unreachable) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return &explainedConn{StreamingClientConn: next(ctx, spec), ctx: ctx}
	}
}

// WrapStreamingHandler does nothing: the interceptor is for clients.
func (unreachable) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type explainedConn struct {
	connect.StreamingClientConn

	ctx context.Context //nolint:containedctx // it is that of the stream
}

func (c *explainedConn) Send(message any) error {
	return explain(c.ctx, c.Peer().Addr, c.StreamingClientConn.Send(message))
}

func (c *explainedConn) Receive(message any) error {
	return explain(c.ctx, c.Peer().Addr, c.StreamingClientConn.Receive(message))
}

// explain replaces the error of a call that no server answered, or a server of another kind.
func explain(ctx context.Context, server string, err error) error {
	rpc, ok := errors.AsType[*connect.Error](err)
	if !ok || connect.IsWireError(err) || ctx.Err() != nil {
		return err
	}
	if why := Reason(err); why != "" {
		return fault.Wrap(err, errcode.Unavailable, "cannot reach %s: %s", server, why)
	}
	if strings.HasPrefix(rpc.Message(), "invalid content-type") || strings.HasSuffix(rpc.Message(), "404 Not Found") {
		return fault.Wrap(err, errcode.Unavailable,
			"%s answers, but it is not a Lockstep service of this version: check its URL", server)
	}
	return err
}

// Reason returns in plain words why a connection failed; empty for other errors.
func Reason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "the host name " + dns.Name + " is not known"
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
			return "the authority of its certificate is not trusted"
		}
		return "its certificate is not valid: " + certificate.Err.Error()
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") { // net/http has no type for it
		return "it does not use TLS: the URL must begin with http://"
	}
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() {
		return "it does not answer"
	}
	for errno, text := range map[syscall.Errno]string{
		syscall.ECONNREFUSED: "no program listens there",
		syscall.EHOSTUNREACH: "there is no route to it",
		syscall.ENETUNREACH:  "there is no route to it",
	} {
		if errors.Is(err, errno) {
			return text
		}
	}
	return ""
}
