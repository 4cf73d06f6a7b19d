package connectapi

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	"lockstep.internal/services/relay/registry"
)

type service struct{ Dependencies }

// ConnectedAgentsForProject lists only agents that the caller may reach: a project of which it may reach none is an empty one.
func (s *service) ConnectedAgentsForProject(
	_ context.Context, r *connect.Request[relayv1.ConnectedAgentsForProjectRequest],
) (*connect.Response[relayv1.ConnectedAgentsForProjectResponse], error) {
	caller, err := s.Callers.Caller(r.Header())
	if err != nil {
		return nil, err //nolint:wrapcheck // a fault
	}
	if r.Msg.GetProjectId() <= 0 {
		return nil, fault.New(errcode.InvalidArgument, "project_id %d is not positive", r.Msg.GetProjectId())
	}
	found := slices.DeleteFunc(s.Registry.Project(r.Msg.GetProjectId()), func(c registry.Connection) bool { return s.May(caller, c.AgentID) != nil })
	return connect.NewResponse(&relayv1.ConnectedAgentsForProjectResponse{Agents: s.shown(found)}), nil
}

func (s *service) ConnectedAgentsById( //nolint:revive // the generated name
	_ context.Context, r *connect.Request[relayv1.ConnectedAgentsByIdRequest],
) (*connect.Response[relayv1.ConnectedAgentsByIdResponse], error) {
	caller, err := s.Callers.Caller(r.Header())
	if err != nil {
		return nil, err //nolint:wrapcheck // a fault
	}
	if err := s.May(caller, r.Msg.GetAgentId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&relayv1.ConnectedAgentsByIdResponse{Agents: s.shown(s.Registry.Agent(r.Msg.GetAgentId()))}), nil
}

// shown are connections in the order of their agents, then ids.
func (s *service) shown(connections []registry.Connection) []*relayv1.ConnectedAgent {
	slices.SortFunc(connections, func(a, b registry.Connection) int {
		return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID))
	})
	out := make([]*relayv1.ConnectedAgent, 0, len(connections))
	for _, c := range connections {
		relay, _ := s.Registry.Relay(c.RelayID) // without a lease it has its id only
		relay.ID = c.RelayID
		out = append(out, &relayv1.ConnectedAgent{
			AgentId: c.AgentID, ConnectionId: c.ID, Version: c.Version, Commit: c.Commit, PodNamespace: c.PodNamespace, PodName: c.PodName,
			ConnectedAt: timestamppb.New(c.ConnectedAt), Relay: shownRelay(relay),
		})
	}
	return out
}

func shownRelay(r registry.Relay) *relayv1.Relay {
	return &relayv1.Relay{Id: r.ID, Url: r.URL, Version: r.Version, Commit: r.Commit, StartedAt: timestamppb.New(r.StartedAt)}
}

func (s *service) ListRelays(_ context.Context, r *connect.Request[relayv1.ListRelaysRequest]) (*connect.Response[relayv1.ListRelaysResponse], error) {
	if _, err := s.Callers.Caller(r.Header()); err != nil {
		return nil, err //nolint:wrapcheck // a fault
	}
	out := &relayv1.ListRelaysResponse{}
	for _, relay := range s.Registry.Relays() {
		out.Relays = append(out.Relays, shownRelay(relay))
	}
	return connect.NewResponse(out), nil
}

const (
	// page is how many pods are asked for at a time, and maxPage the largest answer to that in bytes.
	page    = "500"
	maxPage = 8 << 20
	// maxPods is how many pods one answer has at most.
	maxPods = 50_000
	// maxPages is how often is asked for more: a cluster that is not one might go on for ever.
	maxPages = 200
	// maxName of a pod and of a namespace, in bytes, as Kubernetes has them.
	maxName = 253
	// metadataOnly asks the Kubernetes API for names without what they are of.
	metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// pods is a page of them.
type pods struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	} `json:"items"`
	// Message says why there are none, in an answer that is an error.
	Message string `json:"message"`
}

func (s *service) GetPods(ctx context.Context, r *connect.Request[relayv1.GetPodsRequest]) (*connect.Response[relayv1.GetPodsResponse], error) {
	caller, err := s.Callers.Caller(r.Header())
	if err != nil {
		return nil, err //nolint:wrapcheck // a fault
	}
	if r.Msg.GetConnectionId() < 0 {
		return nil, fault.New(errcode.InvalidArgument, "connection_id %d is negative", r.Msg.GetConnectionId())
	}
	out := &relayv1.GetPodsResponse{}
	pages := 0
	for next := "first"; next != ""; pages++ {
		query := url.Values{"limit": {page}}
		if next != "first" {
			query.Set("continue", next)
		}
		err := s.Get(ctx, caller, r.Msg.GetAgentId(), r.Msg.GetConnectionId(), "/api/v1/pods?"+query.Encode(), metadataOnly, func(response *http.Response) error {
			found, err := decode(response)
			for _, each := range found.Items {
				out.Pods = append(out.Pods, &relayv1.Pod{Namespace: each.Metadata.Namespace, Name: each.Metadata.Name})
			}
			next = found.Metadata.Continue
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(out.GetPods()) > maxPods || pages > maxPages {
			return nil, fault.New(errcode.ResourceExhausted, "the cluster of agent %d has more than %d pods: ask its Kubernetes API itself", r.Msg.GetAgentId(), maxPods)
		}
	}
	slices.SortFunc(out.GetPods(), func(a, b *relayv1.Pod) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return connect.NewResponse(out), nil
}

func decode(response *http.Response) (pods, error) {
	var found pods
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	if err != nil {
		return found, fault.Wrap(err, errcode.Unavailable, "the answer of the cluster's Kubernetes API broke off")
	}
	err = json.Unmarshal(raw, &found)
	switch {
	case response.StatusCode == http.StatusForbidden:
		return found, fault.New(errcode.PermissionDenied, "the cluster refuses: %.500s", found.Message)
	case response.StatusCode != http.StatusOK:
		return found, fault.New(errcode.Unavailable, "the cluster's Kubernetes API answered %d: %.500s", response.StatusCode, found.Message)
	case err != nil:
		return found, fault.Wrap(err, errcode.Unavailable, "the cluster's Kubernetes API answered something else than pods")
	}
	for _, each := range found.Items {
		if len(each.Metadata.Namespace) > maxName || len(each.Metadata.Name) > maxName {
			return pods{}, fault.New(errcode.Unavailable, "the cluster's Kubernetes API answered something else than pods: no name has more than %d bytes", maxName)
		}
	}
	return found, nil
}
