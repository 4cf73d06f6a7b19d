package fault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/testkit/port"
)

type message = wrapperspb.StringValue

// protocols are the three that a handler speaks.
func protocols() map[string][]connect.ClientOption {
	return map[string][]connect.ClientOption{
		"Connect": nil, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
	}
}

// serve answers /u (unary) and /s (server stream, one message first) with err of the caller's
// choice.
func serve(t *testing.T, log io.Writer, answer func(ask string) error) *httptest.Server {
	t.Helper()
	option := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.NewTextHandler(log, nil))))
	mux := http.NewServeMux()
	mux.Handle(
		"/u",
		connect.NewUnaryHandler(
			"/u",
			func(_ context.Context, r *connect.Request[message]) (*connect.Response[message], error) {
				if err := answer(r.Msg.GetValue()); err != nil {
					return nil, err
				}
				return connect.NewResponse(&message{Value: "fine"}), nil
			},
			option,
		),
	)
	mux.Handle(
		"/s",
		connect.NewServerStreamHandler(
			"/s",
			func(_ context.Context, r *connect.Request[message], s *connect.ServerStream[message]) error {
				if err := s.Send(&message{Value: "first"}); err != nil {
					return err
				}
				return answer(r.Msg.GetValue())
			},
			option,
		),
	)
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// withoutTLS serves the same on HTTP/1.1.
func withoutTLS(t *testing.T, same *httptest.Server) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(same.Config.Handler)
	t.Cleanup(server.Close)
	return server
}

func client(server *httptest.Server, path string, options ...connect.ClientOption) *connect.Client[message, message] {
	options = append(options, connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler))))
	return connect.NewClient[message, message](server.Client(), server.URL+path, options...)
}

func TestClientReceivesTheFaultOfTheServer(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	made := fault.Wrap(errors.New("sesame"), errcode.WorkspaceTerminated, "workspace blau ist weg: 100%% ✓").With(
		"workspace", "blau",
	)
	server := serve(t, &log, func(ask string) error {
		switch ask {
		case "fault":
			return fmt.Errorf("decide: %w", made)
		case "unknown":
			return errors.New("sesame")
		default:
			return nil
		}
	})
	for name, options := range protocols() {
		t.Run(name, func(t *testing.T) {
			check := func(ask string, err error) {
				var got *fault.Error
				require.ErrorAs(t, err, &got)
				require.NotContains(t, err.Error(), "sesame")
				if ask == "unknown" {
					require.Equal(t, errcode.Internal, got.Code)
					require.NotEmpty(t, got.Details[fault.DetailReference])
					return
				}
				require.Equal(t, errcode.WorkspaceTerminated, got.Code)
				require.Equal(t, made.Message, got.Message)
				require.Equal(t, made.Details, got.Details)
				require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err), "errors.As still finds the Connect error")
			}
			for _, ask := range []string{"fault", "unknown"} {
				_, err := client(server, "/u", options...).CallUnary(t.Context(), connect.NewRequest(&message{Value: ask}))
				check(ask, err)
				stream, err := client(
					server,
					"/s",
					options...).CallServerStream(t.Context(), connect.NewRequest(&message{Value: ask}))
				require.NoError(t, err)
				require.True(t, stream.Receive())
				require.False(t, stream.Receive())
				check(ask, stream.Err())
				require.NoError(t, stream.Close())
			}
			response, err := client(server, "/u", options...).CallUnary(t.Context(), connect.NewRequest(&message{}))
			require.NoError(t, err)
			require.Equal(t, "fine", response.Msg.GetValue())
			stream, err := client(server, "/s", options...).CallServerStream(t.Context(), connect.NewRequest(&message{}))
			require.NoError(t, err)
			require.True(t, stream.Receive())
			require.False(t, stream.Receive())
			require.NoError(t, stream.Err(), "the end of a stream is no fault")
			require.NoError(t, stream.Close())
		})
	}
	require.Contains(t, log.String(), "sesame", "the operator finds the cause")
}

func TestUnreachableServerIsUnavailable(t *testing.T) {
	t.Parallel()
	held, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	server := serve(t, io.Discard, func(string) error { return nil })
	server.URL = "http://" + held.Address() // where nobody listens
	_, err = client(server, "/u").CallUnary(t.Context(), connect.NewRequest(&message{}))
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client(server, "/u").CallUnary(ctx, connect.NewRequest(&message{}))
	require.Equal(t, errcode.Canceled, fault.CodeOf(err))
}

func TestServerThatDisconnectsIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, ask := range []string{"/u", "/s"} {
		for name, protocol := range map[string]func(*testing.T, *httptest.Server) *httptest.Server{
			"HTTP/1.1": withoutTLS, "HTTP/2": func(_ *testing.T, same *httptest.Server) *httptest.Server { return same },
		} {
			t.Run(strings.Trim(ask, "/")+" "+name, func(t *testing.T) {
				t.Parallel()
				asked, over := make(chan struct{}), make(chan struct{})
				server := protocol(t, serve(t, io.Discard, func(string) error {
					close(asked)
					<-over
					return nil
				}))
				defer close(over)
				go func() {
					<-asked
					server.CloseClientConnections()
				}()
				var err error
				if ask == "/u" {
					_, err = client(server, ask).CallUnary(t.Context(), connect.NewRequest(&message{}))
				} else {
					stream, openErr := client(server, ask).CallServerStream(t.Context(), connect.NewRequest(&message{}))
					require.NoError(t, openErr)
					for stream.Receive() {
						continue
					}
					err = stream.Err()
					require.NoError(t, stream.Close())
				}
				require.Equal(t, errcode.Unavailable, fault.CodeOf(err), "%v", err)
			})
		}
	}
}

func TestResetConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	reset := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			// Without lingering, and with bytes unread, closing is a reset.
			err = errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close(), listener.Close())
		}
		reset <- err
	}()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	caller := connect.NewClient[message, message](
		&http.Client{Transport: transport},
		"http://"+listener.Addr().String()+"/u",
		connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler))),
	)
	_, err = caller.CallUnary(t.Context(), connect.NewRequest(&message{}))
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err), "%v", err)
	require.NoError(t, <-reset)
}

func TestForeignDetailsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, info := range map[string]*errdetails.ErrorInfo{
		"other domain": {Domain: "example.com", Reason: "NOT_FOUND"},
		"newer code":   {Domain: fault.Domain, Reason: "FROM_THE_FUTURE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rpc := connect.NewError(connect.CodeAborted, errors.New("x"))
			detail, err := connect.NewErrorDetail(info)
			require.NoError(t, err)
			rpc.AddDetail(detail)
			require.Equal(t, errcode.Conflict, fault.CodeOf(rpc))
		})
	}
}
