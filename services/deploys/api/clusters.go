package api

import (
	"context"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
)

// Projects looks up projects. [lockstep.internal/libs/directory.Directory] implements it.
type Projects interface {
	// Project reports whether a project exists.
	Project(id int64) bool
}

// Stream is the stream OBSERVED.
type Stream interface {
	// Release publishes the release of a cluster and returns its position; see
	// [lockstep.internal/services/deploys/nats.Releaser].
	Release(
		ctx context.Context, claim ownership.Claim, toProjectID, userID int64, reason string, at time.Time,
	) (uint64, error)
	// Position returns the position of the reader. Check returns an error if the reader has been failing for a while.
	Position(ctx context.Context) (cursor.Position, error)
	Check(ctx context.Context) error
}

// requireReader is for answers that find nothing. It returns an error if the reader fails: what the caller looks for
// may only not be stored yet.
func requireReader(ctx context.Context, stream Stream) error {
	if err := stream.Check(ctx); err != nil {
		return fault.Wrap(err, errcode.Unavailable,
			"nothing is found, but new observations cannot be stored at the moment: "+
				"/readyz of the deploys service has the reason")
	}
	return nil
}

const (
	// maxReason is the maximum length of the reason of a release, in bytes.
	maxReason = 500
	// releaseTimeout is the maximum wait until a release takes effect. releaseInterval is the time between two checks.
	releaseTimeout, releaseInterval = 10 * time.Second, 20 * time.Millisecond
)

type clusterService struct {
	deploysv1connect.UnimplementedClusterServiceHandler

	clusters *postgres.Clusters
	stream   Stream
	projects Projects
	logger   *slog.Logger
	now      func() time.Time
}

func (s *clusterService) ListClusters(
	ctx context.Context, _ *connect.Request[deploysv1.ListClustersRequest],
) (*connect.Response[deploysv1.ListClustersResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	at, err := s.stream.Position(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.clusters.List(ctx, "")
	if err != nil {
		return nil, err
	}
	reporters, err := s.clusters.Reporters(ctx)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if err := requireReader(ctx, s.stream); err != nil {
			return nil, err
		}
	}
	out := &deploysv1.ListClustersResponse{StreamRestored: at.Epoch > 1}
	for i := range found {
		out.Clusters = append(out.Clusters, clusterMessage(&found[i]))
	}
	for _, r := range reporters {
		out.Reporters = append(out.Reporters, &deploysv1.Reporter{
			AgentId:       r.AgentID,
			ProjectId:     r.ProjectID,
			SinceSequence: r.Since,
		})
	}
	return connect.NewResponse(out), nil
}

func clusterMessage(c *postgres.Cluster) *deploysv1.Cluster {
	current := c.Claim()
	out := &deploysv1.Cluster{
		ClusterUid:      current.ClusterUID,
		ProjectId:       current.ProjectID,
		AgentIds:        c.Agents,
		Workloads:       c.Workloads,
		RunningRollouts: c.Running,
	}
	for _, claim := range c.Claims {
		out.Claims = append(out.Claims, &deploysv1.Claim{
			ProjectId:     claim.ProjectID,
			AgentId:       claim.AgentID,
			UserId:        claim.UserID,
			Reason:        claim.Reason,
			ClaimedAt:     timestamppb.New(claim.At),
			SinceSequence: claim.Since,
		})
	}
	return out
}

// ReleaseCluster publishes the release and waits until the reader has processed it.
func (s *clusterService) ReleaseCluster(
	ctx context.Context, r *connect.Request[deploysv1.ReleaseClusterRequest],
) (*connect.Response[deploysv1.ReleaseClusterResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	cluster, err := s.releasable(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	caller, _ := access.CallerFrom(ctx)
	from, to, at := cluster.Claim(), r.Msg.GetToProjectId(), s.now().UTC().Truncate(time.Millisecond)
	position, err := s.stream.Release(ctx, from, to, caller.UserID, r.Msg.GetReason(), at)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable,
			"NATS did not confirm the release of cluster %q: find its owner with `lockstep deploys clusters`, "+
				"and release it again if the owner has not changed", from.ClusterUID)
	}
	s.logger.InfoContext(ctx, "an administrator released a cluster", slog.Int64(logkey.UserID, caller.UserID),
		slog.String(logkey.ClusterUID, from.ClusterUID),
		slog.Int64(logkey.ProjectID, from.ProjectID), slog.Int64(logkey.ToProjectID, to),
		slog.String(logkey.Reason, r.Msg.GetReason()), slog.Uint64(logkey.Sequence, position))
	out := &deploysv1.ReleaseClusterResponse{FromProjectId: from.ProjectID}
	if out.Pending, err = s.await(ctx, position); err != nil {
		return nil, err
	}
	if cluster, err = s.find(ctx, from.ClusterUID); err != nil {
		return nil, err
	}
	out.Cluster = clusterMessage(cluster)
	if out.GetPending() {
		return connect.NewResponse(out), nil
	}
	effective := false
	for _, claim := range cluster.Claims {
		effective = effective || claim.ByAdministrator() && claim.Since == position
	}
	if !effective {
		return nil, fault.New(errcode.Conflict,
			"another administrator released cluster %q at the same time: `lockstep deploys clusters` shows its owner",
			from.ClusterUID)
	}
	if out.EndedRollouts, err = s.clusters.Ended(ctx, from.ClusterUID, at); err != nil {
		return nil, err
	}
	return connect.NewResponse(out), nil
}

func (s *clusterService) find(ctx context.Context, clusterUID string) (*postgres.Cluster, error) {
	found, err := s.clusters.List(ctx, clusterUID)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if err := requireReader(ctx, s.stream); err != nil {
			return nil, err
		}
		return nil, fault.New(errcode.NotFound,
			"no agent has reported cluster %q: `lockstep deploys clusters` lists all clusters", clusterUID)
	}
	return &found[0], nil
}

