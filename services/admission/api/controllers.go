package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/postgres"
)

type controllerService struct {
	admissionv1connect.UnimplementedControllerServiceHandler

	controllers postgres.Controllers
	allowed     permissions
	key         seal.Key
}

// owner returns the owner of a request whose controllers the caller may manage.
func (s *controllerService) owner(
	ctx context.Context, level admissionv1.ControllerLevel, id int64,
) (controller.Owner, error) {
	known, found := levels[level]
	owner, err := ownerOf(known, found, id)
	if err != nil {
		return owner, err
	}
	return owner, s.allowed.manage(ctx, owner)
}

// mayManage returns nil if the caller may manage a controller. Without a role in its owner, it does not exist.
func (s *controllerService) mayManage(ctx context.Context, c controller.Controller) error {
	err := s.allowed.manage(ctx, c.Owner)
	if fault.Is(err, errcode.NotFound) {
		return postgres.NotFound(c.ID)
	}
	return err
}

func (s *controllerService) CreateController(
	ctx context.Context, r *connect.Request[admissionv1.CreateControllerRequest],
) (*connect.Response[admissionv1.CreateControllerResponse], error) {
	owner, err := s.owner(ctx, r.Msg.GetLevel(), r.Msg.GetOwnerId())
	if err != nil {
		return nil, err
	}
	settings := settingsOf(r.Msg.GetSettings()).WithDefaults()
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	secret := r.Msg.GetSecret()
	switch {
	case settings.Webhook == nil && secret != "":
		return nil, fault.New(errcode.InvalidArgument, "secret: a policy has none").With("field", "secret")
	case settings.Webhook != nil && secret == "":
		secret = controller.NewSecret()
	case settings.Webhook != nil:
		if err := controller.ValidateSecret(secret); err != nil {
			return nil, err
		}
	}
	caller, _ := access.CallerFrom(ctx) // package access has authenticated it
	created, err := s.controllers.Create(ctx, owner, settings, caller.UserID, func(id int64) ([]byte, error) {
		if secret == "" {
			return []byte{}, nil
		}
		return controller.SealSecret(secret, id, s.key)
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.CreateControllerResponse{
		Controller: s.message(created), Secret: secret,
	}), nil
}

func (s *controllerService) GetController(
	ctx context.Context, r *connect.Request[admissionv1.GetControllerRequest],
) (*connect.Response[admissionv1.GetControllerResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	found, err := s.controllers.Get(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	if err := s.mayManage(ctx, found); err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.GetControllerResponse{Controller: s.message(found)}), nil
}

func (s *controllerService) ListControllers(
	ctx context.Context, r *connect.Request[admissionv1.ListControllersRequest],
) (*connect.Response[admissionv1.ListControllersResponse], error) {
	owner, err := s.owner(ctx, r.Msg.GetLevel(), r.Msg.GetOwnerId())
	if err != nil {
		return nil, err
	}
	found, err := s.controllers.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.ListControllersResponse{Controllers: s.messages(found)}), nil
}

// maxOfOrganization is the number of controllers of an organization that are listed.
const maxOfOrganization = 100

func (s *controllerService) ListOrganizationControllers(
	ctx context.Context, r *connect.Request[admissionv1.ListOrganizationControllersRequest],
) (*connect.Response[admissionv1.ListOrganizationControllersResponse], error) {
	if err := apirequest.RequireID("organization_id", r.Msg.GetOrganizationId()); err != nil {
		return nil, err
	}
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	all, err := s.controllers.OfProjectsAndGroups(ctx)
	if err != nil {
		return nil, err
	}
	var total int64
	var first []*admissionv1.Controller
	for _, c := range all {
		if s.allowed.organization(c.Owner) != r.Msg.GetOrganizationId() {
			continue
		}
		total++
		if len(first) < maxOfOrganization {
			first = append(first, &admissionv1.Controller{
				Id: c.ID, Level: keyOf(levels, c.Level), OwnerId: c.Owner.ID, Position: number(c.Position),
				Settings: &admissionv1.ControllerSettings{Name: c.Name},
			})
		}
	}
	return connect.NewResponse(&admissionv1.ListOrganizationControllersResponse{Controllers: first, Total: total}), nil
}

func (s *controllerService) UpdateController(
	ctx context.Context, r *connect.Request[admissionv1.UpdateControllerRequest],
) (*connect.Response[admissionv1.UpdateControllerResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	paths := r.Msg.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		return nil, fault.New(errcode.InvalidArgument, "update_mask is missing: give one or more of %s",
			strings.Join(settingNames(), ", ")).With("field", "update_mask")
	}
	for _, path := range paths {
		if !slices.Contains(settingNames(), path) {
			return nil, fault.New(errcode.InvalidArgument, "update_mask: %q is not one of %s", path,
				strings.Join(settingNames(), ", ")).With("field", "update_mask")
		}
	}
	wanted := settingsOf(r.Msg.GetSettings())
	updated, err := s.controllers.Update(ctx, r.Msg.GetId(), func(c controller.Controller) (controller.Settings, error) {
		if err := s.mayManage(ctx, c); err != nil {
			return controller.Settings{}, err
		}
		settings := c.Settings
		for _, path := range paths {
			setters[path](&settings, wanted)
		}
		settings = settings.WithDefaults()
		if (settings.Webhook == nil) != (c.Webhook == nil) {
			return settings, fault.New(errcode.InvalidArgument,
				"webhook: a webhook cannot become a policy, nor a policy a webhook: create another controller").
				With("field", "webhook")
		}
		return settings, settings.Validate()
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.UpdateControllerResponse{Controller: s.message(updated)}), nil
}

func (s *controllerService) RotateSecret(
	ctx context.Context, r *connect.Request[admissionv1.RotateSecretRequest],
) (*connect.Response[admissionv1.RotateSecretResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	overlap := controller.DefaultOverlap
	if r.Msg.GetOverlap() != nil {
		overlap = r.Msg.GetOverlap().AsDuration()
	}
	if err := controller.ValidateOverlap(overlap); err != nil {
		return nil, err
	}
	secret := r.Msg.GetSecret()
	if secret == "" {
		secret = controller.NewSecret()
	} else if err := controller.ValidateSecret(secret); err != nil {
		return nil, err
	}
	rotated, err := s.controllers.RotateSecret(ctx, r.Msg.GetId(), s.controllers.Now().Add(overlap),
		func(c controller.Controller) ([]byte, error) {
			if err := s.mayManage(ctx, c); err != nil {
				return nil, err
			}
			if c.Webhook == nil {
				return nil, fault.New(errcode.FailedPrecondition, "controller %d is a policy: it has no signing secret", c.ID)
			}
			return controller.RotateSecret(c, secret, s.key)
		})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.RotateSecretResponse{
		Controller: s.message(rotated), Secret: secret,
	}), nil
}

func (s *controllerService) DeleteController(
	ctx context.Context, r *connect.Request[admissionv1.DeleteControllerRequest],
) (*connect.Response[admissionv1.DeleteControllerResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	err := s.controllers.Delete(ctx, r.Msg.GetId(), func(c controller.Controller) error { return s.mayManage(ctx, c) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.DeleteControllerResponse{}), nil
}

func (s *controllerService) ReorderControllers(
	ctx context.Context, r *connect.Request[admissionv1.ReorderControllersRequest],
) (*connect.Response[admissionv1.ReorderControllersResponse], error) {
	owner, err := s.owner(ctx, r.Msg.GetLevel(), r.Msg.GetOwnerId())
	if err != nil {
		return nil, err
	}
	reordered, err := s.controllers.Reorder(ctx, owner, r.Msg.GetIds())
	if errors.Is(err, postgres.ErrOtherControllers) {
		return nil, fault.New(errcode.InvalidArgument, "ids: give the id of each controller of the %s once", owner.Level).
			With("field", "ids")
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&admissionv1.ReorderControllersResponse{Controllers: s.messages(reordered)}), nil
}
