package api

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
)

type workspaceAccessService struct {
	statev1connect.UnimplementedWorkspaceAccessServiceHandler
	access

	pool       *pgxpool.Pool
	workspaces *postgres.Workspaces
	encoder    publish.Encoder
	now        func() time.Time
	// service changes workspaces for those who may manage them.
	service *workspaceService
}

func (s *workspaceAccessService) ExtendWorkspace(
	ctx context.Context, r *connect.Request[statev1.ExtendWorkspaceRequest],
) (*connect.Response[statev1.ExtendWorkspaceResponse], error) {
	if err := r.Msg.GetDuration().CheckValid(); err != nil {
		return nil, fault.New(errcode.InvalidArgument, "duration: %v", err).With("field", "duration")
	}
	w, err := s.service.change(ctx, r.Msg.GetWorkspace(), noLock,
		func(_ pgx.Tx, w workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
			after, err := w.Extend(r.Msg.GetDuration().AsDuration(), s.now())
			return after, nil, err
		})
	if err != nil {
		return nil, err
	}
	messages, err := s.service.messages(ctx, w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ExtendWorkspaceResponse{Workspace: messages[0]}), nil
}

func (s *workspaceAccessService) ShareWorkspace(
	ctx context.Context, r *connect.Request[statev1.ShareWorkspaceRequest],
) (*connect.Response[statev1.ShareWorkspaceResponse], error) {
	person, err := s.person(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	share := workspace.Share{UserID: person.id, Port: r.Msg.GetPort()}
	w, err := s.change(ctx, r.Msg.GetWorkspace(), person.id,
		func(tx pgx.Tx, w workspace.Workspace) (workspace.Workspace, bool, error) {
			role, err := s.directory.Within(tx).Role(ctx, person.id, projectScope(w.ProjectID)) // none for id 0
			if err != nil {
				return w, false, fmt.Errorf("share workspace %s: %w", w.ID, err)
			}
			if role == directory.RoleNone {
				return w, false, fault.New(errcode.FailedPrecondition,
					"user %s has no role in the project of workspace %q: ask an owner to give one, such as reader", person, w.Name)
			}
			if e := w.Spec.Editor; e != nil && e.Port == share.Port {
				return w, false, fault.New(errcode.InvalidArgument, "port %d is the editor of workspace %q, which can run "+
					"everything in it: share the whole workspace, or not", share.Port, w.Name).With("field", "port")
			}
			return w.ShareWith(share)
		})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ShareWorkspaceResponse{Shares: shares(w)}), nil
}

func (s *workspaceAccessService) UnshareWorkspace(
	ctx context.Context, r *connect.Request[statev1.UnshareWorkspaceRequest],
) (*connect.Response[statev1.UnshareWorkspaceResponse], error) {
	person, err := s.person(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	share := workspace.Share{UserID: person.id, Port: r.Msg.GetPort()}
	w, err := s.change(ctx, r.Msg.GetWorkspace(), person.id,
		func(_ pgx.Tx, w workspace.Workspace) (workspace.Workspace, bool, error) {
			after, changed := w.Unshare(share)
			if !changed {
				return w, false, fault.New(errcode.NotFound, "workspace %q is not shared with user %s like this",
					w.Name, person)
			}
			return after, true, nil
		})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.UnshareWorkspaceResponse{Shares: shares(w)}), nil
}

func (s *workspaceAccessService) ListShares(
	ctx context.Context, r *connect.Request[statev1.ListSharesRequest],
) (*connect.Response[statev1.ListSharesResponse], error) {
	ref, err := referenceOf(r.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	w, err := s.workspaces.Get(ctx, s.pool, ref)
	if err != nil {
		return nil, err
	}
	if err := s.allowWorkspace(ctx, w, authz.Read, ref); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListSharesResponse{Shares: shares(w)}), nil
}

// person is with whom a workspace is shared.
type person struct {
	id   int64 // 0 if nobody has the name
	name string
}

func (p person) String() string {
	if p.name != "" {
		return strconv.Quote(p.name)
	}
	return strconv.FormatInt(p.id, 10)
}

// person returns whom a request names. A name that nobody has is no error here: callers would learn which names exist
// without a right to anything.
func (s *workspaceAccessService) person(
	ctx context.Context, r interface {
		GetUserId() int64
		GetUsername() string
	},
) (person, error) {
	p := person{id: r.GetUserId(), name: r.GetUsername()}
	if p.name == "" {
		return p, id("user_id", p.id)
	}
	if p.id != 0 {
		return p, fault.New(errcode.InvalidArgument, "give the id or the username, not both").With("field", "username")
	}
	user, err := s.directory.UserByName(ctx, p.name)
	if err != nil && fault.CodeOf(err) != errcode.NotFound {
		return p, fmt.Errorf("find the user %q: %w", p.name, err)
	}
	p.id = user.ID
	return p, nil
}

// change locks a person and then a workspace, checks that the caller owns the workspace, and stores and publishes what
// decide returns, in one transaction.
func (s *workspaceAccessService) change(
	ctx context.Context, named *statev1.WorkspaceReference, userID int64,
	decide func(pgx.Tx, workspace.Workspace) (workspace.Workspace, bool, error),
) (after workspace.Workspace, err error) {
	ref, err := referenceOf(named)
	if err != nil {
		return after, err
	}
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if userID != 0 {
			if err := s.directory.LockPerson(ctx, tx, userID); err != nil {
				return err
			}
		}
		before, err := s.workspaces.LockOne(ctx, tx, ref)
		if err != nil {
			return err
		}
		inTx := access{directory: s.directory.Within(tx)}
		if err := inTx.allowWorkspace(ctx, before, authz.Read, ref); err != nil {
			return err
		}
		if before.UserID != caller(ctx).ID {
			return fault.New(errcode.PermissionDenied, "workspace %s is of another user: only its owner shares it", ref)
		}
		var changed bool
		if after, changed, err = decide(tx, before); err != nil || !changed {
			return err
		}
		if err := s.workspaces.SaveShares(ctx, tx, after); err != nil {
			return err
		}
		m, err := s.encoder.Access(ctx, after)
		if err != nil {
			return err
		}
		if err := outbox.Insert(ctx, tx, m); err != nil {
			return fmt.Errorf("publish the shares of workspace %s: %w", after.ID, err)
		}
		return nil
	})
	return after, err
}

func shares(w workspace.Workspace) []*statev1.WorkspaceShare {
	return convertAll(w.Shares, func(s workspace.Share) *statev1.WorkspaceShare {
		return &statev1.WorkspaceShare{UserId: s.UserID, Port: s.Port}
	})
}