// releasable returns the cluster of the request, or an error if it cannot be released.
func (s *clusterService) releasable(
	ctx context.Context, r *deploysv1.ReleaseClusterRequest,
) (*postgres.Cluster, error) {
	to := r.GetToProjectId()
	switch {
	case r.GetClusterUid() == "":
		return nil, fault.New(errcode.InvalidArgument,
			"cluster_uid is empty: `lockstep deploys clusters` lists all clusters").With("field", "cluster_uid")
	case len(r.GetReason()) > maxReason:
		return nil, fault.New(errcode.InvalidArgument, "reason has %d bytes, the limit is %d", len(r.GetReason()), maxReason).
			With("field", "reason")
	case to < 0 || to > 0 && !s.projects.Project(to):
		return nil, fault.New(errcode.NotFound, "project %d does not exist", to).With("field", "to_project_id")
	}
	cluster, err := s.find(ctx, r.GetClusterUid())
	if err != nil {
		return nil, err
	}
	switch owner := cluster.Claim().ProjectID; {
	case owner == to && to == 0:
		return nil, fault.New(errcode.FailedPrecondition,
			"cluster %q has no owner: the project of the next agent that reports it becomes the owner, or name one with --to",
			r.GetClusterUid())
	case owner == to:
		return nil, fault.New(errcode.FailedPrecondition, "project %[2]d already owns cluster %[1]q", r.GetClusterUid(), to)
	default:
		return cluster, nil
	}
}

// await waits until the reader has reached a position. It returns true if the reader has not reached it within the
// timeout.
func (s *clusterService) await(ctx context.Context, position uint64) (pending bool, err error) {
	timeout := time.NewTimer(releaseTimeout)
	defer timeout.Stop()
	for {
		at, err := s.stream.Position(ctx)
		if err != nil || at.Sequence >= position {
			return false, err
		}
		select {
		case <-time.After(releaseInterval):
		case <-timeout.C:
			return true, nil
		case <-ctx.Done():
			return false, fault.From(ctx.Err())
		}
	}
}
