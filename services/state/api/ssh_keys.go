package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/directory"
)

type sshKeyService struct {
	statev1connect.UnimplementedSSHKeyServiceHandler
	access

	now func() time.Time
}

func (s *sshKeyService) AddSSHKey(
	ctx context.Context, r *connect.Request[statev1.AddSSHKeyRequest],
) (*connect.Response[statev1.AddSSHKeyResponse], error) {
	k, err := directory.ParseSSHKey(r.Msg.GetPublicKey(), r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	k.UserID = caller(ctx).ID
	if r.Msg.GetExpiresAt() != nil {
		k.ExpiresAt = r.Msg.GetExpiresAt().AsTime()
		if !k.ExpiresAt.After(s.now()) {
			return nil, fault.New(errcode.InvalidArgument, "expires_at %s is in the past", k.ExpiresAt.Format(time.RFC3339)).
				With("field", "expires_at")
		}
	}
	if k, err = s.directory.AddSSHKey(ctx, k); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.AddSSHKeyResponse{SshKey: sshKey(k)}), nil
}

func (s *sshKeyService) ListSSHKeys(
	ctx context.Context, r *connect.Request[statev1.ListSSHKeysRequest],
) (*connect.Response[statev1.ListSSHKeysResponse], error) {
	owner, err := s.owner(ctx, r.Msg.GetUserId())
	if err != nil {
		return nil, err
	}
	found, err := s.directory.SSHKeys(ctx, owner)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListSSHKeysResponse{SshKeys: convertAll(found, sshKey)}), nil
}

func (s *sshKeyService) RemoveSSHKey(
	ctx context.Context, r *connect.Request[statev1.RemoveSSHKeyRequest],
) (*connect.Response[statev1.RemoveSSHKeyResponse], error) {
	if r.Msg.GetKey() == "" {
		return nil, fault.New(errcode.InvalidArgument, "key is missing: give the name or the fingerprint of a key").
			With("field", "key")
	}
	owner, err := s.owner(ctx, r.Msg.GetUserId())
	if err != nil {
		return nil, err
	}
	k, err := s.directory.RemoveSSHKey(ctx, owner, r.Msg.GetKey())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.RemoveSSHKeyResponse{SshKey: sshKey(k)}), nil
}

func sshKey(k directory.SSHKey) *statev1.SSHKey {
	return &statev1.SSHKey{
		Fingerprint: k.Fingerprint.String(), UserId: k.UserID, Name: k.Name, PublicKey: k.PublicKey,
		CreatedAt: timestamp(k.CreatedAt), ExpiresAt: timestamp(k.ExpiresAt),
	}
}
