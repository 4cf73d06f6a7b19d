package api

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

// ConnectedAgentsForProject lists the connected agents of a project that the caller may access.
func (s *service) ConnectedAgentsForProject(
	ctx context.Context, r *connect.Request[relayv1.ConnectedAgentsForProjectRequest],
) (*connect.Response[relayv1.ConnectedAgentsForProjectResponse], error) {
	if r.Msg.GetProjectId() <= 0 {
		return nil, fault.New(errcode.InvalidArgument, "project_id %d is not positive", r.Msg.GetProjectId())
	}
	found := slices.DeleteFunc(s.Registry.Project(r.Msg.GetProjectId()), func(c registry.Connection) bool {
		return s.MayRead(callerFrom(ctx), c.AgentID) != nil
	})
	return connect.NewResponse(&relayv1.ConnectedAgentsForProjectResponse{Agents: s.connectedAgents(found)}), nil
}

func (s *service) ConnectedAgentsById(
	ctx context.Context, r *connect.Request[relayv1.ConnectedAgentsByIdRequest],
) (*connect.Response[relayv1.ConnectedAgentsByIdResponse], error) {
	if err := s.MayRead(callerFrom(ctx), r.Msg.GetAgentId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&relayv1.ConnectedAgentsByIdResponse{Agents: s.connectedAgents(s.Registry.Agent(r.Msg.GetAgentId()))},
	), nil
}

// connectedAgents converts connections, sorted by agent and id.
func (s *service) connectedAgents(connections []registry.Connection) []*relayv1.ConnectedAgent {
	slices.SortFunc(connections, func(a, b registry.Connection) int {
		return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID))
	})
	out := make([]*relayv1.ConnectedAgent, 0, len(connections))
	for _, c := range connections {
		relay, _ := s.Registry.Relay(c.RelayID) // a relay without a lease has only its id
		relay.ID = c.RelayID
		out = append(out, &relayv1.ConnectedAgent{
			AgentId: c.AgentID, ConnectionId: c.ID, Version: c.Version, Commit: c.Commit, PodNamespace: c.PodNamespace,
			PodName: c.PodName, ConnectedAt: timestamppb.New(c.ConnectedAt), Relay: relayMessage(relay),
		})
	}
	return out
}

func relayMessage(r registry.Relay) *relayv1.Relay {
	return &relayv1.Relay{
		Id: r.ID, Url: r.URL, Version: r.Version, Commit: r.Commit, StartedAt: timestamppb.New(r.StartedAt),
	}
}

func (s *service) ListRelays(
	context.Context, *connect.Request[relayv1.ListRelaysRequest],
) (*connect.Response[relayv1.ListRelaysResponse], error) {
	out := &relayv1.ListRelaysResponse{}
	for _, relay := range s.Registry.Relays() {
		out.Relays = append(out.Relays, relayMessage(relay))
	}
	return connect.NewResponse(out), nil
}

const (
	// page is the number of pods of a page, and maxPage its largest size in bytes.
	page    = "500"
	maxPage = 8 << 20
	// maxPods of one response.
	maxPods = 50_000
	// maxPages bounds the number of pages, for a server that never ends the list.
	maxPages = 200
	// maxName of a pod or namespace, in bytes, as in Kubernetes.
	maxName = 253
	// metadataOnly asks the Kubernetes API for metadata without specs.
	metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// pods is a page of pods.
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
	// Message of an error.
	Message string `json:"message"`
}

func (s *service) GetPods(
	ctx context.Context, r *connect.Request[relayv1.GetPodsRequest],
) (*connect.Response[relayv1.GetPodsResponse], error) {
	if r.Msg.GetConnectionId() < 0 {
		return nil, fault.New(errcode.InvalidArgument, "connection_id %d is negative", r.Msg.GetConnectionId())
	}
	out := &relayv1.GetPodsResponse{}
	pages := 0
	for next := "first"; next != ""; pages++ {
		query := url.Values{"limit": {page}, "fieldSelector": {"status.phase=Running"}}
		if next != "first" {
			query.Set("continue", next)
		}
		read := func(response *http.Response) error {
			found, err := decode(response)
			for _, each := range found.Items {
				out.Pods = append(out.Pods, &relayv1.Pod{Namespace: each.Metadata.Namespace, Name: each.Metadata.Name})
			}
			next = found.Metadata.Continue
			return err
		}
		path := "/api/v1/pods?" + query.Encode()
		err := s.Get(ctx, callerFrom(ctx), r.Msg.GetAgentId(), r.Msg.GetConnectionId(), path, metadataOnly, read)
		if err != nil {
			return nil, err
		}
		if len(out.GetPods()) > maxPods || pages > maxPages {
			return nil, fault.New(errcode.ResourceExhausted,
				"the cluster of agent %d has more than %d pods, or its list does not end: list them with the Kubernetes API",
				r.Msg.GetAgentId(), maxPods)
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
		return found, fault.Wrap(err, errcode.Unavailable, "the response of the cluster's Kubernetes API was interrupted")
	}
	err = json.Unmarshal(raw, &found)
	switch {
	case response.StatusCode == http.StatusForbidden:
		return found, fault.New(errcode.PermissionDenied, "the cluster's Kubernetes API denied the request: %.500s",
			found.Message)
	case response.StatusCode != http.StatusOK:
		return found, fault.New(errcode.Unavailable, "the cluster's Kubernetes API responded %d: %.500s", response.StatusCode,
			found.Message)
	case err != nil:
		return found, fault.Wrap(err, errcode.Unavailable, "the cluster's Kubernetes API returned an invalid list of pods")
	}
	for _, each := range found.Items {
		if len(each.Metadata.Namespace) > maxName || len(each.Metadata.Name) > maxName {
			return pods{}, fault.New(errcode.Unavailable,
				"the cluster's Kubernetes API returned an invalid list of pods: a name has more than %d bytes", maxName)
		}
	}
	return found, nil
}
