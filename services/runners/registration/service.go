package registration

import (
	"context"
	"log/slog"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

// Store stores runners. A change of a runner has the fault conflict if the runner has changed since it was read.
type Store interface {
	Create(ctx context.Context, r runner.Runner) (runner.Runner, error)
	Read(ctx context.Context, id int64) (runner.Runner, error)
	Update(ctx context.Context, r runner.Runner) (runner.Runner, error)
	Delete(ctx context.Context, id int64) error
	Managers(ctx context.Context, runnerIDs ...int64) ([]runner.Manager, error)
	LastContacts(ctx context.Context, runnerIDs ...int64) (map[int64]time.Time, error)
	DeleteManager(ctx context.Context, runnerID int64, systemID string) error
}

// Registry is the runners in memory. [runner.Registry] implements it.
type Registry interface {
	Authenticate(ctx context.Context, token string) (*runner.Runner, error)
	Manager(ctx context.Context, runnerID int64, systemID string, info runner.Info, address string) (int64, error)
	Refresh(ctx context.Context, ids ...int64) error
	ForgetManager(runnerID int64, systemID string)
	LastContact(runnerID int64) time.Time
	All() []*runner.Runner
}

// Directory has the roles of users and the places of groups and projects. [directory.Directory] implements it.
type Directory interface {
	Role(userID int64, scope directory.Scope) directory.Role
	Place(scope directory.Scope) (directory.Place, bool)
}

// Config of a service. All fields without a default are required.
type Config struct {
	Cell      topology.Cell
	Store     Store
	Registry  Registry
	Directory Directory
	Logger    *slog.Logger
	// TokenLifetime of new tokens; 0 means that they do not expire.
	TokenLifetime time.Duration
	// Now defaults to [time.Now].
	Now func() time.Time
}

// Service manages runners for people. Errors are faults. It is safe for concurrent use.
type Service struct{ cfg Config }

// New returns a service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg}
}

// NewRunner describes a runner to create.
type NewRunner struct {
	Type runner.Type
	// GroupID of a runner of a group, ProjectID of the project that owns a runner of projects; else 0.
	GroupID, ProjectID int64
	Settings           runner.Settings
}

// Issued is a runner with its token, which is shown once.
type Issued struct {
	Runner runner.Runner
	Token  string
}

// Create creates a runner.
func (s *Service) Create(ctx context.Context, caller access.Caller, request NewRunner) (Issued, error) {
	if caller.UserID <= 0 {
		return Issued{}, fault.New(errcode.Unauthenticated, "only a user creates a runner this way")
	}
	organization, err := s.mayCreate(caller, request)
	if err != nil {
		return Issued{}, err
	}
	return s.create(ctx, request, organization, caller.UserID)
}

// create creates a runner; createdBy is 0 for none.
func (s *Service) create(ctx context.Context, request NewRunner, organization, createdBy int64) (Issued, error) {
	r := runner.Runner{
		Type: request.Type, OrganizationID: organization, GroupID: request.GroupID,
		Settings: request.Settings.Normalized(), CreatedBy: createdBy, CreatedAt: s.now(),
	}
	if request.ProjectID != 0 {
		r.ProjectIDs = []int64{request.ProjectID}
	}
	if err := r.Validate(); err != nil {
		return Issued{}, err
	}
	token, err := s.issue(&r)
	if err != nil {
		return Issued{}, err
	}
	if r, err = s.cfg.Store.Create(ctx, r); err != nil {
		return Issued{}, err
	}
	s.refresh(ctx, r.ID)
	return Issued{Runner: r, Token: token}, nil
}

// typeNumbers are those of GitLab's API.
func typeNumbers() map[runner.Type]int64 {
	return map[runner.Type]int64{runner.InstanceType: 1, runner.GroupType: 2, runner.ProjectType: 3}
}

// issue gives the runner a new token.
func (s *Service) issue(r *runner.Runner) (token string, err error) {
	token, hash, err := runner.NewToken(routable.Payload{
		Cell: s.cfg.Cell, Organization: r.OrganizationID, Group: r.GroupID, Project: r.OwnerProject(),
		Type: typeNumbers()[r.Type], User: r.CreatedBy,
	})
	if err != nil {
		return "", fault.Wrap(err, errcode.Internal, "make the token of a runner")
	}
	var expires time.Time
	if s.cfg.TokenLifetime > 0 {
		expires = s.now().Add(s.cfg.TokenLifetime)
	}
	*r = r.WithToken(hash, expires)
	return token, nil
}

// now returns the time as it is stored.
func (s *Service) now() time.Time { return s.cfg.Now().UTC().Truncate(time.Millisecond) }

