package personaltoken_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/runners/personaltoken"
)

// tokens is the method of the state service that the package calls: services do not import each other.
type tokens struct {
	statev1connect.UnimplementedTokenServiceHandler

	err error
}

func (s tokens) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	if s.err != nil {
		return nil, s.err
	}
	return connect.NewResponse(&statev1.ExchangeTokenResponse{
		AccessToken: r.Header().Get("Authorization") + " for " + r.Msg.GetAudience()[0],
	}), nil
}

func TestStateExchangesTheToken(t *testing.T) {
	t.Parallel()
	for code, want := range map[fault.Code]fault.Code{
		"": "", errcode.Unauthenticated: errcode.Unauthenticated, errcode.PermissionDenied: errcode.PermissionDenied,
		errcode.ResourceExhausted: errcode.ResourceExhausted, errcode.Unavailable: errcode.Unavailable,
		errcode.Internal: errcode.Unavailable, errcode.Unimplemented: errcode.Unavailable,
	} {
		var err error
		if code != "" {
			err = fault.New(code, "refused")
		}
		mux := http.NewServeMux()
		mux.Handle(statev1connect.NewTokenServiceHandler(tokens{err: err},
			connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))))
		server := httptest.NewServer(mux)
		state := personaltoken.NewState(server.Client(), server.URL, "runners")
		token, err := state.Exchange(t.Context(), "lsp_x")
		require.Equal(t, want, fault.CodeOf(err), code)
		if want == "" {
			require.Equal(t, "Bearer lsp_x for runners", token)
		} else {
			require.NotContains(t, err.Error(), "lsp_x")
		}
		server.Close()
		_, err = state.Exchange(t.Context(), "lsp_x")
		require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
		server.Client().CloseIdleConnections()
	}
}
