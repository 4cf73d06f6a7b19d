package execution

import (
	"context"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/registry"
)

// Registry tells the container registry which jobs are running.
type Registry struct {
	Jobs *Jobs
	// Path returns the full path of a project, such as group/project, and false if it is not known.
	Path func(projectID int64) (string, bool)
}

var _ registry.Jobs = Registry{}

// Registry implements [registry.Jobs]. A project that is not known gives no rights.
func (g Registry) Registry(ctx context.Context, token string) (jobtoken.Claims, registry.Rights, error) {
	claims, err := g.Jobs.cfg.Tokens.Authentic(ctx, token)
	if err == nil {
		err = g.alive(ctx, gitlab.JobRef{ID: claims.JobID, Token: token})
	}
	switch {
	case fault.Is(err, errcode.PermissionDenied), fault.Is(err, errcode.NotFound):
		return jobtoken.Claims{}, registry.Rights{}, fault.Wrap(err, errcode.Unauthenticated,
			"the token is not that of a running job")
	case err != nil:
		return jobtoken.Claims{}, registry.Rights{}, err
	}
	path, _ := g.Path(claims.ProjectID)
	return claims, registry.Rights{Path: path, Pull: path != "", Push: path != ""}, nil
}

// alive checks that a runner has the job. The scopes of the registry are checked by its handler.
func (g Registry) alive(ctx context.Context, ref gitlab.JobRef) error {
	r, err := g.Jobs.request(ctx, ref)
	if err != nil {
		return err
	}
	s, _, err := g.Jobs.read(ctx, ref, r)
	if err != nil {
		return err
	}
	return r.authorize(s, jobtoken.ScopeUpdate)
}