// refreshTimeout is how long a change that is stored may take to be effective on this replica, before the registry does
// it alone.
const refreshTimeout = 5 * time.Second

// refresh makes a stored change effective on this replica, also when the request has ended.
func (s *Service) refresh(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	if err := s.cfg.Registry.Refresh(ctx, id); err != nil {
		s.cfg.Logger.WarnContext(ctx, "the stored change of a runner is effective a moment later",
			slog.Int64(logkey.RunnerID, id), logkey.Error(err))
	}
}

// maxAttempts of a change that meets others.
const maxAttempts = 5

// change reads a runner, checks that the caller manages it, and stores what edit makes of it. It starts again if the
// runner has changed meanwhile. revision is the one that the caller has read; 0 for any.
func (s *Service) change(
	ctx context.Context, caller access.Caller, id, revision int64, edit func(r *runner.Runner) error,
) (runner.Runner, error) {
	for attempt := 1; ; attempt++ {
		r, err := s.managed(ctx, caller, id)
		if err != nil {
			return runner.Runner{}, err
		}
		if revision != 0 && revision != r.Revision {
			return runner.Runner{}, fault.New(errcode.Conflict,
				"runner %d has revision %d, not %d: read it again", id, r.Revision, revision)
		}
		if err := edit(&r); err != nil {
			return runner.Runner{}, err
		}
		r, err = s.cfg.Store.Update(ctx, r)
		if fault.Is(err, errcode.Conflict) && attempt < maxAttempts {
			continue
		}
		if err != nil {
			return runner.Runner{}, err
		}
		s.refresh(ctx, id)
		return r, nil
	}
}

// managed returns the runner if the caller manages it.
func (s *Service) managed(ctx context.Context, caller access.Caller, id int64) (runner.Runner, error) {
	r, err := s.cfg.Store.Read(ctx, id)
	if err != nil {
		return runner.Runner{}, err
	}
	return r, s.mayManage(caller, &r)
}

// Update changes settings. revision is the one that the caller has read; 0 for any.
func (s *Service) Update(
	ctx context.Context, caller access.Caller, id, revision int64, edit func(*runner.Settings),
) (runner.Runner, error) {
	return s.change(ctx, caller, id, revision, func(r *runner.Runner) error {
		edit(&r.Settings)
		r.Settings = r.Normalized()
		return r.Validate()
	})
}

// SetPaused pauses or continues the runner. Its running jobs go on.
func (s *Service) SetPaused(ctx context.Context, caller access.Caller, id int64, paused bool) (runner.Runner, error) {
	return s.Update(ctx, caller, id, 0, func(settings *runner.Settings) { settings.Paused = paused })
}

// ResetToken gives the runner a new token. The old one is void.
func (s *Service) ResetToken(ctx context.Context, caller access.Caller, id int64) (Issued, error) {
	var token string
	r, err := s.change(ctx, caller, id, 0, func(r *runner.Runner) (err error) {
		token, err = s.issue(r)
		return err
	})
	if err != nil {
		return Issued{}, err
	}
	return Issued{Runner: r, Token: token}, nil
}

// Delete deletes the runner. Its token is void.
func (s *Service) Delete(ctx context.Context, caller access.Caller, id int64) error {
	if _, err := s.managed(ctx, caller, id); err != nil {
		return err
	}
	return s.delete(ctx, id)
}

func (s *Service) delete(ctx context.Context, id int64) error {
	if err := s.cfg.Store.Delete(ctx, id); err != nil {
		return err
	}
	s.refresh(ctx, id)
	return nil
}

// Link links a runner of projects to one more project of its organization, of which the caller is a maintainer, too.
func (s *Service) Link(ctx context.Context, caller access.Caller, id, projectID int64) (runner.Runner, error) {
	return s.change(ctx, caller, id, 0, func(r *runner.Runner) error {
		if err := s.mayLink(caller, r, projectID); err != nil {
			return err
		}
		*r = r.WithProject(projectID)
		return nil
	})
}

// Unlink removes the link to a project other than the one that owns the runner.
func (s *Service) Unlink(ctx context.Context, caller access.Caller, id, projectID int64) (runner.Runner, error) {
	return s.change(ctx, caller, id, 0, func(r *runner.Runner) error {
		unlinked := r.WithoutProject(projectID)
		switch {
		case len(unlinked.ProjectIDs) == len(r.ProjectIDs):
			return fault.New(errcode.NotFound, "runner %d is not linked to project %d", id, projectID)
		case r.OwnerProject() == projectID:
			return fault.New(errcode.FailedPrecondition, "project %d owns runner %d: delete the runner instead", projectID, id)
		}
		*r = unlinked
		return nil
	})
}
