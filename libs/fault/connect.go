package fault

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

// Domain is the domain of the google.rpc.ErrorInfo of faults on Connect and gRPC. Its reason is the code in upper
// case, as that message requires, and its metadata are the details.
const Domain = "lockstep.dev"

// NewInterceptor returns the interceptor that maps errors on both sides of Connect: on a handler to
// a Connect error with details, on a client back to an *Error. Put it first, so that errors of the
// other interceptors are mapped too. The logger receives internal faults of handlers.
func NewInterceptor(logger *slog.Logger) connect.Interceptor { return &interceptor{logger: logger} }

type interceptor struct{ logger *slog.Logger }

func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		if err == nil {
			return response, nil
		}
		if request.Spec().IsClient {
			return response, received(err)
		}
		return nil, i.sent(ctx, err)
	}
}

func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return i.sent(ctx, next(ctx, conn))
	}
}

func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return clientConn{next(ctx, spec)}
	}
}

func (i *interceptor) sent(ctx context.Context, err error) error {
	if err == nil || connect.IsNotModifiedError(err) {
		return err
	}
	return ToConnect(Public(ctx, i.logger, err))
}

// clientConn converts errors of a stream to faults, except io.EOF, which is the protocol's end of stream.
type clientConn struct{ connect.StreamingClientConn }

func (c clientConn) Send(message any) error { return received(c.StreamingClientConn.Send(message)) }
func (c clientConn) Receive(message any) error {
	return received(c.StreamingClientConn.Receive(message))
}
func (c clientConn) CloseRequest() error  { return received(c.StreamingClientConn.CloseRequest()) }
func (c clientConn) CloseResponse() error { return received(c.StreamingClientConn.CloseResponse()) }

func received(err error) error {
	if err == nil || errors.Is(err, io.EOF) || connect.IsNotModifiedError(err) {
		return err
	}
	return From(err)
}

var errorWriter = connect.NewErrorWriter()

// WriteConnect answers a request of Connect, gRPC or gRPC-Web with err, without reading its body: for HTTP handlers
// around those of Connect. Internal faults are logged with their reference.
func WriteConnect(w http.ResponseWriter, r *http.Request, logger *slog.Logger, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if writeErr := errorWriter.Write(w, r, ToConnect(Public(r.Context(), logger, err))); writeErr != nil {
		logger.DebugContext(r.Context(), "response not written: the client disconnected", logkey.Error(writeErr))
	}
}

// ToConnect converts e to a Connect error. Call [Public] first. It returns nil for nil.
func ToConnect(e *Error) *connect.Error {
	if e == nil {
		return nil
	}
	rpc := connect.NewError(connectCode(e.Code), errors.New(e.Message))
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{
		Reason:   strings.ToUpper(string(e.Code)),
		Domain:   Domain,
		Metadata: e.Details,
	})
	// A detail fails to marshal only for text that is not UTF-8; the code and message remain.
	if err == nil {
		rpc.AddDetail(detail)
	}
	return rpc
}

// fromConnect keeps the message of a received error. It hides the message of local errors of code internal or
// unknown.
func fromConnect(rpc *connect.Error) *Error {
	for _, detail := range rpc.Details() {
		message, err := detail.Value()
		if err != nil {
			continue
		}
		info, ok := message.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		if code := Code(strings.ToLower(info.GetReason())); known(code) {
			return &Error{Code: code, Message: rpc.Message(), Details: info.GetMetadata(), cause: rpc}
		}
	}
	code := codeOfConnect(rpc.Code())
	switch {
	case connect.IsWireError(rpc):
		return Wrap(rpc, code, "%s", rpc.Message())
	case isConnectionLost(rpc):
		return Wrap(
			rpc, errcode.Unavailable,
			"the connection was lost before the response was complete; the call may have taken effect",
		)
	case code == errcode.Internal:
		return Wrap(rpc, code, internalMessage)
	default:
		return Wrap(rpc, code, "%s", rpc.Message())
	}
}

// isConnectionLost reports whether the peer closed the connection during a call. Connect reports that as a protocol
// error or, when the connection is reset, as a canceled call.
func isConnectionLost(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false // the local side canceled
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func known(code Code) bool {
	_, ok := errcode.Lookup(code)
	return ok
}

func connectCode(code Code) connect.Code {
	var c connect.Code
	if err := c.UnmarshalText([]byte(lookup(code).Connect)); err != nil {
		return connect.CodeInternal
	}
	return c
}

func codeOfConnect(code connect.Code) Code {
	switch code {
	case connect.CodeCanceled:
		return errcode.Canceled
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return errcode.InvalidArgument
	case connect.CodeDeadlineExceeded:
		return errcode.DeadlineExceeded
	case connect.CodeNotFound:
		return errcode.NotFound
	case connect.CodeAlreadyExists:
		return errcode.AlreadyExists
	case connect.CodePermissionDenied:
		return errcode.PermissionDenied
	case connect.CodeResourceExhausted:
		return errcode.ResourceExhausted
	case connect.CodeFailedPrecondition:
		return errcode.FailedPrecondition
	case connect.CodeAborted:
		return errcode.Conflict
	case connect.CodeUnimplemented:
		return errcode.Unimplemented
	case connect.CodeUnavailable:
		return errcode.Unavailable
	case connect.CodeUnauthenticated:
		return errcode.Unauthenticated
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
		return errcode.Internal
	default:
		return errcode.Internal
	}
}
