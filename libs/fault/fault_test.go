package fault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

// domainError implements Faulter.
type domainError struct{ fault *fault.Error }

func (domainError) Error() string         { return "domain: internals" }
func (d domainError) Fault() *fault.Error { return d.fault }

func TestFrom(t *testing.T) {
	t.Parallel()
	notFound := fault.New(errcode.NotFound, "workspace %d is not there", 7)
	boom := errors.New("password is sesame")
	var none *fault.Error
	for name, tc := range map[string]struct {
		err     error
		code    fault.Code
		message string
		exit    int
	}{
		"nil":             {nil, "", "", 0},
		"fault":           {notFound, errcode.NotFound, "workspace 7 is not there", 5},
		"wrapped":         {fmt.Errorf("get: %w", notFound), errcode.NotFound, "workspace 7 is not there", 5},
		"joined":          {errors.Join(boom, notFound), errcode.NotFound, "workspace 7 is not there", 5},
		"outermost wins":  {fault.Wrap(notFound, errcode.Conflict, "changed"), errcode.Conflict, "changed", 7},
		"faulter":         {fmt.Errorf("do: %w", domainError{notFound}), errcode.NotFound, "workspace 7 is not there", 5},
		"faulter without": {domainError{}, errcode.Internal, "internal error", 1},
		"nil fault":       {fmt.Errorf("x: %w", none), errcode.Internal, "internal error", 1},
		"canceled":        {fmt.Errorf("x: %w", context.Canceled), errcode.Canceled, "the call was canceled", 130},
		"deadline": {
			fmt.Errorf("x: %w", context.DeadlineExceeded),
			errcode.DeadlineExceeded,
			"the deadline of the call was exceeded",
			14,
		},
		"fault beats ctx": {
			fault.Wrap(context.Canceled, errcode.Unavailable, "stopping"), errcode.Unavailable, "stopping", 13,
		},
		"body limit": {
			fmt.Errorf("decode: %w", &http.MaxBytesError{Limit: 9}),
			errcode.PayloadTooLarge,
			"the request body is larger than 9 bytes",
			12,
		},
		"local Connect": {
			connect.NewError(connect.CodeInternal, boom), errcode.Internal, "internal error", 1,
		},
		"Connect validates": {
			connect.NewError(connect.CodeInvalidArgument, errors.New("bad page")), errcode.InvalidArgument, "bad page", 2,
		},
		"unknown":      {boom, errcode.Internal, "internal error", 1},
		"unregistered": {fault.New("from_the_future", "x"), "from_the_future", "x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.code, fault.CodeOf(tc.err))
			require.Equal(t, tc.exit, fault.ExitCode(tc.err))
			require.Equal(t, tc.err != nil, fault.Is(tc.err, tc.code))
			if tc.err == nil {
				require.Nil(t, fault.From(tc.err))
				return
			}
			require.Equal(t, tc.message, fault.From(tc.err).Message)
		})
	}
}

func TestCauseIsNotPublic(t *testing.T) {
	t.Parallel()
	boom := errors.New("sesame")
	e := fault.Wrap(boom, errcode.Unavailable, "the database is unavailable").With("retry", "later")
	require.ErrorIs(t, e, boom)
	require.Equal(t, "unavailable: the database is unavailable: sesame", e.Error(), "the log gets everything")
	raw, err := json.Marshal(e)
	require.NoError(t, err)
	require.JSONEq(t, `{"code":"unavailable","message":"the database is unavailable","details":{"retry":"later"}}`, string(raw))
	rpc := fault.ToConnect(fault.Public(t.Context(), slog.New(slog.DiscardHandler), e))
	require.NotContains(t, rpc.Error(), "sesame")

	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", logkey.Error(e))
	require.Contains(
		t, log.String(),
		`"error":{"code":"unavailable","message":"the database is unavailable","retry":"later","cause":"sesame"}`,
	)
}

func TestWithCopiesTheError(t *testing.T) {
	t.Parallel()
	one := fault.New(errcode.Conflict, "x").With("a", "1")
	two := one.With("b", "2")
	require.Equal(t, map[string]string{"a": "1"}, one.Details)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, two.Details)
}

func TestInternalFaultIsLoggedWithItsReference(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	public := fault.Public(t.Context(), logger, fmt.Errorf("query: %w", errors.New("sesame")))
	reference := public.Details[fault.DetailReference]
	require.NotEmpty(t, reference)
	require.Contains(t, public.Message, reference)
	require.NotContains(t, public.Message, "sesame")
	require.Contains(t, log.String(), reference)
	require.Contains(t, log.String(), "query: sesame")

	log.Reset()
	again := fault.Public(t.Context(), logger, fmt.Errorf("proxy: %w", public))
	require.Equal(t, reference, again.Details[fault.DetailReference], "a fault that passes through keeps its reference")
	require.Empty(t, log.String())

	require.Nil(t, fault.Public(t.Context(), logger, nil))
	future := fault.Public(t.Context(), logger, fault.New("from_the_future", "x"))
	require.Equal(t, errcode.Internal, future.Code, "only registered codes leave the process")
}

func TestEveryCodeIsMapped(t *testing.T) {
	t.Parallel()
	for _, entry := range errcode.All() {
		same, ok := errcode.Lookup(entry.Code)
		require.True(t, ok)
		require.Equal(t, entry, same)
		rpc := fault.ToConnect(fault.New(entry.Code, "x"))
		require.Equal(t, entry.Connect, rpc.Code().String(), entry.Code)
		require.Equal(t, entry.Code, fault.CodeOf(rpc))
		require.Equal(t, entry.Exit, fault.ExitCode(rpc))
	}
	_, ok := errcode.Lookup("nonsense")
	require.False(t, ok)
}

func TestConnectCodeWithoutDetailsMapsToTheNearestCode(t *testing.T) {
	t.Parallel()
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		got := fault.CodeOf(connect.NewError(code, errors.New("x")))
		entry, ok := errcode.Lookup(got)
		require.True(t, ok, "%s became %s", code, got)
		switch code {
		case connect.CodeUnknown, connect.CodeDataLoss:
			require.Equal(t, errcode.Internal, got)
		case connect.CodeOutOfRange:
			require.Equal(t, errcode.InvalidArgument, got)
		default:
			require.Equal(t, code.String(), entry.Connect)
		}
	}
	require.Equal(t, errcode.Internal, fault.CodeOf(connect.NewError(connect.Code(99), errors.New("x"))))
}
