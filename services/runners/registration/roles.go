package registration

import (
	"slices"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

func projectScope(id int64) directory.Scope {
	return directory.Scope{Kind: directory.Project, ID: id}
}

func groupScope(id int64) directory.Scope { return directory.Scope{Kind: directory.Group, ID: id} }

// requireRole returns nil if the user has at minimum this role in the scope. Without any role, the scope does not exist
// for the user.
func (s *Service) requireRole(caller access.Caller, scope directory.Scope, minimum directory.Role) error {
	if caller.Admin {
		return nil
	}
	role := s.cfg.Directory.Role(caller.UserID, scope)
	switch {
	case directory.Includes(role, minimum):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "%s %d does not exist", scope.Kind, scope.ID)
	default:
		return fault.New(errcode.PermissionDenied, "user %d has the role %s in %s %d, and this needs the role %s",
			caller.UserID, role, scope.Kind, scope.ID, minimum)
	}
}

// mayCreate checks the owner of a new runner and the role of the caller. It returns the organization of the owner.
func (s *Service) mayCreate(caller access.Caller, request NewRunner) (organization int64, err error) {
	if err := request.checkOwner(); err != nil {
		return 0, err
	}
	if request.Type == runner.InstanceType {
		return 0, mayCreateForInstance(caller)
	}
	scope, minimum := groupScope(request.GroupID), directory.RoleOwner
	if request.Type == runner.ProjectType {
		scope, minimum = projectScope(request.ProjectID), directory.RoleMaintainer
	}
	if err := caller.Scope.Require(access.ScopeWrite, "a new runner"); err != nil {
		return 0, err
	}
	if err := s.requireRole(caller, scope, minimum); err != nil {
		return 0, err
	}
	place, found := s.cfg.Directory.Place(scope)
	if !found {
		return 0, fault.New(errcode.NotFound, "%s %d does not exist", scope.Kind, scope.ID)
	}
	return place.Organization, nil
}

func mayCreateForInstance(caller access.Caller) error {
	if !caller.Admin {
		return fault.New(errcode.PermissionDenied,
			"user %d is not an administrator of this cell, who create runners of the instance", caller.UserID)
	}
	return caller.Scope.Require(access.ScopeAdmin, "a new runner of the instance")
}

// checkOwner checks that the type has its owner, and no other one.
func (n NewRunner) checkOwner() error {
	if !slices.Contains(runner.Types(), n.Type) {
		return fault.New(errcode.InvalidArgument, "runner_type %q is unknown: use instance_type, group_type or project_type",
			n.Type).With("field", "runner_type")
	}
	for _, owner := range []struct {
		field string
		of    runner.Type
		id    int64
	}{{"group_id", runner.GroupType, n.GroupID}, {"project_id", runner.ProjectType, n.ProjectID}} {
		switch {
		case n.Type == owner.of && owner.id <= 0:
			return fault.New(errcode.InvalidArgument, "%s is missing: a runner of the type %s has one", owner.field, n.Type).
				With("field", owner.field)
		case n.Type != owner.of && owner.id != 0:
			return fault.New(errcode.InvalidArgument, "%s is not possible for a runner of the type %s", owner.field, n.Type).
				With("field", owner.field)
		}
	}
	return nil
}

// sees reports whether the caller may know that the runner exists: everyone may know runners of the instance.
func (s *Service) sees(caller access.Caller, r *runner.Runner) bool {
	reads := func(scope directory.Scope) bool {
		return directory.Includes(s.cfg.Directory.Role(caller.UserID, scope), directory.RoleReader)
	}
	switch {
	case caller.Admin:
		return true
	case r.Type == runner.InstanceType:
		return caller.UserID > 0
	case r.Type == runner.GroupType:
		return reads(groupScope(r.GroupID))
	default:
		return slices.ContainsFunc(r.ProjectIDs, func(id int64) bool { return reads(projectScope(id)) })
	}
}

// maySee returns the fault not_found if the caller may not know the runner.
func (s *Service) maySee(caller access.Caller, r *runner.Runner) error {
	if s.sees(caller, r) {
		return nil
	}
	return fault.New(errcode.NotFound, "runner %d does not exist", r.ID)
}

// mayManage returns nil if the caller may change and delete the runner.
func (s *Service) mayManage(caller access.Caller, r *runner.Runner) error {
	if err := s.maySee(caller, r); err != nil || caller.Admin {
		return err
	}
	refused := func(who string) error {
		return fault.New(errcode.PermissionDenied, "user %d may not manage runner %d: that is for %s",
			caller.UserID, r.ID, who)
	}
	has := func(scope directory.Scope, minimum directory.Role) bool {
		return directory.Includes(s.cfg.Directory.Role(caller.UserID, scope), minimum)
	}
	switch {
	case r.Type == runner.GroupType && !has(groupScope(r.GroupID), directory.RoleOwner):
		return refused("owners of its group")
	case r.Type == runner.ProjectType && !has(projectScope(r.OwnerProject()), directory.RoleMaintainer):
		return refused("maintainers of the project that owns it")
	case r.Type == runner.InstanceType:
		return refused("administrators of the cell")
	default:
		return nil
	}
}

// mayLink returns nil if a caller who manages the runner may link it to the project.
func (s *Service) mayLink(caller access.Caller, r *runner.Runner, projectID int64) error {
	if r.Type != runner.ProjectType {
		return fault.New(errcode.FailedPrecondition, "runner %d has the type %s: only runners of the type %s are linked",
			r.ID, r.Type, runner.ProjectType)
	}
	if err := s.requireRole(caller, projectScope(projectID), directory.RoleMaintainer); err != nil {
		return err
	}
	place, found := s.cfg.Directory.Place(projectScope(projectID))
	switch {
	case !found:
		return fault.New(errcode.NotFound, "project %d does not exist", projectID)
	case place.Organization != r.OrganizationID:
		return fault.New(errcode.FailedPrecondition,
			"project %d is of organization %d, and runner %d of organization %d: a runner has one organization", projectID,
			place.Organization, r.ID, r.OrganizationID)
	case slices.Contains(r.ProjectIDs, projectID):
		return fault.New(errcode.AlreadyExists, "runner %d is linked to project %d", r.ID, projectID)
	case r.Locked:
		return fault.New(errcode.FailedPrecondition, "runner %d is locked to its projects: unlock it first", r.ID)
	case len(r.ProjectIDs) >= runner.MaxProjects:
		return fault.New(errcode.QuotaExceeded, "runner %d is linked to %d projects, the maximum", r.ID, runner.MaxProjects)
	default:
		return nil
	}
}
