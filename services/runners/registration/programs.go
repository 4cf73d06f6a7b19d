package registration

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/wire"
)

// Users finds the users of personal access tokens. Package personaltoken implements it.
type Users interface {
	Caller(ctx context.Context, token string) (access.Caller, error)
}

// Programs serves the programs that execute jobs, and programs of users. It implements [gitlab.Runners].
type Programs struct {
	service *Service
	users   Users
	// registrationToken is the hash of the token; registration is off without one.
	registrationToken [sha256.Size]byte
	registration      bool
}

var _ gitlab.Runners = (*Programs)(nil)

// NewPrograms returns the methods for programs. An empty registration token switches registration off.
func NewPrograms(service *Service, users Users, registrationToken string) *Programs {
	return &Programs{
		service: service, users: users, registration: registrationToken != "",
		registrationToken: sha256.Sum256([]byte(registrationToken)),
	}
}

// Verify implements [gitlab.Runners].
func (p *Programs) Verify(ctx context.Context, token, systemID string) (wire.Runner, error) {
	r, err := p.service.cfg.Registry.Authenticate(ctx, token)
	if err != nil {
		return wire.Runner{}, err
	}
	if _, err := p.service.cfg.Registry.Manager(ctx, r.ID, systemID, runner.Info{}, ""); err != nil {
		return wire.Runner{}, err
	}
	return wire.Runner{ID: r.ID, Token: token, TokenExpiresAt: optional(r.TokenExpiresAt)}, nil
}

// Register implements [gitlab.Runners]. It creates a runner of the instance.
func (p *Programs) Register(ctx context.Context, request wire.RegisterRequest) (wire.Runner, error) {
	if !p.registration {
		return wire.Runner{}, gitlab.ErrRegistrationOff
	}
	given := sha256.Sum256([]byte(request.Token))
	if subtle.ConstantTimeCompare(given[:], p.registrationToken[:]) != 1 {
		return wire.Runner{}, fault.New(errcode.PermissionDenied, "the registration token is not valid")
	}
	created, err := p.service.create(ctx, NewRunner{Type: runner.InstanceType, Settings: settings(request.Settings)}, 0, 0)
	return wireRunner(created), err
}

// Create implements [gitlab.Runners].
func (p *Programs) Create(
	ctx context.Context, userToken string, request wire.CreateRunnerRequest,
) (wire.Runner, error) {
	caller, err := p.users.Caller(ctx, userToken)
	if err != nil {
		return wire.Runner{}, err
	}
	created, err := p.service.Create(ctx, caller, NewRunner{
		Type: runner.Type(request.Type), GroupID: value(request.GroupID), ProjectID: value(request.ProjectID),
		Settings: settings(request.Settings),
	})
	return wireRunner(created), err
}

// ResetToken implements [gitlab.Runners].
func (p *Programs) ResetToken(ctx context.Context, token string) (wire.ResetToken, error) {
	for attempt := 1; ; attempt++ {
		known, err := p.service.cfg.Registry.Authenticate(ctx, token)
		if err != nil {
			return wire.ResetToken{}, err
		}
		r := *known
		fresh, err := p.service.issue(&r)
		if err != nil {
			return wire.ResetToken{}, err
		}
		r, err = p.service.cfg.Store.Update(ctx, r)
		// Also after a conflict, so that the next attempt sees the change that it met, which may be another reset.
		p.service.refresh(ctx, known.ID)
		switch {
		case err == nil:
			return wire.ResetToken{Token: fresh, TokenExpiresAt: optional(r.TokenExpiresAt)}, nil
		case fault.Is(err, errcode.NotFound):
			return wire.ResetToken{}, deleted(err, known.ID)
		case !fault.Is(err, errcode.Conflict) || attempt >= maxAttempts:
			return wire.ResetToken{}, err
		}
	}
}

// Delete implements [gitlab.Runners].
func (p *Programs) Delete(ctx context.Context, token string) error {
	r, err := p.service.cfg.Registry.Authenticate(ctx, token)
	if err != nil {
		return err
	}
	return deleted(p.service.delete(ctx, r.ID), r.ID)
}

// deleted returns permission_denied instead of not_found: the token of a runner that was deleted is void.
func deleted(err error, id int64) error {
	if fault.Is(err, errcode.NotFound) {
		return fault.Wrap(err, errcode.PermissionDenied, "runner %d was deleted", id)
	}
	return err
}

// DeleteManager implements [gitlab.Runners].
func (p *Programs) DeleteManager(ctx context.Context, token, systemID string) error {
	r, err := p.service.cfg.Registry.Authenticate(ctx, token)
	if err != nil {
		return err
	}
	if systemID == "" {
		return fault.New(errcode.InvalidArgument, "system_id is missing: it names the manager").With("field", "system_id")
	}
	err = p.service.cfg.Store.DeleteManager(ctx, r.ID, systemID)
	if err == nil {
		p.service.cfg.Registry.ForgetManager(r.ID, systemID)
	}
	return err
}

func settings(s wire.Settings) runner.Settings {
	return runner.Settings{
		Description: s.Description, MaintenanceNote: s.MaintenanceNote, Tags: s.TagList,
		RunUntagged: s.RunUntagged == nil || *s.RunUntagged, Locked: s.Locked, Paused: s.Paused,
		Protected: s.AccessLevel == wire.RefProtected, MaximumTimeout: time.Duration(s.MaximumTimeout) * time.Second,
	}
}

func wireRunner(i Issued) wire.Runner {
	return wire.Runner{ID: i.Runner.ID, Token: i.Token, TokenExpiresAt: optional(i.Runner.TokenExpiresAt)}
}

// optional returns nil for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func value(id *int64) int64 {
	if id == nil {
		return 0
	}
	return *id
}
