package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/callback"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/deliver"
	"lockstep.internal/services/admission/jobtoken"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/postgres"
)

// Pattern of [http.ServeMux] under which the handler of [NewHandler] is mounted.
const Pattern = jobtoken.Path + "/"

// Directory has projects and users. [directory.Directory] implements it.
type Directory interface {
	Place(scope directory.Scope) (directory.Place, bool)
	User(id int64) (directory.User, bool)
	Memberships(userID int64) []directory.Membership
}

// Runners has the runners of the cell.
type Runners interface {
	Of(projectID int64, groups []int64, protected bool) []events.RunnerChanged
}

// Config of the handler. All fields are required.
type Config struct {
	Jobs      postgres.Jobs
	Decider   *decide.Decider
	Directory Directory
	Runners   Runners
	Logger    *slog.Logger
	Now       func() time.Time
}

// NewHandler returns the handler for controllers.
func NewHandler(cfg Config) http.Handler {
	h := &handler{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+jobtoken.Path+"/callbacks/{job}/{controller}/{attempt}", func(
		w http.ResponseWriter, r *http.Request,
	) {
		if status, err := h.callback(r); err != nil {
			fault.WriteHTTPStatus(w, r, cfg.Logger, status, libpostgres.Unavailable(r.Context(), err))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	for name, read := range map[string]func(j decide.Job) any{
		"job": h.job, "project": h.project, "user": h.user, "memberships": h.memberships, "runners": h.runners,
	} {
		serve := func(w http.ResponseWriter, r *http.Request) error {
			j, err := h.authenticate(r)
			if err != nil {
				return libpostgres.Unavailable(r.Context(), err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			return json.MarshalWrite(w, read(j), json.Deterministic(true))
		}
		mux.Handle("GET "+jobtoken.Path+"/"+name, fault.Handler(cfg.Logger, serve))
	}
	return mux
}

type handler struct{ Config }

func bearer(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

func subjectOf(r *http.Request) (callback.Subject, bool) {
	job, err := strconv.ParseInt(r.PathValue("job"), 10, 64)
	controller, err2 := strconv.ParseInt(r.PathValue("controller"), 10, 64)
	attempt, err3 := strconv.ParseInt(r.PathValue("attempt"), 10, 32)
	return callback.Subject{JobID: job, ControllerID: controller, Attempt: int(attempt)},
		errors.Join(err, err2, err3) == nil
}

// callback applies a later answer. It returns the status of an error.
func (h *handler) callback(r *http.Request) (int, error) {
	subject, ok := subjectOf(r)
	if !ok {
		return unauthenticated(callback.ErrInvalid)
	}
	attempt, err := h.use(r.Context(), subject, bearer(r))
	switch {
	case errors.Is(err, callback.ErrInvalid):
		return unauthenticated(err)
	case errors.Is(err, callback.ErrUsed):
		return used()
	case errors.Is(err, callback.ErrExpired):
		return gone()
	case err != nil:
		return http.StatusInternalServerError, err
	}
	answer, err := payload.ReadAnswer(r.Header.Get("Content-Type"), r.Body, subject.JobID)
	if err != nil {
		return http.StatusUnprocessableEntity, fault.Wrap(err, errcode.InvalidArgument,
			"the answer is not valid: %v; correct it and send it again with the same token", err)
	}
	result := "rejected by a callback"
	if answer.Accepted {
		result = "accepted by a callback"
	}
	now := h.Now()
	err = deliver.Apply(r.Context(), h.Jobs, h.Decider, deliver.Input{
		JobID: subject.JobID, At: now, MustChange: true, With: postgres.UseToken(attempt.ID, result, now),
		Input: chain.Answered{Question: attempt.Question, Answer: answer},
	})
	switch {
	case errors.Is(err, callback.ErrUsed):
		return used()
	case errors.Is(err, deliver.ErrUnchanged):
		return gone()
	case err != nil:
		return http.StatusInternalServerError, err
	}
	return http.StatusNoContent, nil
}

func unauthenticated(err error) (int, error) {
	return http.StatusUnauthorized, fault.New(errcode.Unauthenticated, "%v", err)
}

func used() (int, error) {
	return http.StatusConflict, fault.New(errcode.Conflict, "%v", callback.ErrUsed)
}

func gone() (int, error) {
	return http.StatusGone, fault.New(errcode.FailedPrecondition, "%v", callback.ErrExpired)
}

// use finds the request with a token. The token is used when the answer is stored.
func (h *handler) use(ctx context.Context, subject callback.Subject, text string) (postgres.Attempt, error) {
	attempts, err := h.Jobs.AttemptsOf(ctx, subject)
	if err != nil {
		return postgres.Attempt{}, err
	}
	for _, a := range attempts {
		stored, has := a.Token()
		if !has {
			continue
		}
		if _, err := stored.Use(text, subject, h.Now()); !errors.Is(err, callback.ErrInvalid) {
			return a, err
		}
	}
	return postgres.Attempt{}, callback.ErrInvalid
}

var errToken = fault.New(errcode.Unauthenticated,
	"the token is not valid: use that of the header "+deliver.HeaderJobToken+", before the time to answer has passed")

// authenticate returns the job of a read token.
func (h *handler) authenticate(r *http.Request) (decide.Job, error) {
	hash, ok := jobtoken.Parse(bearer(r))
	if !ok {
		return decide.Job{}, errToken
	}
	attempt, err := h.Jobs.AttemptByReadHash(r.Context(), hash[:])
	if errors.Is(err, postgres.ErrNoAttempt) {
		return decide.Job{}, errToken
	}
	if err != nil {
		return decide.Job{}, err
	}
	j, found, err := h.Jobs.Get(r.Context(), attempt.JobID)
	if err == nil && (!found || !j.InRound(attempt.Question) || !h.Now().Before(attempt.ExpiresAt)) {
		err = errToken
	}
	return j, err
}
