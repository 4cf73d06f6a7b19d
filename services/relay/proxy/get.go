package proxy

import (
	"context"
	"fmt"
	"net/http"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/route"
)

// May says whether the caller may read the Kubernetes API of an agent.
func (h *Handler) May(caller policy.Caller, agentID int64) error {
	_, err := h.authorize(&visit{caller: caller, address: address{Instruction: route.Instruction{AgentID: agentID, Target: route.KubernetesAPI}}, reads: true})
	return err
}

// Get asks the Kubernetes API of an agent for something, as the caller, and has the answer read. Where at is not 0 it is that connection of the agent.
func (h *Handler) Get(ctx context.Context, caller policy.Caller, agentID, at int64, path, accept string, read func(*http.Response) error) error {
	target := address{Instruction: route.Instruction{AgentID: agentID, ConnectionID: at, Target: route.KubernetesAPI}, protocol: audit.Kubernetes}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+route.KubernetesAPI+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask agent %d: %w", agentID, err)
	}
	request.Header.Set("Accept", accept)
	v, err := h.visit(caller, target, askedBy(request))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := h.enter(v, cancel); err != nil {
		return err
	}
	defer h.leave(v)
	if err := h.cfg.Audit.Reserve(ctx, 1); err != nil {
		return err
	}
	defer h.record(v, audit.Ended)
	as, err := h.admitted(v)
	if err != nil {
		v.Error = fault.From(err).Error()
		return err
	}
	impersonation{as}.set(request.Header)
	response, err := h.cfg.Transport.RoundTrip(request.WithContext(With(ctx, &v.way)))
	if err != nil {
		err = reason(ctx, err)
		v.Error = fault.From(err).Error()
		return err
	}
	v.Status = response.StatusCode
	response.Body = &receivedBody{response.Body, v}
	defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	return read(response)
}
