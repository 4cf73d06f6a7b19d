package forward

import (
	"context"
	"maps"
	"slices"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/route"
)

// callerAndAgent is the key of the requests of one caller to one agent. Those to workspaces count for each workspace:
// one gateway forwards the connections of all people.
type callerAndAgent struct {
	policy.Identity

	agentID   int64
	workspace route.Workspace // with port 0; zero for other targets
}

// Limits of requests in flight, in metrics.
const (
	limitRequests       = "requests"
	limitCallerRequests = "caller_requests"
	limitAgentRequests  = "agent_requests"
)

// addInflight counts a request as in flight. Fault resource_exhausted.
func (h *Handler) addInflight(p *proxiedRequest, cancel context.CancelCauseFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.inflight) >= h.cfg.MaxRequests:
		h.cfg.Refused(limitRequests)
		return fault.New(errcode.ResourceExhausted, "this relay has %d requests in flight, its maximum: try again",
			len(h.inflight))
	case h.perCaller[p.caller.Identity()] >= h.cfg.MaxRequestsPerCaller:
		h.cfg.Refused(limitCallerRequests)
		return fault.New(errcode.ResourceExhausted, "you have %d requests in flight at this relay, its maximum: try again",
			h.perCaller[p.caller.Identity()])
	case h.perAgent[p.callerAndAgent()] >= h.cfg.MaxRequestsPerAgent:
		h.cfg.Refused(limitAgentRequests)
		return fault.New(errcode.ResourceExhausted,
			"you have %d requests in flight to agent %d at this relay, its maximum: try again",
			h.perAgent[p.callerAndAgent()], p.requestPath.AgentID)
	}
	h.inflight[p] = cancel
	h.perCaller[p.caller.Identity()]++
	h.perAgent[p.callerAndAgent()]++
	if h.draining && p.Verb == verbWatch {
		cancel(errDraining)
	}
	return nil
}

func (h *Handler) removeInflight(p *proxiedRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inflight, p)
	caller := p.caller.Identity()
	if h.perCaller[caller]--; h.perCaller[caller] == 0 {
		delete(h.perCaller, caller)
	}
	if h.perAgent[p.callerAndAgent()]--; h.perAgent[p.callerAndAgent()] == 0 {
		delete(h.perAgent, p.callerAndAgent())
	}
	h.closeIfIdle()
}

func (p *proxiedRequest) callerAndAgent() callerAndAgent {
	key := callerAndAgent{Identity: p.caller.Identity(), agentID: p.requestPath.AgentID}
	if w, is := route.ParseWorkspace(p.requestPath.Target); is {
		key.workspace = route.Workspace{Service: w.Service, Namespace: w.Namespace}
	}
	return key
}

// closeIfIdle is called with the mutex held.
func (h *Handler) closeIfIdle() {
	if h.draining && len(h.inflight) == 0 {
		h.idleOnce.Do(func() { close(h.idle) })
	}
}

// Requests returns the number of requests in flight.
func (h *Handler) Requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.inflight)
}

var errDraining = fault.New(errcode.Unavailable, "this relay is draining: send the request again")

// Drain ends watches, which clients restart elsewhere, and waits for all other requests. When drainCtx is done it
// cancels what is left.
func (h *Handler) Drain(drainCtx context.Context) {
	h.mu.Lock()
	h.draining = true
	h.closeIfIdle()
	for p, cancel := range h.inflight {
		if p.Verb == verbWatch {
			cancel(errDraining)
		}
	}
	h.mu.Unlock()
	select {
	case <-h.idle:
	case <-drainCtx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, cancel := range h.inflight {
			cancel(errDraining)
		}
	}
}

// Run cancels requests whose callers lose access, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Directory.Changed()
		h.mu.Lock()
		inflight := maps.Clone(h.inflight)
		h.mu.Unlock()
		for p, cancel := range inflight {
			if err := h.reauthorize(p); err != nil {
				cancel(err)
			}
		}
		select {
		case <-changed:
		case <-h.changed:
		case <-ctx.Done():
			return
		}
	}
}

// SetRules replaces the rules for services. Requests in flight that they no longer allow are cancelled.
func (h *Handler) SetRules(rules []policy.Rule) {
	h.mu.Lock()
	h.rules = rules
	h.mu.Unlock()
	h.Reauthorize()
}

// Reauthorize cancels requests in flight whose callers have lost access.
func (h *Handler) Reauthorize() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *Handler) currentRules() []policy.Rule {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules
}

// checkPolicy returns the impersonation of a request that policy permits.
func (h *Handler) checkPolicy(p *proxiedRequest) (policy.Impersonation, error) {
	var none policy.Impersonation
	agent, found := h.cfg.Directory.Agent(p.requestPath.AgentID)
	if !found {
		return none, fault.New(errcode.NotFound, "agent %d does not exist", p.requestPath.AgentID)
	}
	requested := policy.Access{Agent: agent, Target: p.requestPath.Target, ReadOnly: p.readOnly}
	var role directory.Role
	caller := p.caller
	if caller.UserID == 0 {
		if err := h.cfg.Authenticator.checkSecret(caller); err != nil {
			return none, err
		}
		if err := policy.CheckService(caller, h.currentRules(), requested); err != nil {
			return none, err
		}
	} else {
		current, err := access.CurrentCaller(h.cfg.Directory, access.Caller{
			UserID: caller.UserID, Admin: caller.Admin, TokenID: caller.TokenID,
		})
		if err != nil {
			return none, err
		}
		caller.Admin = current.Admin
		role = h.cfg.Directory.AgentRole(caller.UserID, p.requestPath.AgentID)
		if err := policy.CheckUser(caller, role, requested); err != nil {
			return none, err
		}
	}
	if p.forbiddenHeader != "" {
		return none, fault.New(errcode.PermissionDenied, "header %s is not allowed: the relay sets impersonation",
			p.forbiddenHeader)
	}
	return policy.Impersonate(caller, role), nil
}

// authorize checks the policy, and that the agent is not revoked.
func (h *Handler) authorize(p *proxiedRequest) (policy.Impersonation, error) {
	impersonation, err := h.checkPolicy(p)
	if err != nil {
		return impersonation, err
	}
	if agent, found := h.cfg.Directory.Agent(p.requestPath.AgentID); found && agent.Revoked {
		return impersonation, fault.New(errcode.FailedPrecondition, "%s is revoked", agent)
	}
	return impersonation, nil
}

func (h *Handler) setGroups(p *proxiedRequest, impersonation policy.Impersonation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.groups = impersonation.Groups
}

// reauthorize checks a request in flight: it must still be authorized. A long-running request to the Kubernetes API
// must also have every group that it began with.
func (h *Handler) reauthorize(p *proxiedRequest) error {
	now, err := h.authorize(p)
	if err != nil || p.protocol != audit.Kubernetes {
		return err
	}
	h.mu.Lock()
	groups := p.groups
	h.mu.Unlock()
	for _, group := range groups {
		if !slices.Contains(now.Groups, group) {
			return fault.New(errcode.PermissionDenied,
				"you no longer have group %s, with which this request was authorized: send it again",
				group)
		}
	}
	return nil
}
