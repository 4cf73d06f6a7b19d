package registry

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

const (
	// Username of jobs.
	Username = "gitlab-ci-token"
	// Lifetime of a token. Clients ask for another one after it.
	Lifetime = 5 * time.Minute
	// clockOffset is how far the clock of the registry may be behind.
	clockOffset = 10 * time.Second
)

// Jobs knows the jobs that are running.
type Jobs interface {
	// Registry returns the rights of the job that has this token. A token that is not valid, or whose job has ended, is
	// the fault unauthenticated.
	Registry(ctx context.Context, token string) (claims jobtoken.Claims, rights Rights, err error)
}

// Config of the handler. All fields are required.
type Config struct {
	Jobs Jobs
	// Issuer is the name of this endpoint in the configuration of the registry.
	Issuer string
	// Service is the name of the registry: the audience of the tokens.
	Service string
	// Key returns the present signing key and its id.
	Key    func() (id string, key ed25519.PrivateKey)
	Now    func() time.Time
	Logger *slog.Logger
}

// NewHandler returns the handler of GET /jwt/auth.
func NewHandler(cfg Config) http.Handler {
	return fault.Handler(cfg.Logger, cfg.serve)
}

// answer is the message of Docker's token authentication. Old clients read token, others access_token.
type answer struct {
	Token       string    `json:"token"`
	AccessToken string    `json:"access_token"`
	ExpiresIn   int64     `json:"expires_in"`
	IssuedAt    time.Time `json:"issued_at"`
}

// claims of a token.
type claims struct {
	jwt.RegisteredClaims

	Access []Access `json:"access"`
}

func (c Config) serve(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	scopes := query["scope"]
	if len(scopes) > MaxScopes {
		return fault.New(errcode.InvalidArgument, "scope: at most %d", MaxScopes)
	}
	requested := make([]Access, 0, len(scopes))
	for _, scope := range scopes {
		a, err := ParseScope(scope)
		if err != nil {
			return err
		}
		requested = append(requested, a)
	}
	if query.Get("service") != c.Service {
		return fault.New(errcode.InvalidArgument, "service: tokens are given for %s only", c.Service)
	}
	user, token, found := r.BasicAuth()
	if !found || user != Username || !jobtoken.Is(token) || len(token) > jobtoken.MaxLength {
		return unauthenticated(w, fault.New(errcode.Unauthenticated,
			"log in as %s with the token of a running job (CI_JOB_TOKEN)", Username))
	}
	job, rights, err := c.Jobs.Registry(r.Context(), token)
	if err != nil {
		return unauthenticated(w, err)
	}
	if !job.ExpiresAt.After(c.Now()) {
		return unauthenticated(w, fault.New(errcode.Unauthenticated, "the token of the job has expired"))
	}
	rights.Pull = rights.Pull && job.Permits(jobtoken.ScopeRegistryPull)
	rights.Push = rights.Push && job.Permits(jobtoken.ScopeRegistryPush)
	return c.write(w, r, job, rights.Grant(requested))
}

// unauthenticated asks for credentials if the error is about them.
func unauthenticated(w http.ResponseWriter, err error) error {
	if fault.Is(err, errcode.Unauthenticated) {
		w.Header().Set("WWW-Authenticate", `Basic realm="job token"`)
	}
	return err
}

func (c Config) write(w http.ResponseWriter, r *http.Request, job jobtoken.Claims, granted []Access) error {
	now := c.Now().UTC().Truncate(time.Second)
	expires := now.Add(Lifetime)
	if job.ExpiresAt.Before(expires) {
		expires = job.ExpiresAt
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: c.Issuer, Subject: "job:" + strconv.FormatInt(job.JobID, 10), Audience: jwt.ClaimStrings{c.Service},
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now.Add(-clockOffset)),
			ExpiresAt: jwt.NewNumericDate(expires), ID: uuid.NewString(),
		},
		Access: granted,
	})
	id, key := c.Key()
	token.Header["kid"] = id
	signed, err := token.SignedString(key)
	if err != nil {
		return fmt.Errorf("sign a registry token: %w", err)
	}
	if err := wire.WriteJSON(w, http.StatusOK, answer{
		Token: signed, AccessToken: signed, ExpiresIn: int64(expires.Sub(now) / time.Second), IssuedAt: now,
	}); err != nil {
		c.Logger.DebugContext(r.Context(), "registry token not written: the client disconnected", logkey.Error(err))
	}
	return nil
}
