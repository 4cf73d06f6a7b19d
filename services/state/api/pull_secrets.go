package api

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	libpostgres "lockstep.internal/libs/postgres"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/pullsecret"
)

type pullSecretService struct {
	statev1connect.UnimplementedPullSecretServiceHandler
	access

	pool    *pgxpool.Pool
	secrets *postgres.Secrets
	now     func() time.Time
}

func (s *pullSecretService) PutPullSecret(
	ctx context.Context, r *connect.Request[statev1.PutPullSecretRequest],
) (*connect.Response[statev1.PutPullSecretResponse], error) {
	m := r.Msg
	if err := s.allowProject(ctx, m.GetProjectId(), authz.ManagePullSecrets); err != nil {
		return nil, err
	}
	registry, value, err := pullsecret.New(m.GetRegistry(), m.GetUsername(), m.GetPassword(), s.now().UTC())
	if err != nil {
		return nil, err
	}
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		return s.secrets.PutPullSecret(ctx, tx, s.directory.Directory, m.GetProjectId(), registry, value)
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.PutPullSecretResponse{PullSecret: pullSecret(registry)}), nil
}

func (s *pullSecretService) ListPullSecrets(
	ctx context.Context, r *connect.Request[statev1.ListPullSecretsRequest],
) (*connect.Response[statev1.ListPullSecretsResponse], error) {
	if err := s.allowProject(ctx, r.Msg.GetProjectId(), authz.Read); err != nil {
		return nil, err
	}
	found, err := s.secrets.Registries(ctx, s.pool, r.Msg.GetProjectId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListPullSecretsResponse{PullSecrets: convertAll(found, pullSecret)}), nil
}

func (s *pullSecretService) RemovePullSecret(
	ctx context.Context, r *connect.Request[statev1.RemovePullSecretRequest],
) (*connect.Response[statev1.RemovePullSecretResponse], error) {
	if err := s.allowProject(ctx, r.Msg.GetProjectId(), authz.ManagePullSecrets); err != nil {
		return nil, err
	}
	err := libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		return s.secrets.RemovePullSecret(ctx, tx, s.directory.Directory, r.Msg.GetProjectId(), r.Msg.GetRegistry())
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.RemovePullSecretResponse{}), nil
}

func (s *pullSecretService) allowProject(ctx context.Context, projectID int64, action authz.Action) error {
	if _, err := s.directory.Project(ctx, projectID); err != nil {
		return err
	}
	return s.allow(ctx, projectScope(projectID), false, action, fmt.Sprintf("project %d", projectID))
}

func pullSecret(r pullsecret.Registry) *statev1.PullSecret {
	return &statev1.PullSecret{Registry: r.Host, Username: r.Username, UpdatedAt: timestamp(r.UpdatedAt)}
}
