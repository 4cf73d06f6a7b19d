package api

import (
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
	"lockstep.internal/services/admission/postgres"
)

// maxRequest is the maximum size of an uncompressed request in bytes.
const maxRequest = 1 << 20

// Dependencies of the API, all required.
type Dependencies struct {
	Controllers postgres.Controllers
	Jobs        postgres.Jobs
	// Access authenticates callers by their tokens. Directory has their roles.
	Access    Access
	Directory Directory
	// Key seals signing secrets.
	Key    seal.Key
	Logger *slog.Logger
	// Interceptors run before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// Access authenticates callers; an [access.Verifier].
type Access interface {
	Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler
	Interceptor() connect.Interceptor
}

// Directory has places and roles. [directory.Directory] implements it.
type Directory interface {
	Role(userID int64, scope directory.Scope) directory.Role
	Place(scope directory.Scope) (directory.Place, bool)
}

// Patterns of [http.ServeMux] under which the handler of [NewHandler] is mounted.
func Patterns() []string {
	return []string{
		"/" + admissionv1connect.ControllerServiceName + "/",
		"/" + admissionv1connect.DecisionServiceName + "/",
	}
}

// NewHandler returns the handler of the API. Its scopes are those of [Scopes], which d.Access must have.
func NewHandler(d Dependencies) http.Handler {
	limits := apirequest.Limits{
		Text: policy.MaxBytes, Entries: payload.MaxVariables, Timeout: apirequest.DefaultTimeout, Advice: "retry later",
	}
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	interceptors = append(interceptors, libpostgres.UnavailableInterceptor(), d.Access.Interceptor(), limits.Interceptor())
	options := connect.WithHandlerOptions(connect.WithInterceptors(interceptors...), connect.WithReadMaxBytes(maxRequest))
	allowed := permissions{d.Directory}
	mux := http.NewServeMux()
	mux.Handle(admissionv1connect.NewControllerServiceHandler(&controllerService{
		controllers: d.Controllers, allowed: allowed, key: d.Key,
	}, options))
	mux.Handle(admissionv1connect.NewDecisionServiceHandler(&decisionService{jobs: d.Jobs, allowed: allowed}, options))
	return d.Access.Handler(func(w http.ResponseWriter, r *http.Request, err error) {
		fault.WriteConnect(w, r, d.Logger, err)
	}, mux)
}
