package arrival

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
)

// Users finds the users of personal access tokens; a [personaltoken.Authenticator].
type Users interface {
	Caller(ctx context.Context, token string) (access.Caller, error)
}

// State is the state service of this cell; a [rpc.State].
type State interface {
	Import(ctx context.Context, token string, m move.Move, next func() ([]*statev1.MoveRecord, error)) error
	EndArrival(ctx context.Context, token string, request *statev1.EndMoveRequest) error
}

// Objects is the store of the content of artifacts, which records each key before it has content.
type Objects = artifact.Store

// Config of the handler, all required.
type Config struct {
	Cell    topology.Cell
	Store   postgres.Arrivals
	State   State
	Users   Users
	Objects Objects
	// Sizes limit the content of artifacts.
	Sizes  artifact.Sizes
	Bounds artifact.Bounds
	Logger *slog.Logger
	// Interceptors run before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// Pattern of [http.ServeMux] under which the handler is mounted.
func Pattern() string { return "/" + runnersv1connect.ArrivalServiceName + "/" }

// maxRequest limits a message, in bytes: definitions of jobs are the largest.
const maxRequest = 8 << 20

// NewHandler returns the handler of the ArrivalService.
func NewHandler(cfg Config) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(cfg.Logger)}, cfg.Interceptors...)
	interceptors = append(interceptors, libpostgres.UnavailableInterceptor())
	_, calls := runnersv1connect.NewArrivalServiceHandler(&service{cfg: cfg},
		connect.WithInterceptors(interceptors...), connect.WithReadMaxBytes(maxRequest))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := authenticate(r.Context(), cfg.Users, r.Header.Get("Authorization"))
		if err != nil {
			fault.WriteConnect(w, r, cfg.Logger, err)
			return
		}
		calls.ServeHTTP(w, r.WithContext(ctx))
	})
}

type tokenKey struct{}

// authenticate returns a context with the token and its user, who must be an administrator.
func authenticate(ctx context.Context, users Users, header string) (context.Context, error) {
	token, found := strings.CutPrefix(header, "Bearer ")
	if !found {
		return nil, fault.New(errcode.Unauthenticated,
			"send the personal access token of an administrator in the header Authorization: Bearer")
	}
	caller, err := users.Caller(ctx, token)
	if err != nil {
		return nil, err
	}
	if !caller.Admin || !caller.Scope.Includes(access.ScopeAdmin) {
		return nil, fault.New(errcode.PermissionDenied,
			"only an administrator of this cell receives an organization, with a token of the scope admin")
	}
	return context.WithValue(access.WithCaller(ctx, caller), tokenKey{}, token), nil
}

// tokenOf returns the token of the caller.
func tokenOf(ctx context.Context) string {
	token, _ := ctx.Value(tokenKey{}).(string)
	return token
}
