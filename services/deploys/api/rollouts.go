package api

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
)

const (
	defaultPageSize = 50
	maxPageSize     = 500
	// maxFacts is the maximum number of facts of one rollout in a response.
	maxFacts = 1000
)

type rolloutService struct {
	deploysv1connect.UnimplementedRolloutServiceHandler

	rollouts *postgres.Rollouts
	roles    access.Roles
	changes  *postgres.Changes
	stream   Stream
	now      func() time.Time
	// stats limits concurrent GetStats calls.
	stats semaphore
}

// visible returns the agents whose rollouts the caller may read; nil means all.
func (s *rolloutService) visible(ctx context.Context) []int64 {
	agents, all := access.AgentsWithRole(ctx, s.roles, directory.RoleReader)
	if all {
		return nil
	}
	return append([]int64{}, agents...)
}

func (s *rolloutService) ListRollouts(
	ctx context.Context, r *connect.Request[deploysv1.ListRolloutsRequest],
) (*connect.Response[deploysv1.ListRolloutsResponse], error) {
	filter, err := s.filter(ctx, r.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	page, err := pageOf(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	found, err := s.rollouts.List(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && page.After == nil {
		if err := requireReader(ctx, s.stream); err != nil {
			return nil, err
		}
	}
	out := &deploysv1.ListRolloutsResponse{}
	for i := range found {
		out.Rollouts = append(out.Rollouts, rolloutMessage(&found[i]))
	}
	if len(found) == page.Size {
		last := &found[len(found)-1]
		token := strconv.FormatInt(last.StartedAt.UnixMicro(), 10) + " " + last.ID
		out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(token))
	}
	return connect.NewResponse(out), nil
}

// maxMicros is a time in the year 9999.
const maxMicros = 253_000_000_000_000_000

// pageOf validates the paging fields of a request.
func pageOf(size int32, token string) (postgres.RolloutPage, error) {
	page := postgres.RolloutPage{Size: int(size)}
	switch {
	case size == 0:
		page.Size = defaultPageSize
	case size < 0 || size > maxPageSize:
		return page, fault.New(errcode.InvalidArgument, "page_size %d must be 1 to %d, or 0 for %d",
			size, maxPageSize, defaultPageSize).With("field", "page_size")
	}
	if token == "" {
		return page, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	at, id, found := strings.Cut(string(raw), " ")
	micros, parseErr := strconv.ParseInt(at, 10, 64)
	if err != nil || !found || parseErr != nil || micros < 0 || micros > maxMicros || strings.ContainsRune(id, 0) {
		return page, fault.New(errcode.InvalidArgument, "page_token: not a token returned by ListRollouts").
			With("field", "page_token")
	}
	page.After = &postgres.RolloutPosition{StartedAt: time.UnixMicro(micros).UTC(), ID: id}
	return page, nil
}

func (s *rolloutService) GetRollout(
	ctx context.Context, r *connect.Request[deploysv1.GetRolloutRequest],
) (*connect.Response[deploysv1.GetRolloutResponse], error) {
	one, err := s.find(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	facts, omitted, err := s.rollouts.Facts(ctx, one, maxFacts)
	if err != nil {
		return nil, err
	}
	out := &deploysv1.GetRolloutResponse{Rollout: rolloutMessage(one), FactsOmitted: omitted}
	for i := range facts {
		fact, err := factMessage(&facts[i])
		if err != nil {
			return nil, err
		}
		out.Facts = append(out.Facts, fact)
	}
	return connect.NewResponse(out), nil
}

// find returns the rollout of a request: the one with the id, or the newest one of the workload.
func (s *rolloutService) find(ctx context.Context, r *deploysv1.GetRolloutRequest) (*history.Rollout, error) {
	filter, description := postgres.RolloutFilter{Agents: s.visible(ctx)}, "rollout "+strconv.Quote(r.GetId())
	switch w := r.GetWorkload(); {
	case r.GetId() != "":
		filter.IDs = []string{r.GetId()}
	case w.GetNamespace() == "" || w.GetKind() == "" || w.GetName() == "":
		return nil, fault.New(errcode.InvalidArgument,
			"give the id of a rollout, or namespace, kind and name of its workload").
			With("field", "id")
	default:
		filter.ClusterUID, filter.AgentID = w.GetClusterUid(), w.GetAgentId()
		filter.Namespace, filter.Kind, filter.Name = w.GetNamespace(), w.GetKind(), w.GetName()
		filter.Revision = r.GetRevision()
		description = "a rollout of " + w.GetKind() + " " + w.GetNamespace() + "/" + w.GetName()
	}
	found, err := s.rollouts.List(ctx, filter, postgres.RolloutPage{Size: maxPageSize})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if err := requireReader(ctx, s.stream); err != nil {
			return nil, err
		}
		return nil, fault.New(errcode.NotFound, "%s does not exist", description)
	}
	for i := range found {
		if found[i].ClusterUID != found[0].ClusterUID {
			return nil, fault.New(errcode.InvalidArgument, "several clusters have %s %s/%s: name the cluster, such as %s",
				found[0].Kind, found[0].Namespace, found[0].Name, found[0].ClusterUID).
				With("field", "workload.cluster_uid")
		}
	}
	return &found[0], nil
}

// filter converts a filter of the API. It restricts the filter to the agents that the caller may read.
func (s *rolloutService) filter(ctx context.Context, f *deploysv1.RolloutFilter) (postgres.RolloutFilter, error) {
	out := postgres.RolloutFilter{
		Agents: s.visible(ctx), ClusterUID: f.GetClusterUid(), AgentID: f.GetAgentId(),
		Namespace: f.GetNamespace(), Kind: f.GetKind(), Name: f.GetName(),
		Labels: f.GetLabels(), Commit: f.GetCommit(), Group: f.GetGroup(), Stuck: f.GetStuck(),
	}
	for _, state := range f.GetStates() {
		name, known := stateNames()[state]
		if !known {
			return out, fault.New(errcode.InvalidArgument, "state %s does not exist", state).With("field", "filter.states")
		}
		out.States = append(out.States, name)
	}
	for _, change := range f.GetChanges() {
		name, known := changeNames()[change]
		if !known {
			return out, fault.New(errcode.InvalidArgument, "change %s does not exist", change).With("field", "filter.changes")
		}
		out.Changes = append(out.Changes, name)
	}
	for field, at := range map[string]struct {
		given interface {
			IsValid() bool
			AsTime() time.Time
		}
		set bool
		to  *time.Time
	}{
		"filter.since": {f.GetSince(), f.GetSince() != nil, &out.Since},
		"filter.until": {f.GetUntil(), f.GetUntil() != nil, &out.Until},
	} {
		if !at.set {
			continue
		}
		if !at.given.IsValid() {
			return out, fault.New(errcode.InvalidArgument, "%s is not a valid time", field).With("field", field)
		}
		*at.to = at.given.AsTime()
	}
	return out, nil
}
